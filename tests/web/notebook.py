"""A notebook's side of the widget, in a real browser."""

from __future__ import annotations

import base64
import json
from typing import Any

from playwright.sync_api import Browser, FrameLocator, Page

from sightline.explore.page import STATIC
from sightline.web.widget import Carried
from web.browser import AXE, BUSY, RESTS

# A notebook's side of a widget, in a few lines: messages go to Python and come back.
HOST = """
import('data:text/javascript;base64,' + btoa(SCRIPT)).then(({default: widget}) => {
  const listeners = new Set();
  window.model = {
    get: (name) => ({height: 700})[name],
    on: (_, listener) => listeners.add(listener),
    off: (_, listener) => listeners.delete(listener),
    send: (content) => window.kernel(JSON.stringify(content)).then((answer) => {
      if (!answer) return;
      const {body, ...rest} = answer;
      const bytes = Uint8Array.from(atob(body), (c) => c.charCodeAt(0));
      for (const listener of listeners) listener(rest, [new DataView(bytes.buffer)]);
    }),
  };
  window.leave = widget.render({model, el: document.body});
});
"""


class Notebook:
    """A page with the widget in it; what it asks for, `carried` answers."""

    def __init__(self, browser: Browser, carried: Carried, **options: Any) -> None:
        self.carried = carried
        self.context = browser.new_context(**{"viewport": {"width": 1300, "height": 760}, **options})
        self.context.set_default_timeout(60_000)
        self.context.add_init_script(BUSY)
        self.page: Page = self.context.new_page()
        self.errors: list[str] = []
        self.requests: list[str] = []
        self.page.on("console", lambda m: m.type in ("error", "warning") and self.errors.append(m.text))
        self.page.on("pageerror", lambda error: self.errors.append(str(error)))
        self.page.on("request", lambda request: self.requests.append(request.url))
        self.page.expose_function("kernel", self._kernel)
        script = json.dumps((STATIC / "widget.js").read_text(encoding="utf-8"))
        self.page.evaluate(HOST.replace("SCRIPT", script))
        self.frame: FrameLocator = self.page.frame_locator("iframe")

    def _kernel(self, message: str) -> dict[str, Any] | None:
        content = json.loads(message)
        if "cancel" in content:
            return None
        given = {name: content[name] for name in ("method", "body") if name in content}
        status, headers, body = self.carried.ask(content["path"], **given).result(60)
        return {"id": content["id"], "status": status, "headers": headers, "body": base64.b64encode(body).decode()}

    def until(self, selector: str, text: str = "") -> None:
        """Wait for something in the widget, with this text."""
        found = self.frame.locator(selector)
        (found.filter(has_text=text) if text else found).first.wait_for()

    def rest(self) -> None:
        """Wait until what has arrived in the widget is drawn."""
        while not self.page.frames[-1].evaluate(RESTS):
            self.page.wait_for_timeout(20)

    def accessible(self, what: str) -> None:
        """No serious finding of axe in the widget."""
        inner = self.page.frames[-1]
        inner.evaluate(AXE.read_text(encoding="utf-8"))
        found = inner.evaluate("axe.run('html', {resultTypes: ['violations']})")["violations"]
        serious = [one["id"] for one in found if one["impact"] in ("serious", "critical")]
        assert not serious, f"{what}: {serious}"

    def close(self) -> None:
        elsewhere = [url for url in self.requests if not url.startswith(("data:", "blob:", "about:"))]
        self.context.close()
        assert not self.errors, self.errors
        assert not elsewhere, elsewhere
