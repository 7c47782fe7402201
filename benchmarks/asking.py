"""How long the explorer takes to answer "why", with SmolLM2 and a text of 30 tokens; and a wall of 1,024 heads.

Parts of `benchmarks/explorer.py`: `--parts why,wall`. Beside the seconds that pass stands the time of the processor,
of all threads of the server together: what passes depends on what else the machine does.
"""

from __future__ import annotations

import json
import os
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import torch

from sightline.watching import watch

TEXT = (
    "When Mary and John went to the store on the corner, Mary bought some bread and some milk for the children, "
    "and then John gave a drink to"
)
AIM = {"token": " Mary", "than": " John"}
BUDGET = 2.0
ROUNDS = 5


def processor(pid: int) -> float:
    """Seconds that a process has computed for, all threads together."""
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


class Asked:
    """A server, and how long it takes to answer."""

    def __init__(self, server: Any) -> None:
        self.base, self.pid = server.base, server.process.pid
        self.client = httpx.Client(base_url=server.base, timeout=600)

    def done(self, path: str, body: dict) -> str:
        """Order something, and wait for it."""
        answer = self.client.post(path, json=body)
        assert answer.status_code == 202, answer.text
        id = answer.json()["id"]
        last = None
        with self.client.stream("GET", f"/api/runs/{id}/events") as events:
            for line in events.iter_lines():
                last = json.loads(line[6:]) if line.startswith("data: ") else last
        assert (last or {}).get("state") == "done", last
        return str(id)

    def get(self, path: str, **given: Any) -> httpx.Response:
        answer = self.client.get(path, params=given)
        assert answer.status_code == 200, answer.text
        return answer

    def timed(self, name: str, work: Callable[[int], object], rounds: int = ROUNDS) -> dict:
        """The median over some rounds, each of something that nobody has asked for yet."""
        wall, cpu = [], []
        for i in range(rounds):
            before, began = processor(self.pid), time.perf_counter()
            work(i)
            wall.append(time.perf_counter() - began)
            cpu.append(processor(self.pid) - before)
        return {
            "name": name,
            "seconds": statistics.median(wall),
            "processor_seconds": statistics.median(cpu),
            "every_seconds": wall,
        }


def why(serving: Callable[..., Any]) -> list[dict]:
    """A reading, an edit and what all heads are like, each after the run; and every head taken out once."""
    with serving("--model", "smollm2") as server:
        asked = Asked(server)
        run = asked.done("/api/runs", {"text": TEXT, "model": "smollm2"})
        tokens = asked.get(f"/api/runs/{run}").json()["tokens"]
        assert tokens == 30, tokens
        alike = [
            asked.done("/api/runs", {"text": TEXT.replace("corner", word), "model": "smollm2"})
            for word in ("hill", "river", "square", "road", "bridge")
        ]

        def heads(i: int) -> None:
            asked.get(f"/api/runs/{alike[i]}/portraits")
            assert len(asked.get(f"/api/runs/{alike[i]}/thumbs").content) == 270 * 64 * 64

        def reading(i: int) -> None:
            than = (" John", " the", " him", " her", " them", " his")[i]
            made = asked.done(f"/api/runs/{run}/readings", {"token": " Mary", "than": than})
            asked.get(f"/api/runs/{made}_influence/tiles/23/3/0/0/0/0")

        def edit(i: int) -> None:
            new = asked.done("/api/runs", {"text": TEXT, "model": "smollm2", "edits": [f"ablate:23.{i}"]})
            asked.get(f"/api/runs/{new}/next", **AIM)
            asked.get(f"/api/runs/{new}/tiles/23/3/0/0/0/0")
            asked.client.delete(f"/api/runs/{new}")

        def link(i: int) -> None:
            asked.get(f"/api/runs/{run}/grid", q=29, k=1 + i)

        found = [asked.timed("a wall of 270 heads", heads)]
        for other in alike:
            asked.client.delete(f"/api/runs/{other}")
        reading(5)  # the model's first backward pass takes longer than all others
        found += [
            asked.timed("a reading", reading),
            asked.timed("one edit, run again", edit),
            asked.timed("a link in every head", link),
        ]
        effects = asked.timed(
            "exact effects of 270 heads",
            lambda _: asked.done(f"/api/runs/{run}/effects", AIM),
            rounds=1,
        )
    return [{**row, "tokens": tokens, "budget_seconds": BUDGET} for row in found] + [{**effects, "tokens": tokens}]


