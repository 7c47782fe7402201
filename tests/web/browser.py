"""A real browser on a real server: what the tests of the page stand on. Without Chromium they fail, not skip."""

from __future__ import annotations

import functools
import shutil
import socket
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
import uvicorn
from playwright.sync_api import Browser, BrowserContext, Page, sync_playwright

import sightline as sl
from explore_cases import Sights, make_run, words
from sightline.explore.model_runs import Models
from sightline.explore.page import STATIC
from sightline.explore.run import Run
from sightline.models import load as load_model
from sightline.web.service import Service
from web.shared_app import application_of

ROOT = Path(__file__).resolve().parents[2]
AXE = ROOT / "web" / "node_modules" / "axe-core" / "axe.min.js"
SENTENCE = "The kids were scared of the lions, so they left right away."


# What the page has still to do, counted in the page: timers that end soon, and answers that are on their way. Timers of
# more than this many milliseconds ask again or tidy up: whatever waits for those says for what.
SOON = 160
BUSY = f"""
(() => {{
  const [timers, answers] = [new Set(), new Set()];
  const [set, clear, ask] = [window.setTimeout, window.clearTimeout, window.fetch];
  window.setTimeout = (work, wait = 0, ...rest) => {{
    const id = set(() => {{
      timers.delete(id);
      work(...rest);
    }}, wait);
    if (wait <= {SOON}) timers.add(id);
    return id;
  }};
  window.clearTimeout = (id) => {{
    timers.delete(id);
    clear(id);
  }};
  const counted = (answer) => {{
    answers.add(answer);
    const over = () => answers.delete(answer);
    answer.then(over, over);
    return answer;
  }};
  window.fetch = (...given) => counted(ask(...given));
  for (const how of ["json", "text", "arrayBuffer", "blob"]) {{
    const read = Response.prototype[how];
    Response.prototype[how] = function () {{
      return counted(read.call(this));
    }};
  }}
  window.busy_ = () => timers.size + answers.size;
}})();
"""
# Two frames: what was asked for in an event is drawn in the next one, and shown in the one after it.
RESTS = """
new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(() => done(
  window.busy_() === 0 &&
  [...document.images].every((image) => image.complete) &&
  document.querySelector('.leaflet-pan-anim') === null
))))
"""


def chromium() -> str:
    """Where the browser is: of two the one without windows, which takes a fifth of the time for each page."""
    for name in ("chromium-headless-shell", "chromium", "chromium-browser", "google-chrome"):
        found = shutil.which(name)
        if found:
            return found
    pytest.fail("the tests of the page need Chromium: apt-get install -y chromium")


def build_page() -> None:
    """The page is built where it is not, or is older than its source."""
    sources = [*(ROOT / "web" / "src").rglob("*.*"), *(ROOT / "web" / "pages").iterdir()]
    built = STATIC / "app.js"
    if built.exists() and built.stat().st_mtime >= max(path.stat().st_mtime for path in sources) and AXE.exists():
        return
    for command in ([] if AXE.exists() else [["npm", "ci"]]) + [["npm", "run", "build"]]:
        done = subprocess.run(command, cwd=ROOT / "web", capture_output=True, text=True, check=False)
        assert done.returncode == 0, f"{' '.join(command)}: {done.stdout[-2000:]}{done.stderr[-2000:]}"


@functools.cache
def trained(name: str) -> tuple[Any, Any]:
    """A trained model and its tokenizer, loaded once for all tests of a worker: each leaves it as it was."""
    model, tokenizer = load_model(name)
    return model.eval(), tokenizer


class Trained(Models):
    """The same for a server."""

    def get(self, name: str) -> tuple[Any, Any]:
        return trained(self._paths[name])


class Live:
    """A server in a thread, on a port of its own, or on that of one that is gone."""

    def __init__(self, service: Service, port: int = 0) -> None:
        self.service = service
        listener = socket.socket()
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(("127.0.0.1", port))
        self.port = listener.getsockname()[1]
        self.base = f"http://127.0.0.1:{self.port}/"
        config = uvicorn.Config(application_of(service), log_level="error", timeout_graceful_shutdown=1)
        self.server = uvicorn.Server(config)
        self.thread = threading.Thread(target=self.server.run, kwargs={"sockets": [listener]}, daemon=True)
        self.thread.start()
        while not self.server.started:
            time.sleep(0.01)

    def close(self) -> None:
        self.service.leave()
        self.server.should_exit = True
        self.thread.join(10)


@contextmanager
def open_browser(**options: Any) -> Iterator[Browser]:
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium(), args=["--no-sandbox"], **options)
        try:
            yield browser
        finally:
            browser.close()


