"""`sl.nn` beside torch.nn with the same weights: the encoder, one attention layer, and one with its account.

    python benchmarks/modules.py [--out FOLDER]

Figures: an encoder's forward pass, with and without gradients, and a step of training, as a multiple of
torch.nn.TransformerEncoder's; multi-head attention beside torch.nn.MultiheadAttention; and what it costs to see the
attention: `observe` with every statistic and a picture beside `need_weights=True`, which returns the map. A module is
many short calls: on a GPU the time is that of one after the other, the host's included.
"""

from __future__ import annotations

import argparse
import copy
from collections.abc import Callable
from pathlib import Path

import torch
from harness import QUICK, compare, ratio, willing, write
from torch import nn

import sightline as sl

GPU = torch.cuda.is_available()
DEVICE, DTYPE = ("cuda", torch.bfloat16) if GPU else ("cpu", torch.float32)
WIDTH, HEADS, LAYERS = (128, 4, 2) if QUICK else (1024, 16, 6) if GPU else (512, 8, 3)
SIZES = ((2, 64),) if QUICK else ((8, 512), (4, 4096)) if GPU else ((4, 128), (1, 512))
LENGTHS = (256,) if QUICK else (2048, 8192) if GPU else (512, 2048)
STATS = ("received", "entropy", "max_score", "distance", sl.Picture(256, 256))


def pair() -> tuple[nn.Module, nn.Module]:
    """A torch encoder as most are made, and ours with its weights."""
    layer = nn.TransformerEncoderLayer(
        WIDTH, HEADS, 4 * WIDTH, dropout=0.0, activation="gelu", batch_first=True, norm_first=False
    )
    theirs = nn.TransformerEncoder(layer, LAYERS).to(DEVICE, DTYPE).eval()
    return theirs, sl.nn.Encoder.from_torch(theirs)


def encoder() -> list[dict]:
    theirs, ours = pair()
    rows = []
    for batch, time in SIZES:
        x = torch.randn(batch, time, WIDTH, device=DEVICE, dtype=DTYPE)
        with torch.no_grad():
            gap = (theirs(x) - ours(x)).float().abs().mean().item()
        if gap > (2e-2 if GPU else 1e-5):  # bf16 rounds anew in every layer
            raise SystemExit(f"the two encoders do not give the same: {gap}")
        for call, run in {
            "encoder, no gradients": _without_gradients,
            "encoder, forward": lambda module, x: module(x),
            "encoder, forward + backward": lambda module, x: module(x).sum().backward(),
        }.items():
            runs = {"torch": lambda: run(theirs, x), "sightline": lambda: run(ours, x)}
            result = compare(runs, repeats=21 if GPU else 15, in_a_row=True)
            rows.append(_row(call, batch, time, result))
            for module in (theirs, ours):
                module.zero_grad(set_to_none=True)
    return rows


def attention() -> list[dict]:
    rows = []
    theirs = nn.MultiheadAttention(WIDTH, HEADS, batch_first=True).to(DEVICE, DTYPE).eval()
    ours = sl.nn.MultiHeadAttention.from_torch(copy.deepcopy(theirs))
    for time in LENGTHS:
        x = torch.randn(1, time, WIDTH, device=DEVICE, dtype=DTYPE)
        plain: dict[str, Callable[[], object]] = {
            "torch": lambda: theirs(x, x, x, need_weights=False),
            "sightline": lambda: ours(x),
        }
        seen: dict[str, Callable[[], object]] = {
            "torch": lambda: theirs(x, x, x, need_weights=True, average_attn_weights=False),
            "sightline": lambda: ours.observe(x, stats=STATS),
        }
        with torch.no_grad():
            for call, runs in (("attention layer", plain), ("attention layer, seen", seen)):
                able, refused = willing(runs)
                if refused:
                    rows.append({"call": call, "batch": 1, "tokens": time, "refused": refused})
                    continue
                rows.append(_row(call, 1, time, compare(able, repeats=21 if GPU else 15, in_a_row=True)))
    return rows


def _without_gradients(module: nn.Module, x: torch.Tensor) -> torch.Tensor:
    with torch.no_grad():
        return module(x)


def _row(call: str, batch: int, time: int, result: dict[str, dict]) -> dict:
    row = {"call": call, "batch": batch, "tokens": time, "ratio": ratio(result, "sightline", "torch"), **result}
    print(f"{call:32} {batch} x {time:5}   sightline / torch = {row['ratio']:.3f}", flush=True)
    return row


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, help="where to write the results")
    options = parser.parse_args()
    torch.manual_seed(0)
    print("written:", write("modules", encoder() + attention(), options.out))


if __name__ == "__main__":
    main()
