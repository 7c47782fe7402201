"""The explorer under load: a map of 65,536 x 65,536 in a real browser, and fifty clients at once for a minute.

    python benchmarks/explorer.py [--parts long,pan,clients,smollm2,why,wall] [--folder FOLDER] [--seconds 60]
                                  [--out FOLDER]

`long`: the first full view, then tiles never asked for before, at every level. `pan`: the map is dragged for a minute.
`clients`: quick, slow and broken ones together. `smollm2`: a text of 2,048 tokens, typed into the page. `why` and
`wall` are in `asking.py`: readings, edits and effects after a run, and 1,024 heads on one screen. Every part states its
budget beside what was measured. The map is made once and kept in `--folder`.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import re
import shutil
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import asking
import httpx
import numpy as np
import torch
from harness import QUICK, RESULTS, summary, write
from playwright.sync_api import Browser, Page, sync_playwright

from sightline.watching import load, watch

TOKENS = 4096 if QUICK else 65536
DIM = 64
FILLED = 40  # seconds after which two cores have filled the finer overview of an opened head
MIB = 1 << 20
READY = """(kinds) => {
  const maps = [...document.querySelectorAll('.mapview')].filter((m) => m.offsetParent);
  const shown = (b) => b.hidden ? 'complete' : b.dataset.kind;
  return maps.length > 0 && document.querySelector('.app:not(.empty)') !== null
    && maps.every((m) => kinds.includes(shown(m.querySelector('.badge'))));
}"""


class Head(torch.nn.Module):
    """Nothing but attention, on q and k that are given."""

    def forward(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)


def long_run(folder: Path) -> Path:
    """A saved run of one layer with two heads, whose q and k have structure at several scales."""
    if (folder / "index.json").exists():
        return folder
    torch.manual_seed(0)
    periods = torch.tensor([7.0, 50.0, 400.0, 3000.0, 20000.0])
    place = torch.arange(TOKENS)[:, None] / periods
    turns = torch.cat([place.cos(), place.sin(), 0.3 * torch.randn(TOKENS, DIM - 10)], -1)
    q = torch.stack([4 * turns, 2 * turns.roll(1, 0)])[None]
    k = torch.stack([turns + 0.2 * torch.randn_like(turns) for _ in range(2)])[None]
    started, head = time.perf_counter(), Head()
    stats = ("entropy", "received", "overview", "overview_max", "shares")
    with torch.no_grad(), watch(head, keep_qk=folder, stats=stats) as seen:
        seen.meta.update({"name": "structured q and k", "text": f"{TOKENS} positions"})
        head(q, k, torch.zeros_like(k))
    print(f"the map was made in {time.perf_counter() - started:.0f} s")
    return folder


class Server:
    """`sightline serve` in a process of its own, and how much memory it takes."""

    def __init__(self, *arguments: str) -> None:
        command = [sys.executable, "-u", "-c", "from sightline.cli import main; main()", "serve", *arguments]
        self.process = subprocess.Popen([*command, "--port", "0"], stdout=subprocess.PIPE, text=True)
        assert self.process.stdout is not None
        found = re.search(r"http://\S+/", self.process.stdout.readline())
        assert found, "the server did not start"
        self.base = found[0]
        while True:
            try:
                httpx.get(self.base + "api/limits")
                return
            except httpx.ConnectError:
                time.sleep(0.05)

    def memory(self, field: str = "VmRSS") -> float:
        """Resident MiB now, or with VmHWM the most so far."""
        text = Path(f"/proc/{self.process.pid}/status").read_text()
        return int(re.search(rf"{field}:\s+(\d+)", text)[1]) / 1024  # type: ignore[index]

    def run(self) -> dict[str, Any]:
        return httpx.get(self.base + "api/runs").json()["runs"][0]

    def close(self) -> None:
        self.process.send_signal(signal.SIGINT)
        self.process.communicate(timeout=30)


@contextmanager
def serving(*arguments: str) -> Iterator[Server]:
    server = Server(*arguments)
    try:
        yield server
    finally:
        server.close()


@contextmanager
def browsing() -> Iterator[Browser]:
    names = ("chromium", "google-chrome", "chromium-headless-shell")
    found = next(filter(None, map(shutil.which, names)), None)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=found, args=["--no-sandbox"])
        try:
            yield browser
        finally:
            browser.close()


def visit(browser: Browser) -> tuple[Page, list[str]]:
    page, errors = browser.new_page(viewport={"width": 1440, "height": 900}), []
    page.on("console", lambda m: m.type in ("error", "warning") and errors.append(m.text))
    page.on("pageerror", lambda error: errors.append(str(error)))
    return page, errors


class Plain:
    """A page as a reader has it. Playwright's own keep the body of every answer in the renderer, up to 200 MB of them
    (`Network.enable` of the DevTools protocol): with these the figure was that of the recorder, not of the page."""

    def __init__(self, browser: Browser) -> None:
        self.tools, self.answers, self.last = browser.new_browser_cdp_session(), dict[int, dict](), 0
        self.errors: list[str] = []
        self.tools.on("Target.receivedMessageFromTarget", lambda told: self._heard(json.loads(told["message"])))
        # Playwright leaves alone what is in a context that it did not make.
        context = self.tools.send("Target.createBrowserContext")["browserContextId"]
        page = self.tools.send("Target.createTarget", {"url": "about:blank", "browserContextId": context})["targetId"]
        self.session = self.tools.send("Target.attachToTarget", {"targetId": page, "flatten": False})["sessionId"]
        self.ask("Emulation.setDeviceMetricsOverride", width=1440, height=900, deviceScaleFactor=1, mobile=False)
        self.ask("Runtime.enable")

    def _heard(self, message: dict) -> None:
        if "id" in message:
            self.answers[message["id"]] = message
        elif message["method"] == "Runtime.exceptionThrown":
            self.errors.append(message["params"]["exceptionDetails"]["text"])
        elif message["method"] == "Runtime.consoleAPICalled" and message["params"]["type"] in ("error", "warning"):
            self.errors.append(str(message["params"]["args"]))

    def ask(self, method: str, **parameters: Any) -> dict:
        self.last += 1
        message = json.dumps({"id": self.last, "method": method, "params": parameters})
        self.tools.send("Target.sendMessageToTarget", {"sessionId": self.session, "message": message})
        while self.last not in self.answers:
            self.tools.send("Browser.getVersion")  # lets Playwright hand on what came in
        answer = self.answers.pop(self.last)
        assert "error" not in answer, answer
        return answer["result"]

    def evaluate(self, expression: str, given: object = None) -> Any:
        call = f"({expression})({json.dumps(given)})" if "=>" in expression else expression
        found = self.ask("Runtime.evaluate", expression=call, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in found, found
        return found["result"].get("value")

    def mouse(self, kind: str, x: float, y: float, held: bool = False) -> None:
        button = {"button": "left", "clickCount": 1} if kind != "mouseMoved" else {}
        self.ask("Input.dispatchMouseEvent", type=kind, x=x, y=y, buttons=int(held), **button)

    def drag(self, x: float, y: float, right: float, down: float, steps: int = 8) -> None:
        self.mouse("mouseMoved", x, y)
        self.mouse("mousePressed", x, y, held=True)
        for step in range(1, steps + 1):
            self.mouse("mouseMoved", x + right * step / steps, y + down * step / steps, held=True)
        self.mouse("mouseReleased", x + right, y + down)


def until(page: Page | Plain, *kinds: str, limit: float = 120) -> float:
    """Seconds until every map on the screen is of one of these kinds."""
    started = time.perf_counter()
    while not page.evaluate(READY, list(kinds)):
        assert time.perf_counter() - started < limit, f"not {kinds} after {limit} s"
        time.sleep(0.02)
    return time.perf_counter() - started


def renderer_memory() -> float:
    """Private MiB of the largest page of a browser that this process started."""
    most = 0.0
    for path in Path("/proc").glob("[0-9]*"):
        try:
            if b"--type=renderer" not in (path / "cmdline").read_bytes() or not _ours(int(path.name)):
                continue
            text = (path / "smaps_rollup").read_text()
        except OSError:
            continue
        most = max(most, sum(int(n) for n in re.findall(r"Private_\w+:\s+(\d+)", text)) / 1024)
    return most


def _ours(pid: int) -> bool:
    while pid > 1:
        if pid == os.getpid():
            return True
        pid = int(Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[1])
    return False


def tiles(base: str, pool: str, sight: Any) -> dict:
    """Tiles never asked for before, at every level; estimates are counted, for they are not exact."""
    rng, spent, estimates = random.Random(0), {}, Counter[int]()
    with httpx.Client(timeout=60) as client:
        for level in range(int(np.log2(TOKENS / 256)) + 1):
            side = TOKENS >> level + 8
            every = [(y, x) for y in range(side) for x in range(y + 1)]
            for y, x in rng.sample(every, min(len(every), 20)):
                before = time.perf_counter()
                answer = client.get(f"{base}/{level}/{level}/{y}/{x}?pool={pool}")
                spent.setdefault(level, []).append((time.perf_counter() - before) * 1e3)
                assert answer.status_code == 200
                estimates[level] += "x-sightline-estimate" in answer.headers
                if level == 0:
                    rows, columns = slice(y * 256, y * 256 + 256), slice(x * 256, x * 256 + 256)
                    tile = np.frombuffer(answer.content, "<f4").reshape(256, 256)
                    weights = sight.tile(rows, columns)[0, 1].float().numpy()
                    assert np.allclose(np.nan_to_num(tile), weights, rtol=1e-5, atol=1e-9)
    levels = {n: {**summary(t), "worst_ms": max(t), "estimates": estimates[n]} for n, t in spent.items()}
    return {**summary([x for t in spent.values() for x in t]), "levels": levels}


def long(folder: Path) -> list[dict]:
    """The first full view, and then tiles that nobody has asked for."""
    sight = load(folder)[0]
    with serving(str(folder)) as server, browsing() as browser:
        page, errors = visit(browser)
        started = time.perf_counter()
        page.goto(server.base)
        until(page, "complete", "estimate")
        first = time.perf_counter() - started
        exact = first + until(page, "complete")
        page.close()
        base = f"{server.base}api/runs/{server.run()['id']}/tiles/0/1"
        # Just opened, the finer overview of this head is still being filled by the same two cores.
        rows = [
            {"name": "first full view", "seconds": first, "exact_seconds": exact, "budget_seconds": 3},
            {"name": "further tiles while the overview is filled", **tiles(base, "mean", sight), "budget_ms": 150},
        ]
        time.sleep(1 if QUICK else FILLED)
        rows += [
            {"name": "further tiles once the overview is full", **tiles(base, "max", sight), "budget_ms": 150},
            {"name": "memory of the server", "most_mib": server.memory("VmHWM"), "budget_mib": 1536},
            {"name": "console of the long map", "errors": errors},
        ]
    return rows


# Frames and aborted requests, counted by the page itself.
COUNT = """() => {
  const ask = window.fetch;
  window.aborted_ = 0;
  const count = (error) => { window.aborted_ += error.name === 'AbortError'; throw error; };
  window.fetch = (...given) => ask(...given).catch(count);
  window.frames_ = [];
  let last = performance.now();
  const tick = (now) => { window.frames_.push(now - last); last = now; requestAnimationFrame(tick); };
  requestAnimationFrame(tick);
  const box = document.querySelector('.centre-map .surface').getBoundingClientRect();
  return [box.x + box.width / 2, box.y + box.height / 2];
}"""


def pan(folder: Path, seconds: float) -> list[dict]:
    """Drag the map for a minute at a level that no overview holds."""
    with serving(str(folder)) as server, browsing() as browser:
        page, run = Plain(browser), server.run()["id"]
        place = f"at={TOKENS * 0.6},{TOKENS * 0.3},-2"
        page.ask("Page.navigate", url=f"{server.base}#v=1&run={run}&view=map&L=0&H=1&{place}&diag=0")
        until(page, "complete")
        x, y = page.evaluate(COUNT)
        rng, end, memory = random.Random(0), time.monotonic() + seconds, []
        while time.monotonic() < end:
            right, down = rng.uniform(-320, 320), rng.uniform(-300, 300)
            if abs(right) + abs(down) < 20:
                continue  # a drag so short is a click, which goes down to single cells
            page.drag(x, y, right, down)
            memory.append(renderer_memory())
        frames = page.evaluate("window.frames_")
        page.mouse("mouseMoved", 2, 2)
        settled = until(page, "complete")
        heap = page.evaluate("performance.memory.usedJSHeapSize") / MIB
        assert ",-2&" in page.evaluate("location.hash"), "it is still the level where it began"
        return [
            {
                "name": "panning",
                "seconds": seconds,
                "drags": len(memory),
                "aborted_requests": page.evaluate("window.aborted_"),
                "complete_after_seconds": settled,
                "budget_complete_seconds": 1,
                "page_most_mib": max(memory),
                "page_mib_over_time": [memory[i * (len(memory) - 1) // 9] for i in range(10)],
                "page_script_heap_mib": heap,
                "budget_page_mb": 300,
                "frames_a_second_median": 1000 / statistics.median(frames),
                "budget_frames_a_second": 30,
                "server_most_mib": server.memory("VmHWM"),
                "errors": page.errors,
            }
        ]


def clients(folder: Path, seconds: float, count: int = 50) -> list[dict]:
    """Quick, slow and broken clients together; then one more question."""
    with serving(str(folder)) as server:
        run, port = server.run()["id"], int(server.base.rsplit(":", 1)[1].strip("/"))
        api = f"{server.base}api/runs/{run}"
        probe = f"{api}/tiles/0/0/0/0/9/3?pool=mean"

        def ask(url: str) -> float:
            before = time.perf_counter()
            assert httpx.get(url, timeout=60).status_code == 200
            return (time.perf_counter() - before) * 1e3

        first = [ask(f"{api}/tiles/0/0/0/0/{y}/1?pool=mean") for y in range(2, 9)]
        statuses: Counter[str] = Counter()
        end, memory = time.monotonic() + seconds, []

        def quick(seed: int) -> None:
            rng = random.Random(seed)
            with httpx.Client(timeout=60) as client:
                while time.monotonic() < end:
                    level = rng.choice([0, 1, 2, 3, 4])
                    y = rng.randrange(max(TOKENS >> level + 8, 1))
                    kinds = [
                        f"tiles/0/{rng.randrange(2)}/{level}/{level}/{y}/{rng.randrange(y + 1)}?pool=mean",
                        f"rows/0/0?q={rng.randrange(TOKENS)}",
                        f"tokens?from=0&to={min(TOKENS, 1000)}",
                        "portraits",
                    ]
                    try:
                        answer = client.get(f"{api}/{rng.choices(kinds, [8, 2, 1, 1])[0]}")
                        statuses[str(answer.status_code)] += 1
                        if answer.status_code in (429, 503):
                            time.sleep(float(answer.headers.get("retry-after", 1)))
                    except httpx.HTTPError as error:
                        statuses[type(error).__name__] += 1

        def slow(seed: int) -> None:
            """Reads a tile a few bytes at a time."""
            while time.monotonic() < end:
                with socket.create_connection(("127.0.0.1", port)) as stream:
                    path = f"/api/runs/{run}/tiles/0/0/0/0/{seed}/0?pool=mean"
                    stream.sendall(f"GET {path} HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n".encode())
                    until_then = min(end, time.monotonic() + 8)
                    while time.monotonic() < until_then and stream.recv(64):
                        time.sleep(0.1)

        def broken(seed: int) -> None:
            """Leaves in the middle, or never said anything sensible."""
            rng = random.Random(seed)
            while time.monotonic() < end:
                path = f"/api/runs/{run}/tiles/0/1/3/3/{rng.randrange(TOKENS >> 11)}/0?pool=mean"
                what = rng.choice([b"", b"\x00\xff\r\n\r\n", b"GET / HT", b"POST /api/runs HTTP/1.1\r\nHost: x\r\n"])
                what = what if rng.random() < 0.5 else f"GET {path} HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n".encode()
                with socket.create_connection(("127.0.0.1", port)) as stream:
                    stream.sendall(what)
                    time.sleep(rng.uniform(0, 0.1))
                time.sleep(0.05)

        kinds = [quick] * 7 + [slow] * 2 + [broken]
        threads = [threading.Thread(target=kinds[i % 10], args=(i,)) for i in range(count)]
        for thread in threads:
            thread.start()
        while time.monotonic() < end:
            time.sleep(min(5, seconds / 6))
            memory.append(server.memory())
        for thread in threads:
            thread.join(90)
        time.sleep(1)
        last = [ask(f"{api}/tiles/0/0/0/0/{y}/2?pool=mean") for y in range(12, 19)] if TOKENS >= 8192 else [ask(probe)]
        return [
            {
                "name": f"{count} clients",
                "seconds": seconds,
                "statuses": dict(statuses),
                "allowed": ["200", "204", "429", "503"],
                "memory_mib": memory,
                "first_requests": summary(first),
                "next_requests": summary(last),
            }
        ]


def smollm2() -> list[dict]:
    """A text of 2,048 tokens, typed into the page and run."""
    from sightline.models import load as load_model
    from sightline.steps import explain

    model, tokenizer = load_model("smollm2")
    words = "The kids were scared of the lions, so they left right away. Later they told everyone about it. " * 200
    ids = list(tokenizer.encode(words).ids)[: 128 if QUICK else 2048]
    text = tokenizer.decode(ids)
    layer, head, query = 5, 2, len(ids) - 8
    with serving("--model", "smollm2") as server, browsing() as browser:
        page, errors = visit(browser)
        page.goto(server.base)
        page.fill("textarea", text)
        started = time.perf_counter()
        page.click(".composer button[type=submit]")
        page.wait_for_selector(".app:not(.empty) .head canvas", timeout=300_000)
        until(page, "complete", limit=300)
        ran = time.perf_counter() - started
        page.select_option("select[aria-label=layer]", str(layer))
        page.select_option("select[aria-label=head]", str(head))
        before = time.perf_counter()
        until(page, "complete")
        switched = time.perf_counter() - before
        run = server.run()
        steps = httpx.get(
            f"{server.base}api/runs/{run['id']}/steps/{layer}/{head}?q={query}&top=16", timeout=300
        ).json()
        address = page.url
        page.close()
        again, more = visit(browser)
        again.goto(address)
        until(again, "complete")
        kept = again.url == address
    told = explain(model.eval(), text, layer=layer, head=head).table(query).to_dict()
    exact = {line["key"]: line["weight"] for line in told["lines"] if line["key"] is not None}
    lines = [line for line in steps["lines"] if line["key"] in exact]
    worst = max(abs(line["weight"] - exact[line["key"]]) for line in lines)
    return [
        {
            "name": "smollm2 in the page",
            "tokens": run["tokens"],
            "run_seconds": ran,
            "switch_seconds": switched,
            "keys_compared_with_steps": len(lines),
            "largest_difference_from_steps": worst,
            "address_restores": kept,
            "errors": [*errors, *more],
        }
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--parts", default="long,pan,clients,smollm2,why,wall")
    parser.add_argument("--folder", type=Path, default=Path(tempfile.gettempdir()) / f"sightline-long-{TOKENS}")
    parser.add_argument("--seconds", type=float, default=3 if QUICK else 60)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    parts = options.parts.split(",")
    rows: list[dict] = []
    if set(parts) & {"prepare", "long", "pan", "clients"}:
        long_run(options.folder)
    for part in parts:
        found = {
            "long": lambda: long(options.folder),
            "pan": lambda: pan(options.folder, options.seconds),
            "clients": lambda: clients(options.folder, options.seconds),
            "smollm2": smollm2,
            "why": lambda: asking.why(serving),
            "wall": lambda: asking.wall(serving, browsing, Path(tempfile.mkdtemp(prefix="sightline-wall-")) / "run"),
            "prepare": list,
        }[part]()
        for row in found:
            print(json.dumps(row))
        rows += found
    if parts == ["prepare"]:
        return
    # Parts that were not measured now keep what was measured before.
    path = (options.out or RESULTS) / "explorer-cpu.json"
    if not QUICK and path.exists():
        new = {row["name"] for row in rows}
        rows = [row for row in json.loads(path.read_text())["results"] if row["name"] not in new] + rows
    print(write("explorer", rows, options.out))


if __name__ == "__main__":
    main()
