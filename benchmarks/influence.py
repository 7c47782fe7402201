"""What influence costs: rows and heads, strongest edges, pictures and magnitudes, beside what one would do otherwise.

    python benchmarks/influence.py [--part backward edges long] [--threads 2] [--out FOLDER]

`backward` is the backward pass alone, of a graph that stays: to the heads' outputs by torch.autograd.grad, and by
seen.backward; and a run with the model's own backward pass, watched without influence, and with it. `edges` is one call
of `sl.look` with the eight strongest edges of each row, a picture and magnitudes by key, and the same of a call that
has run, as a watch has it, whose output and log-sum-exp are known; beside torch's forward and backward pass of the same
call, and eager attention with its gradients retained, which then still has all that to look up. `long`, on a GPU, runs
131,072 tokens through a model of Llama-3-8B's shape, frozen, with the influence of its last two layers. All are
interleaved. Other tools stand beside it in `peers.py`.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from pathlib import Path

import torch
import torch.nn.functional as F
from harness import compare, kept, ratio, settle, write
from torch import Tensor, nn

import sightline as sl
from sightline.lens.gpu import readings as gpu_readings

GPU = torch.cuda.is_available()
DEVICE = "cuda" if GPU else "cpu"
DTYPE = torch.bfloat16 if GPU else torch.float32
LENGTHS = (4096, 16384) if GPU else (256, 512)
CELLS = {"heads": 16, "dim": 128, "lengths": (4096, 16384)} if GPU else {"heads": 8, "dim": 64, "lengths": (1024, 2048)}
TARGET = sl.targets.logit(7, than=3)
ROWS, EDGES, AFTER = "rows and heads", "strongest edges, picture, magnitudes", ", of a call that has run"
STATS = (
    sl.Top(8, of="influence"),
    sl.Picture(512, 512, of="influence"),
    sl.Received(of="influence", reduce="magnitude"),
)


def model_of() -> nn.Module:
    """A small decoder with a head, and its weights as they are drawn."""
    torch.manual_seed(0)
    return nn.Sequential(sl.nn.Decoder(512, heads=8, layers=6), nn.Linear(512, 4096)).to(DEVICE).eval()


def backward(tokens: int) -> list[dict]:
    """The backward pass alone, without and with what is read at the heads; and a run with the model's own."""
    model, x = model_of(), torch.randn(1, tokens, 512, device=DEVICE)
    taken: list[Tensor] = []
    hooks = [
        layer.attention.output.register_forward_pre_hook(lambda _, args: taken.append(args[0]))
        for layer in model[0].layers
    ]
    y = TARGET(model(x))
    for hook in hooks:
        hook.remove()
    with sl.watch(model, stats=(), influence=True) as seen:
        z = TARGET(model(x))

    def step(influence: bool) -> None:
        with sl.watch(model, stats=(), influence=influence):
            TARGET(model(x)).sum().backward()
        model.zero_grad()

    alone = compare(
        {"torch": lambda: torch.autograd.grad(y.sum(), taken, retain_graph=True), "ours": lambda: seen.backward(z)}, 11
    )
    whole = compare({"torch": lambda: step(False), "ours": lambda: step(True)}, 5)
    return [
        {"call": ROWS, "tokens": tokens, "of_backward": ratio(alone, "ours", "torch"), **alone["ours"]},
        {"call": "a run with the model's own backward", "tokens": tokens, "of_watched": ratio(whole, "ours", "torch"),
         **whole["ours"]},
    ]  # fmt: skip


def edges(tokens: int, causal: bool) -> list[dict]:
    """One call: all that is asked of its edges, beside torch's passes."""
    heads, dim = CELLS["heads"], CELLS["dim"]
    torch.manual_seed(0)
    q, k, v, g = (torch.randn(1, heads, tokens, dim, device=DEVICE, dtype=DTYPE) for _ in range(4))
    hidden = torch.ones(tokens, tokens, dtype=torch.bool, device=DEVICE).triu(1)

    def fused() -> object:
        given = [x.detach().requires_grad_() for x in (q, k, v)]
        F.scaled_dot_product_attention(*given, is_causal=causal).backward(g)
        return given

    def eager() -> object:
        a, b, c = (x.detach().requires_grad_() for x in (q, k, v))
        scores = a @ b.mT * dim**-0.5
        weights = (scores.masked_fill(hidden, -torch.inf) if causal else scores).softmax(-1)
        weights.retain_grad()
        (weights @ c).backward(g)
        return weights * weights.grad

    mask = sl.causal() if causal else None
    sight = sl.observe(q, k, v, grad=g, mask=mask)[1]
    candidates = {"ours": lambda: sl.look(q, k, v, grad=g, mask=mask, stats=STATS)}
    # What `prepare` does, without keeping it for the next round.
    candidates |= {"after": lambda: sight.compute(list(STATS)), "fused": fused, "eager": eager}
    if GPU and tokens > 8192:
        del candidates["eager"]  # its maps take more memory than there is
    settle(lambda: sl.look(q, k, v, grad=g, mask=mask))
    found = compare(candidates, repeats=7, warmups=2)
    rows = []
    for name, call in (("ours", EDGES), ("after", EDGES + AFTER)):
        row = {"call": call, "tokens": tokens, "causal": causal, "by": done_by(q, k, v, g), **found[name]}
        row["of_forward_and_backward"] = ratio(found, name, "fused")
        if "eager" in candidates:
            row["of_eager"] = ratio(found, name, "eager")
        rows.append(row)
    return rows


def done_by(*given: Tensor) -> str:
    """What makes the tiles."""
    sight = sl.look(*given[:3], grad=given[3])
    return "Triton kernels" if gpu_readings.takes(sight._levels, sight.extra) else "torch's operations"


def long() -> list[dict]:
    """131,072 tokens, the influence of the last two layers: rows, strongest edges, pictures, magnitudes."""
    from watch import large_model, peak, text

    model, ids = large_model().requires_grad_(False), text(131072)

    def run() -> None:
        with sl.watch(model, layers=[30, 31], stats=STATS, influence=True) as seen:
            seen.backward(TARGET(model(ids, logits_to_keep=1, use_cache=False)))
        assert seen.by_head().isfinite().all()

    start = time.perf_counter()
    mebibytes = peak(run)
    row = {"call": "long context, influence of two layers", "tokens": 131072, "peak_mebibytes": mebibytes}
    return [row | {"seconds": time.perf_counter() - start}]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--part", nargs="*", default=["backward", "edges", *(["long"] if GPU else [])])
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    parts: dict[str, list[Callable[[], list[dict]]]] = {
        "backward": [lambda tokens=tokens: backward(tokens) for tokens in LENGTHS],
        "edges": [
            lambda tokens=tokens, causal=causal: edges(tokens, causal)
            for tokens in CELLS["lengths"]
            for causal in (True, False)
        ],
        "long": [long],
    }
    rows = kept("influence", "part", options.part, options.out)
    for part in options.part:
        for run in parts[part]:
            for row in run():
                rows.append({"part": part, **row})
                print(rows[-1], flush=True)
            written = write("influence", rows, options.out)  # what is measured is there, whatever comes after it
            print("written:", written, flush=True)


if __name__ == "__main__":
    main()
