"""What edits cost: a rectangle cut beside the unedited run and beside a dense mask; every head replaced, beside one run
for each.

    python benchmarks/edits.py [--device cpu] [--threads 2] [--parts cut,effects] [--out FOLDER]

`cut` is layers of attention in a row, causal, in every one of which `edits.cut` hides a stretch of keys: from the last
queries (a rectangle cut), and from all of them (full height). A dense mask is the same by torch's attention with a
table of queries x keys. `effects` is `sl.effects` of all heads of SmolLM2 on a sentence, and the same by one edited
run for each head, layer by layer in turns, with all that is run once counted to the former; both give the same
numbers, which is checked. All candidates of a line are interleaved in one process. Memory is what a call takes at its
peak beyond what was there and one output.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from pathlib import Path

import torch
import torch.nn.functional as F
from growth import peak
from harness import QUICK, compare, kept, ratio, write
from torch import Tensor, nn

import sightline as sl
from sightline.editing.head_effects import sweep

TEXT = "When Mary and John went to the store, John gave a drink to"
# Tokens, heads, heads of keys, dim, layers; on a GPU the shape of an 8B model.
SHAPES = {"cpu": ((4096, 4, 2, 64, 1), (32768, 1, 1, 32, 1)), "cuda": ((32768, 32, 8, 128, 4), (131072, 32, 8, 128, 4))}
# Beyond these bytes of a table of booleans, which torch makes four times as large, nobody tries a dense mask.
TABLE = {"cpu": 1 << 26, "cuda": 1 << 32}


class Layers(nn.Module):
    """Attention by torch's function, one call after the other."""

    def __init__(self, count: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Attends() for _ in range(count))

    def forward(self, q: Tensor, k: Tensor, v: Tensor, table: Tensor | None = None) -> Tensor:
        for layer in self.layers:
            q = layer(q, k, v, table)
        return q


class Attends(nn.Module):
    """One of them."""

    def forward(self, q: Tensor, k: Tensor, v: Tensor, table: Tensor | None) -> Tensor:
        grouped = q.shape[1] != k.shape[1]
        return F.scaled_dot_product_attention(q, k, v, attn_mask=table, is_causal=table is None, enable_gqa=grouped)


@torch.no_grad()
def cut(device: str) -> list[dict]:
    rows = []
    for tokens, heads, kv_heads, dim, layers in SHAPES[device][: 1 if QUICK else None]:
        dtype = torch.bfloat16 if device == "cuda" else torch.float32
        torch.manual_seed(0)
        q = torch.randn(1, heads, tokens, dim, device=device, dtype=dtype)
        k, v = torch.randn(2, 1, kv_heads, tokens, dim, device=device, dtype=dtype)
        model = Layers(layers)
        keys = slice(tokens // 8, tokens // 4)
        few = sl.Edits()
        few.cut(queries=slice(-tokens // 32, None), keys=keys)
        full = sl.Edits()
        full.cut(keys=keys)

        def edited(edits: sl.Edits, inputs: tuple = (q, k, v), model: nn.Module = model) -> Tensor:
            with sl.edit(model, edits):
                return model(*inputs)

        def dense(inputs: tuple = (q, k, v), model: nn.Module = model, n: int = tokens, keys: slice = keys) -> Tensor:
            table = torch.ones(n, n, dtype=torch.bool, device=device).tril()
            table[keys.stop :, keys] = False
            table[keys, keys] &= torch.eye(keys.stop - keys.start, dtype=torch.bool, device=device)
            return model(*inputs, table)

        runs: dict[str, Callable[[], object]] = {
            "unedited": lambda inputs=(q, k, v), model=model: model(*inputs),
            "a rectangle cut": lambda edits=few: edited(edits),
            "a cut of full height": lambda edits=full: edited(edits),
        }
        if tokens * tokens <= TABLE[device]:
            runs["a dense mask"] = dense
        if device == "cuda" or tokens <= 8192:
            for run in runs.values():
                run()  # a first call has costs of its own
        memory = {name: peak(run, q) for name, run in runs.items()}
        result = compare(runs, 3 if device == "cpu" and tokens > 8192 else 7, 0 if device == "cpu" else 2)
        for name in runs:
            about = {"part": "cut", "call": name, "tokens": tokens, "heads": heads, "layers": layers}
            rows.append(
                about | {"of_unedited": ratio(result, name, "unedited"), "mebibytes": memory[name]} | result[name]
            )
            print(f"{name:22} {tokens:7,} tokens: {rows[-1]['of_unedited']:.3f} of unedited, {memory[name]:.0f} MiB")
    return rows


def effects(device: str) -> list[dict]:
    model, tokenizer = sl.models.load("smollm2")
    model = model.to(device)
    ids = torch.tensor([tokenizer.encode(TEXT).ids], device=device)
    mary, john = (tokenizer.encode(name).ids[0] for name in (" Mary", " John"))
    target = sl.targets.logit(mary, than=john)
    layers, heads = (2, 3) if QUICK else (30, 9)
    times: dict[str, list[float]] = {"effects": [], "one run for each head": []}
    alone = torch.zeros(layers, heads, dtype=torch.float64)
    with torch.no_grad():
        before = target(model(ids))
    clock = time.perf_counter()

    @torch.no_grad()
    def told(done: int, _: int) -> None:
        """After each layer of `effects`: the same heads one by one."""
        nonlocal clock
        layer = done // heads - 1
        if layer < 0:
            return
        times["effects"].append((time.perf_counter() - clock) * 1e3)
        clock = time.perf_counter()
        for head in range(heads):
            with sl.edit(model) as edits:
                edits.ablate(heads=[(layer, head)])
                alone[layer, head] = float(before - target(model(ids)))
        times["one run for each head"].append((time.perf_counter() - clock) * 1e3)
        clock = time.perf_counter()

    pairs = [(i, j) for i in range(layers) for j in range(heads)]
    exact = sweep(model, ids, target, heads=pairs, told=told).exact[0, :layers, :heads]
    apart = float((exact - alone).abs().max())
    assert apart < 1e-3, f"they differ by {apart}"
    totals = {name: sum(spent) for name, spent in times.items()}
    rows = []
    for name, spent in totals.items():
        about = {"part": "effects", "call": name, "tokens": ids.shape[1], "heads": layers * heads}
        share = spent / totals["one run for each head"]
        rows.append(about | {"of_one_by_one": round(share, 3), "seconds": spent / 1e3, "apart": apart})
        print(f"{name:22} {layers * heads} heads: {share:.3f} of one by one, {spent / 1e3:.1f} s")
    return rows


PARTS = {"cut": cut, "effects": effects}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--parts", default=",".join(PARTS))
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    parts = options.parts.split(",")
    rows = kept("edits", "part", parts, options.out)
    for name in parts:
        rows += PARTS[name](options.device)
    write("edits", rows, options.out)


if __name__ == "__main__":
    main()
