"""What an account of attention costs beside attention itself.

    python benchmarks/lens.py [--out FOLDER] [--million]

Figures: `sl.observe` with growing sets of statistics as a multiple of the best plain forward pass, its memory beyond
q, k, v and the output, and beside it eager attention and, on a GPU, FlexAttention with q and k swapped and flash-colsum
(both give column sums only; the second where it is installed). On a CPU also each width of the compiled kernel, and
torch's operations alone.
"""

from __future__ import annotations

import argparse
import math
import os
import time
from pathlib import Path

import torch
import torch.nn.functional as F
from harness import compare, ratio, settle, write

import sightline as sl

GPU = torch.cuda.is_available()
DEVICE, DTYPE = ("cuda", torch.bfloat16) if GPU else ("cpu", torch.float32)
HEADS, DIM = (16, 128) if GPU else (8, 64)
LENGTHS = (16384,) if GPU else (4096,)
PICTURE = sl.Picture(512, 512)
SETS = {
    "received, picture": ("received", PICTURE),
    "+ entropy, max_score, distance": ("received", PICTURE, "entropy", "max_score", "distance"),
}
TOP = {"+ top(8)": (*SETS["+ entropy, max_score, distance"], sl.Top(8))}


def draw(length: int, heads: int = HEADS) -> tuple[torch.Tensor, ...]:
    return tuple(torch.randn(1, heads, length, DIM, device=DEVICE, dtype=DTYPE) for _ in range(3))


def cost() -> list[dict]:
    rows = []
    for length in LENGTHS:
        for causal in (True, False):
            q, k, v = draw(length)
            mask = sl.causal() if causal else None
            runs = {"forward": lambda: F.scaled_dot_product_attention(q, k, v, is_causal=causal)}
            # The best plain forward: on a GPU each of torch's kernels is asked.
            if GPU:
                from torch.nn.attention import SDPBackend, sdpa_kernel

                def by(kernel: SDPBackend) -> object:
                    with sdpa_kernel(kernel):
                        return F.scaled_dot_product_attention(q, k, v, is_causal=causal)

                runs["cudnn"] = lambda: by(SDPBackend.CUDNN_ATTENTION)
                runs["flash"] = lambda: by(SDPBackend.FLASH_ATTENTION)
                runs["flex, swapped (column sums)"] = _flex_swapped(q, k, v, causal)
                runs |= _flash_colsum(q, k, causal)
            sets = SETS | TOP
            runs |= {name: (lambda s=s: sl.observe(q, k, v, mask=mask, stats=s)) for name, s in sets.items()}
            if not GPU:
                runs |= _widths(q, k, v, mask)
            if length <= 4096:
                runs["eager, with its map"] = lambda: _eager(q, k, v, causal)
            settle(runs["received, picture"])
            result = compare(runs, repeats=15)
            best = min((n for n in ("forward", "cudnn", "flash") if n in result), key=lambda n: result[n]["median_ms"])
            for name in runs:
                rows.append(
                    {"call": name, "tokens": length, "causal": causal, "of_best_forward": ratio(result, name, best)}
                    | result[name]
                )
                print(
                    f"{name:32} {length:6} {'causal' if causal else 'full':7} {rows[-1]['of_best_forward']:.3f}",
                    flush=True,
                )
    return rows


def _flex_swapped(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, causal: bool) -> object:
    from torch.nn.attention.flex_attention import AuxRequest, create_block_mask, flex_attention

    flex = torch.compile(flex_attention, dynamic=False)
    length = q.shape[-2]
    lse = sl.observe(q, k, v, mask=sl.causal() if causal else None)[1].lse
    blocks = None
    if causal:
        blocks = create_block_mask(lambda b, h, i, j: j >= i, None, None, length, length, device=DEVICE)
    return lambda: flex(
        k, q, q, score_mod=lambda s, b, h, i, j: s - lse[b, h, j], block_mask=blocks, return_aux=AuxRequest(lse=True)
    )


def _widths(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mask: sl.Mask | None) -> dict[str, object]:
    """All statistics but top, by the kernel for 4, 8 and 16 numbers at once, and by torch's operations alone."""
    from sightline.kernels.native import tile as native_tile
    from sightline.kernels.native.build import LANES

    stats = SETS["+ entropy, max_score, distance"]

    def by(name: str, value: str) -> object:
        os.environ[name] = value
        native_tile.found.cache_clear()
        try:
            return sl.observe(q, k, v, mask=mask, stats=stats)
        finally:
            del os.environ[name]
            native_tile.found.cache_clear()

    runs = {f"compiled for {n} numbers": (lambda n=n: by("SIGHTLINE_LANES", str(n))) for n in LANES}
    return runs | {"torch's operations": lambda: by("SIGHTLINE_COMPILE", "0")}


def _flash_colsum(q: torch.Tensor, k: torch.Tensor, causal: bool) -> dict[str, object]:
    try:
        from flash_colsum import flash_colsum
    except ImportError:
        return {}
    return {"flash-colsum (column sums)": lambda: flash_colsum(q, k, is_causal=causal)}


def _eager(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, causal: bool) -> tuple[torch.Tensor, torch.Tensor]:
    scores = q @ k.mT / math.sqrt(DIM)
    if causal:
        hidden = torch.ones(q.shape[-2], k.shape[-2], dtype=torch.bool, device=DEVICE).triu(1)
        scores = scores.masked_fill(hidden, -torch.inf)
    weights = scores.softmax(-1)
    return weights @ v, weights.sum(-2)


def memory() -> list[dict]:
    """MiB beyond q, k, v and the output."""
    q, k, v = draw(65536, 16)
    stats = SETS["+ entropy, max_score, distance"]
    sl.observe(q, k, v, mask=sl.causal(), stats=stats)
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    out, _ = sl.observe(q, k, v, mask=sl.causal(), stats=stats)
    extra = (torch.cuda.max_memory_allocated() - before - out.numel() * out.element_size()) / 2**20
    print(f"memory beyond q, k, v and output at 65,536 tokens, 16 heads: {extra:.0f} MiB", flush=True)
    return [{"call": "memory", "tokens": 65536, "mebibytes": extra}]


def million() -> list[dict]:
    """One layer of 1,048,576 tokens, causal: output, all statistics but top, 1,024 x 1,024 pictures; then once more.

    Strides beyond 32 bits are kernels of their own, which the first call compiles.
    """
    q, k, v = draw(1 << 20, 16)
    stats = ("received", "entropy", "max_score", "distance", sl.Picture(1024, 1024))
    spent = []
    for _ in range(2):
        torch.cuda.synchronize()
        start = time.perf_counter()
        _, sight = sl.observe(q, k, v, mask=sl.causal(), stats=stats)
        torch.cuda.synchronize()
        spent.append(time.perf_counter() - start)
    first, seconds = spent
    error = (sight.received().double().sum(-1) - (1 << 20)).abs().max().item()
    print(f"one layer of 1,048,576 tokens: {first:.1f}, {seconds:.1f} s (received off by {error:.3f})", flush=True)
    row = {"call": "one layer", "tokens": 1 << 20, "seconds": seconds, "first_seconds": first, "received_error": error}
    return [row]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, help="where to write the results")
    parser.add_argument("--million", action="store_true", help="one layer of a million tokens too (a GPU)")
    options = parser.parse_args()
    torch.manual_seed(0)
    rows = cost()
    if GPU:
        rows += memory()
        if options.million:
            rows += million()
    print("written:", write("lens", rows, options.out))


if __name__ == "__main__":
    main()
