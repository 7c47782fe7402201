"""`sl.attention` beside torch's SDPA for the same call, and what structure in a mask saves.

    python benchmarks/attention.py [--out FOLDER] [--parts same,overhead,windows,everybody,grouped]

Figures: the ratio to SDPA at 512 tokens and more, the overhead of a call at 16 tokens, how the cost of a window over a
long context grows with the window, one call (forward, forward + backward, one token at the end of a cache) by
everybody: each of torch's kernels, FlexAttention, eager, and x-transformers if it is installed; and one token at the
end of a cache of which several heads share keys, as in most of today's models.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path

import torch
import torch.nn.functional as F
from harness import QUICK, compare, kept, pooled, ratio, settle, willing, write
from torch.nn.attention import SDPBackend, sdpa_kernel

import sightline as sl

GPU = torch.cuda.is_available()
DEVICE, DTYPE = ("cuda", torch.bfloat16) if GPU else ("cpu", torch.float32)
LENGTHS = (512,) if QUICK else (2048, 8192, 16384) if GPU else (512, 1024, 2048, 4096)
# Of the call that everybody makes: tokens, tokens in the cache, heads, dim.
COMMON = (512, 1024, 8, 64) if QUICK else (16384, 131072, 16, 128) if GPU else (2048, 8192, 8, 64)
KERNELS = {"cuDNN": "CUDNN_ATTENTION", "flash": "FLASH_ATTENTION", "efficient": "EFFICIENT_ATTENTION", "math": "MATH"}
TORCH = ("torch SDPA", *(f"torch SDPA, {name}" for name in KERNELS))


def draw(length: int, heads: int = 8, dim: int = 64, batch: int = 1) -> tuple[torch.Tensor, ...]:
    return tuple(torch.randn(batch, heads, length, dim, device=DEVICE, dtype=DTYPE) for _ in range(3))


def same_call() -> list[dict]:
    """Calls that SDPA can express, forward and forward + backward."""
    rows = []
    # Where tensors lie in memory makes some hundredths of a short call on the CPU: they are drawn several times.
    draws = 1 if GPU or QUICK else 4
    for length in LENGTHS:
        repeats = max(12, min(256, 131072 // length)) // draws
        for name in _calls(length):
            settle(_calls(length)[name]["sightline"])
            result = pooled(compare(_calls(length)[name], repeats=repeats) for _ in range(draws))
            rows.append({"call": name, "tokens": length, "ratio": ratio(result, "sightline", "torch"), **result})
            print(f"{name:40} {length:6} tokens   sightline / torch = {rows[-1]['ratio']:.3f}", flush=True)
    return rows


def _calls(length: int) -> dict[str, dict[str, Callable[[], object]]]:
    """Calls by torch and by Sightline, on tensors drawn anew."""
    q, k, v = draw(length)
    table = torch.rand(length, length, device=DEVICE) > 0.3
    window = sl.window(256).to_dense(length, length, DEVICE)
    few = k[:, ::4], v[:, ::4]
    lengths = torch.tensor([length - 7], device=DEVICE)
    padding, causal, narrow = sl.padding(lengths), sl.causal(), sl.window(256)
    real = (torch.arange(length, device=DEVICE) < lengths[:, None])[:, None, None]
    pairs: dict[str, tuple[Callable[[], object], Callable[[], object]]] = {
        "plain": (lambda: F.scaled_dot_product_attention(q, k, v), lambda: sl.attention(q, k, v)),
        "causal": (
            lambda: F.scaled_dot_product_attention(q, k, v, is_causal=True),
            lambda: sl.attention(q, k, v, mask=causal),
        ),
        "dense mask": (
            lambda: F.scaled_dot_product_attention(q, k, v, attn_mask=table),
            lambda: sl.attention(q, k, v, mask=table),
        ),
        "padding": (
            lambda: F.scaled_dot_product_attention(q, k, v, attn_mask=real),
            lambda: sl.attention(q, k, v, mask=padding),
        ),
        "grouped heads": (
            lambda: F.scaled_dot_product_attention(q, *few, enable_gqa=True),
            lambda: sl.attention(q, *few),
        ),
        "window of 256 (torch: written out)": (
            lambda: F.scaled_dot_product_attention(q, k, v, attn_mask=window),
            lambda: sl.attention(q, k, v, mask=narrow),
        ),
        "causal, forward + backward": (
            lambda: _train(lambda a, b, c: F.scaled_dot_product_attention(a, b, c, is_causal=True), q, k, v),
            lambda: _train(lambda a, b, c: sl.attention(a, b, c, mask=sl.causal()), q, k, v),
        ),
    }
    return {name: {"torch": theirs, "sightline": ours} for name, (theirs, ours) in pairs.items()}


def _train(run: Callable[..., torch.Tensor], *tensors: torch.Tensor) -> None:
    leaves = [t.detach().requires_grad_() for t in tensors]
    run(*leaves).sum().backward()


def overhead() -> list[dict]:
    """Microseconds that a call costs beyond SDPA's at 16 tokens; on a GPU it is the host's time that counts there."""
    q, k, v = draw(16)
    mask, rows = sl.causal(), []
    calls = {
        "plain": (lambda: F.scaled_dot_product_attention(q, k, v), lambda: sl.attention(q, k, v)),
        "causal": (
            lambda: F.scaled_dot_product_attention(q, k, v, is_causal=True),
            lambda: sl.attention(q, k, v, mask=mask),
        ),
    }
    for name, (theirs, ours) in calls.items():
        both = {"torch": theirs, "sightline": ours}
        many = {label: (lambda f=f: [f() for _ in range(500)]) for label, f in both.items()}
        result = compare(many, repeats=21, in_a_row=True)
        each = {label: result[label]["median_ms"] * 2 for label in many}  # microseconds
        extra = each["sightline"] - each["torch"]
        rows.append({"call": f"overhead, {name}", "tokens": 16, "microseconds": extra, "each": each, **result})
        print(f"overhead of a call at 16 tokens, {name}: {extra:.1f} microseconds", flush=True)
    return rows


def windows() -> list[dict]:
    """A window over 16,384 tokens costs in proportion to the window, not to the square of the context."""
    length, rows = 2048 if QUICK else 16384, []
    q, k, v = draw(length)
    calls = {f"window {w}": (lambda w=w: sl.attention(q, k, v, mask=sl.window(w))) for w in (256, 1024, 4096)}
    calls["causal"] = lambda: sl.attention(q, k, v, mask=sl.causal())
    calls["window 1024, soft-cap (tiles)"] = lambda: sl.attention(q, k, v, mask=sl.window(1024), softcap=30.0)
    result = compare(calls, repeats=2, warmups=1)
    for name in calls:
        rows.append({"call": name, "tokens": length, "of_causal": ratio(result, name, "causal"), **result[name]})
        print(f"{name:40} {length:6} tokens   {rows[-1]['of_causal']:.3f} of the causal pass", flush=True)
    return rows


def everybody() -> list[dict]:
    """One causal call by all who can make it, as a multiple of the best of torch's own kernels."""
    length, cached, heads, dim = COMMON
    rows = []
    for call, queries, keys in (
        ("forward", length, length),
        ("forward + backward", length, length),
        ("decoding", 1, cached),
    ):
        q, (k, v) = draw(queries, heads, dim)[0], draw(keys, heads, dim)[1:]
        runs = {name: (lambda f=f: f(q, k, v)) for name, f in _functions(queries, keys, dim).items()}
        if call == "forward + backward":
            runs = {name: (lambda f=f: _train(f, q, k, v)) for name, f in _functions(queries, keys, dim).items()}
        able, refused = willing(runs)
        # The best of several is the luckiest too: enough rounds that luck does not count.
        for run in able.values():
            settle(run)
        result = compare(able, repeats=21 if GPU else 61 if call == "decoding" else 41)
        best = min((name for name in TORCH if name in result), key=lambda name: result[name]["median_ms"])
        about = {"call": f"everybody, {call}", "tokens": keys, "best": best}
        for name in runs:
            row = about | {"candidate": name}
            if name in refused:
                row["refused"] = refused[name]
            else:
                row |= {"of_best_torch": ratio(result, name, best)} | result[name]
            rows.append(row)
            figure = (
                "refused: " + refused[name] if name in refused else f"{row['of_best_torch']:.3f} of the best of torch"
            )
            print(f"{call:20} {name:28} {keys:6} tokens   {figure}", flush=True)
    return rows


