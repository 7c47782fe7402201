"""The explorer inside a notebook: the same page in a frame, and the kernel answers it through messages.

The page asks for paths of the API, as it would ask a server. Here every request is a message with a number, and the
answer a message with that number and the bytes: no port is opened, so it works wherever the kernel runs. With the model
at hand it can be asked all that a server can: readings, edits, other texts.
"""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import Future
from functools import cache
from pathlib import Path
from typing import Any

from sightline.errors import InputTypeError, missing
from sightline.explore.one_model import OneModel
from sightline.explore.page import STATIC
from sightline.explore.run import runs_of
from sightline.watching import Seen
from sightline.watching.record.image import read_image

try:
    import anywidget
    import traitlets

    from sightline.web.app import application
    from sightline.web.guard import App
    from sightline.web.jobs import performer
    from sightline.web.service import Service
except ModuleNotFoundError as error:
    raise missing("the explorer in a notebook", "notebook", error) from error

HEIGHT = 640
METHODS = ("GET", "POST", "PUT", "DELETE")
SCRIPT = STATIC / "widget.js"
NOT_BUILT = """export default { render({ el }) {
  el.textContent = "The explorer's page is not built: cd web && npm ci && npm run build";
} };"""


def explorer(
    seen: Seen,
    height: int = HEIGHT,
    *,
    model: Any = None,
    tokenizer: Any = None,
    image: str | Path | bytes | None = None,
) -> Any:
    """A widget that shows a watched run, as a run at the end of a cell does by itself.

    Args:
        seen: from `sl.watch` or `sl.load`.
        height: of the widget, in pixels.
        model: the model that was watched. The widget can then read the run once more for a target, change its
            attention, and run other texts: as long as the kernel does nothing else with it.
        tokenizer: the model's, if it does not bring its own as those of `sl.models` do.
        image: the picture that a vision model was given, PNG or JPEG; a saved run has its own.

    >>> import torch
    >>> import sightline as sl
    >>> layer = torch.nn.MultiheadAttention(16, 2, batch_first=True).eval()
    >>> with sl.watch(layer, keep_qk=True) as seen:
    ...     x = torch.randn(1, 12, 16)
    ...     y = layer(x, x, x)
    >>> explorer(seen).height
    640
    """
    if not isinstance(seen, Seen):
        raise InputTypeError(
            "the explorer shows a watched run", expected="a Seen", got=type(seen).__name__, hint="sl.watch"
        )
    picture = None if image is None else read_image(image)[1]
    return Explorer(seen, height, None if model is None else OneModel(seen, model, tokenizer), picture)


def mimebundle(seen: Seen) -> dict[str, Any]:
    """The widget as one kind of output; the run's own HTML stays beside it for readers without a kernel."""
    found = explorer(seen)._repr_mimebundle_()
    bundle = (found[0] if isinstance(found, tuple) else found) or {}
    return {kind: value for kind, value in bundle.items() if "widget" in kind}


class Carried:
    """One run behind the API, asked without a socket. Threads start with the first question."""

    def __init__(self, seen: Seen, model: OneModel | None = None, picture: bytes | None = None) -> None:
        self.seen, self.model, self.picture = seen, model, picture
        self._app: App | None = None
        self._service: Service | None = None
        self._lock = threading.Lock()

    def ask(self, path: str, method: str = "GET", body: str = "") -> Future[tuple[int, dict[str, str], bytes]]:
        """Start to answer a request: status, headers, body."""
        return asyncio.run_coroutine_threadsafe(self._answer(path, method, body.encode()), _loop())

    def close(self) -> None:
        """Stop its threads."""
        with self._lock:
            if self._service is not None:
                self._service.close()
            self._service = self._app = None

    def _open(self) -> App:
        with self._lock:
            if self._app is None:
                models: Any = self.model
                # Without a model this run is all there is.
                perform = _refuse if models is None else performer(models, lambda run: service.library.add(run))
                service = Service(perform, models)
                folder = self.seen.folder if self.seen.complete else None
                for run in runs_of(self.seen, service.library.limit, origin="notebook", folder=folder):
                    run.picture = self.picture
                    service.library.add(run)
                self._service, self._app = service, application(service)
            return self._app

    async def _answer(self, path: str, method: str, given: bytes) -> tuple[int, dict[str, str], bytes]:
        app = await asyncio.to_thread(self._open)
        place, _, query = path.partition("?")
        scope = {
            "type": "http",
            "asgi": {"version": "3.0"},
            "http_version": "1.1",
            "method": method,
            "scheme": "http",
            "path": place,
            "raw_path": place.encode(),
            "query_string": query.encode(),
            "root_path": "",
            "headers": [
                (b"host", b"127.0.0.1"),
                (b"content-type", b"application/json"),
                (b"content-length", str(len(given)).encode()),
            ],
            "client": ("127.0.0.1", 0),
            "server": ("127.0.0.1", 80),
        }
        status, headers, body = 500, {}, bytearray()
        asked = False

        async def receive() -> dict[str, Any]:
            nonlocal asked
            if asked:
                await asyncio.Event().wait()  # nobody leaves: who does not want it any more cancels
            asked = True
            return {"type": "http.request", "body": given, "more_body": False}

        async def send(message: Any) -> None:
            nonlocal status, headers
            if message["type"] == "http.response.start":
                status = message["status"]
                headers = {k.decode("latin-1").lower(): v.decode("latin-1") for k, v in message["headers"]}
            else:
                body.extend(message.get("body", b""))

        await app(scope, receive, send)
        return status, headers, bytes(body)


def _refuse(*_: object) -> Any:
    raise NotImplementedError("a widget has no models to run")


@cache
def _loop() -> asyncio.AbstractEventLoop:
    """One loop in one thread for all widgets: the kernel's own is busy with cells."""
    loop = asyncio.new_event_loop()
    threading.Thread(target=loop.run_forever, name="sightline-widgets", daemon=True).start()
    return loop


class Explorer(anywidget.AnyWidget):
    """The explorer in a notebook."""

    _esm = SCRIPT.read_text(encoding="utf-8") if SCRIPT.exists() else NOT_BUILT
    height = traitlets.Int(HEIGHT).tag(sync=True)

    def __init__(self, seen: Seen, height: int, model: OneModel | None = None, picture: bytes | None = None) -> None:
        self._carried = Carried(seen, model, picture)
        self._running: dict[int, Future] = {}
        super().__init__(height=height)
        self.on_msg(self._asked)

    def _asked(self, _: object, content: Any, buffers: object) -> None:
        """A message of the page: a request, or that one is not needed any more."""
        if not isinstance(content, dict):
            return
        if "cancel" in content:
            running = self._running.pop(content["cancel"], None)
            if running is not None:
                running.cancel()
            return
        id, path = content.get("id"), content.get("path")
        method, body = content.get("method", "GET"), content.get("body", "")
        if not isinstance(id, int) or not isinstance(path, str) or not path.startswith("/"):
            return
        if method not in METHODS or not isinstance(body, str):
            return
        running = self._carried.ask(path, method, body)
        self._running[id] = running
        running.add_done_callback(lambda future: self._told(id, future))

    def _told(self, id: int, future: Future) -> None:
        self._running.pop(id, None)
        if future.cancelled():
            return
        if future.exception() is not None:
            self.send({"id": id, "status": 500, "headers": {}}, buffers=[])
            return
        status, headers, body = future.result()
        self.send({"id": id, "status": status, "headers": headers}, buffers=[body])

    def close(self) -> None:
        super().close()
        self._carried.close()