class Visit:
    """A page, and everything that went wrong on it or went elsewhere."""

    def __init__(self, browser: Browser, base: str, **options: Any) -> None:
        self.context: BrowserContext = browser.new_context(**{"viewport": {"width": 1440, "height": 900}, **options})
        self.context.set_default_timeout(60_000)  # two cores, a browser, a server, and other tests beside them
        self.context.add_init_script(BUSY)
        self.page: Page = self.context.new_page()
        self.base = base
        self.errors: list[str] = []
        self.requests: list[str] = []
        self.expected: list[str] = []  # parts of errors that are as they should be: the browser tells them late
        self.page.on("console", lambda m: m.type in ("error", "warning") and self.errors.append(m.text))
        self.page.on("pageerror", lambda error: self.errors.append(str(error)))
        self.page.on("response", lambda r: r.status >= 400 and self.errors.append(f"{r.status} {r.url}"))
        self.page.on("request", lambda request: self.requests.append(request.url))

    def open(self, address: str = "", estimates: bool = False) -> Page:
        self.page.goto(self.base + address)
        self.page.wait_for_selector(".app:not(.empty)")
        self.page.wait_for_selector(".head canvas, .head .swatch", state="attached")
        self.settle(estimates)
        return self.page

    def until(self, expression: str, seconds: float = 60) -> None:
        """Wait until something is true. Playwright's own waiting evaluates text, which the page's policy forbids."""
        end = time.monotonic() + seconds
        while not self.page.evaluate(expression):
            assert time.monotonic() < end, f"never true: {expression}"
            self.page.wait_for_timeout(20)

    def rest(self) -> None:
        """Wait until the page has done what it was told to do: no answer is on its way, nothing is still to be drawn.

        For what is looked at as it is drawn, and for what must not happen: it has not happened when nothing more can.
        A map that was let go of while it moved glides on, and only then tells the address where it is.
        """
        self.until(RESTS)

    def settle(self, estimates: bool = False) -> None:
        """Wait until every map on the screen is complete; estimates may do, where exact ones take a minute."""
        self.rest()
        good = " || b.dataset.kind === 'estimate'" if estimates else ""
        self.until(
            "[...document.querySelectorAll('.mapview')].filter(m => m.offsetParent)"
            f".map(m => m.querySelector('.badge')).every(b => b.hidden{good})"
        )
        self.rest()

    def cell(self, query: int, key: int) -> tuple[float, float]:
        """Where on the screen a cell of a small map is, by its labels."""
        row = self.page.locator(".axis-label.row").nth(query).bounding_box()
        surface = self.page.locator(".centre-map .surface").bounding_box()
        assert row is not None
        assert surface is not None
        return surface["x"] + (key + 0.5) * row["height"], row["y"] + row["height"] / 2

    def accessible(self, what: str, within: str = "html") -> None:
        """No serious finding of axe on the page, or in a part of it."""
        if not self.page.evaluate("'axe' in window"):
            self.page.evaluate(AXE.read_text(encoding="utf-8"))
        found = self.page.evaluate("within => axe.run(within, {resultTypes: ['violations']})", within)["violations"]
        serious = [
            f"{what}: {one['id']}: {one['nodes'][0]['html'][:200]}"
            for one in found
            if one["impact"] in ("serious", "critical")
        ]
        assert not serious, "\n".join(serious)

    def close(self) -> None:
        elsewhere = [url for url in self.requests if not url.startswith((self.base, "data:", "blob:"))]
        self.context.close()
        errors = [error for error in self.errors if not any(part in error for part in self.expected)]
        assert not errors, errors
        assert not elsewhere, elsewhere


def long_run(tokens: int = 16_411, dim: int = 16) -> Run:
    """A long run whose normaliser needs no pass over the map, so that it is there at once."""
    place = torch.arange(tokens)[:, None] / torch.tensor([40.0, 300.0, 2000.0, 9000.0])
    turn = torch.cat([place.cos(), place.sin(), 0.3 * torch.randn(tokens, dim - 8)], -1)[None, None]
    account = Sights(
        only=sl.look(3 * turn, turn + 0.2 * torch.randn_like(turn), mask=sl.causal(), normalizer="sigmoid")
    )
    return make_run(account, [""] * tokens, text="a long text")


def relu_run(tokens: int = 40) -> Run:
    """A causal run with exact zeros, and weights below the floor of the colours."""
    q = torch.randn(1, 1, tokens, 8)
    scores = sl.look(q, q, mask=sl.causal(), normalizer="relu", stats=("entropy", "received"))
    tiny = sl.look(1e-4 * q, q, mask=sl.causal(), normalizer="relu", stats=("entropy", "received"))
    return make_run(Sights(plain=scores, tiny=tiny), words(tokens), text="a run with zeros")


def flat_run(tokens: int = 600) -> Run:
    """A map on which every weight is the same, over several tiles."""
    q = torch.zeros(1, 1, tokens, 4)
    return make_run(Sights(flat=sl.look(q, q, stats=("entropy", "received"))), words(tokens), text="a flat map")
