"""Lengths as texts have them: what a call costs at a length that was never seen, and at odd ones.

    python benchmarks/lengths.py [--out FOLDER]

Three parts. Texts: `sl.attention` over texts of random lengths, each new, in one layer and in 32, beside torch's own
attention, each in a process of its own. Account: `sl.observe` at round and odd lengths, warm, as a multiple of the best
plain forward pass. Unseen: calls of random lengths under every kind of mask with several sets of statistics, the first
of each length beside the same call once more, and its memory; what is compiled for a kind of call is compiled before.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch
import torch.nn.functional as F
from harness import QUICK, compare, ratio, settle, write

import sightline as sl

GPU = torch.cuda.is_available()
DEVICE, DTYPE = ("cuda", torch.bfloat16) if GPU else ("cpu", torch.float32)
HEADS, DIM = (16, 128) if GPU else (8, 64)
TEXTS, LONGEST = (100, 8192) if GPU else (20, 1024)
# Each odd length beside a round one.
LENGTHS = ((768, 777), (1216, 1201), (4992, 5003), (16384, 16381)) if GPU else ((768, 777), (1216, 1201))
PICTURE = sl.Picture(512, 512)
SETS = {
    "received": ("received",),
    "received, picture": ("received", PICTURE),
    "+ entropy, max_score, distance": ("received", PICTURE, "entropy", "max_score", "distance"),
    "+ top(8)": ("received", PICTURE, "entropy", "max_score", "distance", sl.Top(8)),
}
MASKS = {
    "none": lambda n: None,
    "causal": lambda n: sl.causal(),
    "window": lambda n: sl.window(256),
    "prefix": lambda n: sl.prefix(100),
    "padding": lambda n: sl.causal() & sl.padding([max(1, n - 77)]),
    "documents": lambda n: sl.causal() & sl.documents(torch.arange(n, device=DEVICE) // 700),
}


def draw(length: int, heads: int = HEADS) -> list[torch.Tensor]:
    return [torch.randn(1, heads, length, DIM, device=DEVICE, dtype=DTYPE) for _ in range(3)]


def clock(run: Callable[[], object]) -> float:
    """Milliseconds that one waits for a call."""
    if GPU:
        torch.cuda.synchronize()
    before = time.perf_counter()
    run()
    if GPU:
        torch.cuda.synchronize()
    return (time.perf_counter() - before) * 1e3


def one_by_one(who: str, layers: int) -> float:
    """Seconds for texts of random lengths, each of them new to the process."""
    lengths = random.Random(layers).sample(range(16, LONGEST), TEXTS)
    attend = {
        "sightline": lambda q, k, v: sl.attention(q, k, v, mask=sl.causal()),
        "torch": lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=True),
    }[who]
    attend(*draw(LONGEST))  # starts the device, and loads what there is to be loaded
    total = 0.0
    for length in lengths:
        q, k, v = draw(length)

        def run(q: torch.Tensor = q, k: torch.Tensor = k, v: torch.Tensor = v) -> None:
            for _ in range(layers):
                attend(q, k, v)

        total += clock(run)
    return total / 1e3


def texts() -> list[dict]:
    rows = []
    for layers in (1, 32):
        seconds = {}
        for who in ("torch", "sightline"):
            command = [sys.executable, __file__, "--one", who, "--layers", str(layers)]
            seconds[who] = json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
        rows.append({"part": "texts", "layers": layers, "texts": TEXTS, "longest": LONGEST} | seconds)
        rows[-1]["of_torch"] = seconds["sightline"] / seconds["torch"]
        print(f"{TEXTS} texts, {layers:2} layers: {rows[-1]['of_torch']:.3f} of torch", flush=True)
    return rows


def account() -> list[dict]:
    rows = []
    for pair in LENGTHS:
        for causal in (True, False):
            found: dict[int, dict[str, float]] = {}
            for length in pair:
                q, k, v = draw(length)
                runs = {"forward": lambda q=q, k=k, v=v: F.scaled_dot_product_attention(q, k, v, is_causal=causal)}
                for name, stats in SETS.items():
                    runs[name] = lambda q=q, k=k, v=v, stats=stats: sl.observe(
                        q, k, v, mask=sl.causal() if causal else None, stats=stats
                    )
                settle(runs["received"])
                result = compare(runs, repeats=9)
                found[length] = {name: ratio(result, name, "forward") for name in SETS}
            for name in SETS:
                of_round, of_odd = (found[length][name] for length in pair)
                rows.append(
                    {"part": "account", "call": name, "round": pair[0], "odd": pair[1], "causal": causal}
                    | {"round_of_forward": of_round, "odd_of_forward": of_odd, "odd_of_round": of_odd / of_round}
                )
                kind = "causal" if causal else "full"
                print(f"{name:32} {pair[1]:6} {kind:7} {of_odd:7.3f} ({pair[0]}: {of_round:.3f})", flush=True)
    return rows


def unseen() -> list[dict]:
    """Every kind of mask and set of statistics, at lengths that come once."""
    rows = []
    longest, each = (20000, 6) if GPU else (2000, 3)
    lengths = iter(random.Random(7).sample(range(1, longest), len(MASKS) * len(SETS) * each))
    for mask_name, mask in MASKS.items():
        for name, stats in SETS.items():
            for length in (3001, 40):
                sl.observe(*draw(length, 8), mask=mask(length), stats=stats)  # compiles
            beyond, first, warm, memory = [], [], [], []
            for _ in range(1 if QUICK else each):
                length = next(lengths)
                q, k, v = draw(length, 8)
                rule = mask(length)

                def run(q: torch.Tensor = q, k: torch.Tensor = k, v: torch.Tensor = v, rule=rule, stats=stats) -> None:
                    sl.observe(q, k, v, mask=rule, stats=stats)

                if GPU:
                    torch.cuda.reset_peak_memory_stats()
                    before = torch.cuda.memory_allocated()
                once = clock(run)
                if GPU:
                    memory.append((torch.cuda.max_memory_allocated() - before) / length / 8)
                again = statistics.median(clock(run) for _ in range(3))
                beyond.append(once - 1.3 * again)
                first.append(once)
                warm.append(again)
            rows.append(
                {"part": "unseen", "mask": mask_name, "call": name, "lengths": len(beyond), "longest": longest}
                | {"first_ms": statistics.median(first), "warm_ms": statistics.median(warm)}
                | {"worst_beyond_ms": max(beyond), "bytes_per_token_and_head": max(memory, default=None)}
            )
            print(f"{mask_name:10} {name:32} at worst {max(beyond):6.1f} ms beyond 1.3 of warm", flush=True)
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path)
    parser.add_argument("--one", choices=["torch", "sightline"])
    parser.add_argument("--layers", type=int, default=1)
    given = parser.parse_args()
    if given.one:
        print(json.dumps(one_by_one(given.one, given.layers)))
        return
    rows: list[dict] = []
    with torch.inference_mode():
        for part in (texts, account, unseen):
            rows += part()
            write("lengths", rows, given.out)


if __name__ == "__main__":
    main()