def _functions(queries: int, keys: int, dim: int) -> dict[str, Callable[..., torch.Tensor]]:
    """The same causal call, aligned at the end, for everybody; a single query sees all keys."""
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention

    square = queries == keys
    mask = sl.causal() if square else None
    hidden = torch.ones(queries, keys, dtype=torch.bool, device=DEVICE).triu(1) if square and keys <= 16384 else None

    def eager(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        scores = q @ k.mT / math.sqrt(dim)
        return (scores if hidden is None else scores.masked_fill(hidden, -torch.inf)).softmax(-1) @ v

    def by(kernel: str) -> Callable[..., torch.Tensor]:
        def run(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
            with sdpa_kernel(getattr(SDPBackend, kernel)):
                return F.scaled_dot_product_attention(q, k, v, is_causal=square)

        return run

    blocks = create_block_mask(lambda b, h, i, j: i >= j, None, None, queries, keys, device=DEVICE) if square else None
    flex = torch.compile(flex_attention, dynamic=False)
    found: dict[str, Callable[..., torch.Tensor]] = {
        "sightline": lambda q, k, v: sl.attention(q, k, v, mask=mask),
        "torch SDPA": lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=square),
        **{f"torch SDPA, {name}": by(kernel) for name, kernel in KERNELS.items()},
        "FlexAttention, compiled": lambda q, k, v: flex(q, k, v, block_mask=blocks),
        "eager": eager,
    }
    if find_spec("x_transformers"):
        from x_transformers.attend import Attend

        plain, flash = Attend(causal=square), Attend(causal=square, flash=True)
        found["x-transformers"] = lambda q, k, v: plain(q, k, v)[0]
        found["x-transformers, flash"] = lambda q, k, v: flash(q, k, v)[0]
    return found


def grouped() -> list[dict]:
    """One token at the end of a cache in the shape of Llama-3-8B's: 32 heads over 8."""
    keys, rows = 1024 if QUICK else 131072 if GPU else 8192, []
    for dtype in (torch.bfloat16,) if GPU else (torch.float32, torch.bfloat16):
        q = torch.randn(1, 32, 1, 128, device=DEVICE, dtype=dtype)
        k, v = (torch.randn(1, 8, keys, 128, device=DEVICE, dtype=dtype) for _ in range(2))
        runs = {
            "sightline": lambda q, k, v: sl.attention(q, k, v, mask=sl.causal()),
            "torch SDPA, grouped": lambda q, k, v: F.scaled_dot_product_attention(q, k, v, enable_gqa=True),
            "torch SDPA, keys repeated": lambda q, k, v: F.scaled_dot_product_attention(q, *_repeated(k, v)),
            "eager": lambda q, k, v: (q @ (repeat := _repeated(k, v))[0].mT / math.sqrt(128)).softmax(-1) @ repeat[1],
        }
        calls = {name: (lambda f=f, t=(q, k, v): f(*t)) for name, f in runs.items()}
        for run in calls.values():
            settle(run)
        result = compare(calls, repeats=21)
        best = min((name for name in runs if name.startswith("torch")), key=lambda name: result[name]["median_ms"])
        precision = str(dtype).removeprefix("torch.")
        for name in runs:
            row = {"call": f"decoding with grouped heads, {precision}", "tokens": keys, "candidate": name, "best": best}
            rows.append(row | {"of_best_torch": ratio(result, name, best)} | result[name])
            print(f"{row['call']:44} {name:28} {rows[-1]['of_best_torch']:.3f} of the best of torch", flush=True)
    return rows


def _repeated(k: torch.Tensor, v: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    return k.repeat_interleave(4, 1), v.repeat_interleave(4, 1)


PARTS = {"same": same_call, "overhead": overhead, "windows": windows, "everybody": everybody, "grouped": grouped}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, help="where to write the results")
    parser.add_argument("--parts", default=",".join(PARTS), help="what to measure; the rest stays as it was")
    options = parser.parse_args()
    torch.manual_seed(0)
    chosen = options.parts.split(",")
    rows = [{"part": name, **row} for name in chosen for row in PARTS[name]()]
    print("written:", write("attention", kept("attention", "part", chosen, options.out) + rows, options.out))


if __name__ == "__main__":
    main()
