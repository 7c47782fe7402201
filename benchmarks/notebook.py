"""A watched run in a real JupyterLab, in a real browser: is the explorer drawn in its cell? `make notebook-test`.

    python benchmarks/notebook.py [--picture docs/images/notebook.png]

Starts JupyterLab on a loopback port, opens a notebook, runs its cells, and looks at what they show: the explorer, whose
map must be drawn and whose sentence must be true, and the static picture of the same run, for readers without a kernel.
"""

from __future__ import annotations

import argparse
import io
import json
import shutil
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path

import numpy as np
from harness import RESULTS, machine
from PIL import Image
from playwright.sync_api import FrameLocator, Page, sync_playwright

TEXT = "The kids were scared of the lions, so they left right away."
CELLS = [
    f"""import torch
import sightline as sl

model, tokenizer = sl.models.load("minilm")
ids = torch.tensor([tokenizer.encode("{TEXT}").ids])
with torch.no_grad(), sl.watch(model, keep_qk=True, tokenizer=tokenizer) as seen:
    model(ids)
seen""",
    """from IPython.display import HTML

HTML(seen._repr_html_())""",
]
SECONDS = 90
PACKAGES = ("jupyterlab", "anywidget", "ipykernel", "ipywidgets", "playwright", "torch")
LARGEST = 400_000


def notebook(path: Path) -> None:
    """A notebook of these cells, without outputs."""
    cells = [
        {"cell_type": "code", "id": f"c{i}", "metadata": {}, "outputs": [], "execution_count": None, "source": text}
        for i, text in enumerate(CELLS)
    ]
    kernel = {"name": "python3", "display_name": "Python 3", "language": "python"}
    content = {"cells": cells, "metadata": {"kernelspec": kernel}, "nbformat": 4, "nbformat_minor": 5}
    path.write_text(json.dumps(content))


@contextmanager
def jupyterlab(folder: Path) -> Iterator[str]:
    """JupyterLab on a free loopback port: its address."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    options = {
        "ServerApp.ip": "127.0.0.1",
        "ServerApp.port": port,
        "ServerApp.port_retries": 0,
        "ServerApp.open_browser": False,
        "ServerApp.allow_root": True,
        "ServerApp.root_dir": folder,
        "MultiKernelManager.default_kernel_name": "python3",
        "IdentityProvider.token": "",
        "LabApp.check_for_updates_class": "jupyterlab.NeverCheckForUpdate",
        "LabApp.news_url": "",
    }
    log = (folder.parent / f"{folder.name}.log").open("w")
    command = [sys.executable, "-m", "jupyterlab", *(f"--{name}={value}" for name, value in options.items())]
    server = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT, cwd=folder)
    base = f"http://127.0.0.1:{port}/"
    try:
        end = time.monotonic() + SECONDS
        while True:
            try:
                urllib.request.urlopen(base + "api/status", timeout=5)
                break
            except (urllib.error.URLError, OSError):
                assert server.poll() is None, Path(log.name).read_text()[-2000:]
                assert time.monotonic() < end, "JupyterLab does not answer"
                time.sleep(0.3)
        yield base
    finally:
        server.terminate()
        try:
            server.wait(20)
        except subprocess.TimeoutExpired:
            server.kill()
        log.close()
        Path(log.name).unlink(missing_ok=True)


def browser_path() -> str:
    """Where the browser of the system is."""
    for name in ("chromium", "chromium-browser", "google-chrome", "chromium-headless-shell"):
        if found := shutil.which(name):
            return found
    raise SystemExit("this needs Chromium: apt-get install chromium")


def colours(shot: bytes) -> int:
    """How many colours a picture has."""
    pixels = np.asarray(Image.open(io.BytesIO(shot)).convert("RGB")).reshape(-1, 3)
    return len(np.unique(pixels, axis=0))


def until(page: Page, frame: FrameLocator, expression: str) -> None:
    """Wait until something is true inside the explorer's frame."""
    end = time.monotonic() + SECONDS
    while not frame.locator("body").evaluate(f"() => {expression}"):
        assert time.monotonic() < end, f"never true: {expression}"
        page.wait_for_timeout(200)