class Heads(torch.nn.Module):
    """Nothing but attention with many heads, on q and k that are given."""

    def forward(self, q: torch.Tensor, k: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.scaled_dot_product_attention(q, k, k, is_causal=True)


def many_heads(folder: Path, layers: int = 32, heads: int = 32, tokens: int = 64) -> Path:
    """A saved run of 32 x 32 heads, each of which looks a little further back."""
    torch.manual_seed(0)
    model = torch.nn.ModuleList(Heads() for _ in range(layers))
    place = torch.arange(tokens)[:, None] / torch.tensor([2.0, 5.0, 11.0, 31.0])
    turn = torch.cat([place.cos(), place.sin()], -1)
    stats = ("entropy", "received", "overview", "overview_max", "shares")
    with torch.no_grad(), watch(model, keep_qk=folder, stats=stats) as seen:
        seen.meta.update({"name": "32 x 32 heads", "text": " ".join(f"word{i}" for i in range(tokens))})
        for layer, part in enumerate(model):
            back = torch.stack([turn.roll(1 + (layer * heads + head) % tokens, 0) for head in range(heads)])
            part(3 * torch.randn_like(back) * 0.3 + 4 * back[None], turn.expand(1, heads, tokens, 8).contiguous())
    return folder


def busy(tools: Any) -> float:
    """Seconds for which the page's own thread has computed."""
    found = tools.send("Performance.getMetrics")["metrics"]
    return float(next(one["value"] for one in found if one["name"] == "TaskDuration"))


FRAMES = """() => { window.frames_ = []; let last = performance.now();
  const tick = (now) => { window.frames_.push(now - last); last = now; requestAnimationFrame(tick); };
  requestAnimationFrame(tick); }"""


def wall(serving: Callable[..., Any], browsing: Callable[[], Any], folder: Path) -> list[dict]:
    """All 1,024 heads on one screen: drawn, filtered and scrolled."""
    many_heads(folder)
    with serving(str(folder)) as server, browsing() as browser:
        run = server.run()["id"]
        page = browser.new_page(viewport={"width": 1440, "height": 900})
        page.goto(f"{server.base}#v=2&run={run}")
        page.wait_for_selector(".app:not(.empty) .head canvas", state="attached")
        page.wait_for_timeout(500)
        tools = page.context.new_cdp_session(page)
        tools.send("Performance.enable")
        before, started = busy(tools), time.perf_counter()
        page.click("[data-view=wall]")
        page.locator(".wall-head").nth(1023).wait_for(state="attached")
        page.evaluate("() => new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))")
        drawn, computed = time.perf_counter() - started, busy(tools) - before
        field = page.locator("[aria-label='at least']")
        started = time.perf_counter()
        field.fill("0.5")
        page.locator(".wall-head.out").first.wait_for(state="attached")
        filtered = time.perf_counter() - started
        field.fill("")
        page.evaluate(FRAMES)
        box = page.locator(".wall-head").nth(500).bounding_box() or {"x": 600, "y": 400}
        page.mouse.move(box["x"], min(box["y"], 700))
        for _ in range(20):
            page.mouse.wheel(0, 60)
            page.wait_for_timeout(30)
        frames = page.evaluate("window.frames_")
        page.close()
    return [
        {
            "name": "a wall of 1,024 heads",
            "heads": 1024,
            "drawn_seconds": drawn,
            "processor_seconds": computed,
            "filtered_seconds": filtered,
            "budget_seconds": BUDGET,
            "scroll_frames_a_second_median": 1000 / statistics.median(frames),
            "longest_frame_ms": max(frames),
        }
    ]
