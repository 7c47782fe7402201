"""How cost grows with the context: time and memory of attention, of its account, and of eager attention with its map.

    python benchmarks/growth.py [--out FOLDER] [--longest N]

Causal. On the CPU 2 heads of 64 in float32, 256 to 65,536 tokens; on a GPU 16 heads of 128 in bf16, to 1,048,576. The
account is lse, entropy, max_score, distance, received and a picture. Memory is what a call takes at its peak beyond
q, k, v and its output. Eager attention goes on until its map no longer fits. An exponent is the slope of a straight
line through the last points in logarithms: 1 is linear, 2 is the square.
"""

from __future__ import annotations

import argparse
import ctypes
import math
import time
from collections.abc import Callable
from pathlib import Path

import torch
import torch.nn.functional as F
from harness import QUICK, compare, summary, write

import sightline as sl

GPU = torch.cuda.is_available()
DEVICE, DTYPE = ("cuda", torch.bfloat16) if GPU else ("cpu", torch.float32)
HEADS, DIM = (16, 128) if GPU else (2, 64)
LONGEST = 2048 if QUICK else 1 << 20 if GPU else 1 << 16
STATS = ("entropy", "max_score", "distance", "received", sl.Picture(512, 512))
MIB = 2**20
LONG = 4.0  # seconds from which a call is made once, for time and memory together
LAST = 4  # points that an exponent is fitted to
# Eager attention holds a few tables of queries x keys at once: it stops where one of them would take this much.
EAGER_BYTES = (20 if GPU else 1) * 2**30


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, help="where to write the results")
    parser.add_argument("--longest", type=int, default=LONGEST, help="tokens of the longest context")
    options = parser.parse_args()
    torch.manual_seed(0)
    rows, over = [], set()
    for power in range(8, options.longest.bit_length()):
        tokens = 1 << power
        rows += measure(tokens, over)
    print("written:", write("growth", rows + exponents(rows), options.out))


def measure(tokens: int, over: set[str]) -> list[dict]:
    """All who still can, at one length: rounds while they are quick, once where a call takes many seconds."""
    q, k, v = (torch.randn(1, HEADS, tokens, DIM, device=DEVICE, dtype=DTYPE) for _ in range(3))
    mask = sl.causal()
    runs: dict[str, Callable[[], object]] = {
        "attention": lambda: sl.attention(q, k, v, mask=mask),
        "torch SDPA": lambda: F.scaled_dot_product_attention(q, k, v, is_causal=True),
        "observe": lambda: sl.observe(q, k, v, mask=mask, stats=STATS),
    }
    if HEADS * tokens * tokens * q.element_size() <= EAGER_BYTES and "eager, with its map" not in over:
        runs["eager, with its map"] = lambda: eager(q, k, v)
    long = HEADS * DIM * tokens * tokens / (3e14 if GPU else 2e10)  # seconds, very roughly
    rows, memory, once = [], {}, {}
    for name, run in list(runs.items()):
        try:
            if long <= LONG:
                run()  # a first call has costs of its own
            start = time.perf_counter()
            memory[name] = peak(run, q)
            once[name] = summary([(time.perf_counter() - start) * 1e3])
        except (torch.OutOfMemoryError, MemoryError):
            over.add(name)
            del runs[name]
    slow = long > 0.4
    result = once if long > LONG else compare(runs, 3 if slow else 7, warmups=0 if slow else 1, in_a_row=True)
    for name in runs:
        rows.append({"call": name, "tokens": tokens, "mebibytes": memory[name]} | result[name])
        print(f"{name:20} {tokens:9,} tokens {result[name]['median_ms']:12.3f} ms {memory[name]:10.1f} MiB", flush=True)
    return rows


def eager(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """As it is taught: the map is written out, and given back."""
    tokens = q.shape[-2]
    hidden = torch.ones(tokens, tokens, dtype=torch.bool, device=q.device).triu(1)
    weights = (q @ k.mT / math.sqrt(DIM)).masked_fill(hidden, -torch.inf).softmax(-1)
    return weights @ v, weights


def peak(run: Callable[[], object], q: torch.Tensor) -> float:
    """MiB at the peak of a call beyond what was there and one output."""
    output = q.numel() * q.element_size() / MIB
    if GPU:
        torch.cuda.synchronize()
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        run()
        torch.cuda.synchronize()
        return (torch.cuda.max_memory_allocated() - before) / MIB - output
    # Linux counts the pages of a process, and starts counting anew when told to.
    ctypes.CDLL(None).malloc_trim(0)
    Path("/proc/self/clear_refs").write_text("5")
    resident = _pages("VmRSS")
    run()
    return max(0.0, _pages("VmHWM") - resident - output)


def _pages(what: str) -> float:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) / 1024 for line in lines if line.startswith(f"{what}:"))


def exponents(rows: list[dict]) -> list[dict]:
    """For every call, how time and memory grow over its longest contexts."""
    found = []
    for name in dict.fromkeys(row["call"] for row in rows):
        points = [row for row in rows if row["call"] == name][-LAST:]
        fits = {"time": [row["median_ms"] for row in points], "memory": [row["mebibytes"] for row in points]}
        about = {"call": f"exponent, {name}", "from": points[0]["tokens"], "to": points[-1]["tokens"]}
        for what, values in fits.items():
            about[what] = slope([row["tokens"] for row in points], values)
        found.append(about)
        print(about, flush=True)
    return found


def slope(x: list[int], y: list[float]) -> float | None:
    """The exponent e of y = c * x ** e by least squares in logarithms; None where there is nothing to fit.

    >>> round(slope([256, 512, 1024], [3.0, 12.0, 48.0]), 6)
    2.0
    """
    if len(x) < 2 or min(y) <= 0:
        return None
    a, b = [math.log(value) for value in x], [math.log(value) for value in y]
    mean_a, mean_b = sum(a) / len(a), sum(b) / len(b)
    above = sum((i - mean_a) * (j - mean_b) for i, j in zip(a, b))
    return above / sum((i - mean_a) ** 2 for i in a)


if __name__ == "__main__":
    main()