def look(page: Page, base: str, picture: Path) -> dict[str, object]:
    """Run the notebook, and say what was seen."""
    page.goto(f"{base}lab/tree/run.ipynb?reset")
    page.wait_for_selector(".jp-Notebook .jp-Cell")
    # It may ask which kernel, and whether to fetch news; and the list of files makes room.
    idle, asked = page.locator(".jp-StatusBar-TextItem >> text=Idle"), page.locator(".jp-Dialog button.jp-mod-accept")
    asked.or_(idle).first.wait_for()
    page.wait_for_timeout(2000)
    if asked.is_visible():
        asked.click()
    idle.wait_for()
    news = page.get_by_role("button", name="No", exact=True)
    if news.is_visible():
        news.click()
    page.keyboard.press("Control+b")
    page.click("li.lm-MenuBar-item >> text=Run")
    page.click("li[data-command='runmenu:run-all']")
    frame = page.frame_locator("iframe[title='Sightline explorer']")
    frame.locator(".app:not(.empty) .head canvas").first.wait_for(state="attached")
    until(page, frame, "document.querySelector('.sentence .weight')?.textContent === '0.814'")
    until(page, frame, "[...document.querySelectorAll('.mapview .badge')].every((badge) => badge.hidden)")
    drawn = colours(frame.locator(".centre-map .surface").screenshot())
    sentence = frame.locator(".sentence .link").inner_text()
    heads = frame.locator(".head").count()
    page.locator("iframe[title='Sightline explorer']").scroll_into_view_if_needed()
    page.mouse.move(5, 5)
    page.wait_for_timeout(500)
    page.screenshot(path=picture)
    static = page.locator(".jp-OutputArea figure img")
    static.first.scroll_into_view_if_needed()
    apart = page.evaluate(
        """() => {
            const boxes = [...document.querySelectorAll('.jp-OutputArea figure img')].slice(0, 3)
                .map((one) => one.getBoundingClientRect());
            return boxes[1].left - boxes[0].right;
        }"""
    )
    return {"sentence": sentence, "colours": drawn, "heads": heads, "static": static.count(), "apart": apart}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--picture", type=Path, default=RESULTS.parents[1] / "docs" / "images" / "notebook.png")
    given = parser.parse_args()
    start = time.monotonic()
    with tempfile.TemporaryDirectory() as place, sync_playwright() as playwright:
        folder = Path(place)
        notebook(folder / "run.ipynb")
        with jupyterlab(folder) as base:
            browser = playwright.chromium.launch(executable_path=browser_path(), args=["--no-sandbox"])
            page = browser.new_page(viewport={"width": 1440, "height": 900})
            page.set_default_timeout(SECONDS * 1000)
            errors: list[str] = []
            page.on("pageerror", lambda error: errors.append(str(error)))
            try:
                seen = look(page, base, given.picture)
            except BaseException:
                page.screenshot(path=Path(tempfile.gettempdir()) / "notebook-failed.png")
                raise
            chromium = browser.version
            browser.close()
    assert seen["sentence"] == "they (10) looks at kids (2): 0.814", seen
    assert seen["colours"] > 20, "the map is drawn"  # type: ignore[operator]
    assert seen["heads"] == 72, seen
    assert seen["static"] == 72, "the static picture has every head"
    assert seen["apart"] >= 8, "and its heads stand apart"  # type: ignore[operator]
    assert not errors, errors
    assert given.picture.stat().st_size < LARGEST, "the picture is too large"
    about = {name: version(name) for name in PACKAGES} | {"chromium": chromium}
    result = {**seen, "seconds": round(time.monotonic() - start)}
    written = {"machine": machine() | about, "command": "make notebook-test", "results": [result]}
    (RESULTS / "notebook-cpu.json").write_text(json.dumps(written, indent=1) + "\n")
    print(", ".join(f"{name} {value}" for name, value in (*about.items(), *result.items())))


if __name__ == "__main__":
    main()
