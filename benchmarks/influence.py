"""What influence costs: rows and head totals of every watched layer, beside the same passes without them.

    python benchmarks/influence.py [--device cpu] [--threads 2] [--out FOLDER]

`backward` is the backward pass alone, of a graph that stays: to the heads' outputs by torch.autograd.grad, and by
seen.backward. `step` is a run and the model's own backward pass, watched without influence, and with it. Both are
interleaved in one process.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path

import torch
from harness import compare, ratio, write
from torch import Tensor, nn

import sightline as sl

LENGTHS = {"cpu": (256, 1024), "cuda": (4096, 16384)}
TARGET = sl.targets.logit(7, than=3)


def model_of(device: str) -> nn.Module:
    """A small decoder with a head, and its weights as they are drawn."""
    torch.manual_seed(0)
    return nn.Sequential(sl.nn.Decoder(512, heads=8, layers=6), nn.Linear(512, 4096)).to(device).eval()


def backward(tokens: int, device: str) -> dict[str, Callable[[], object]]:
    """The backward pass alone, without and with what is read at the heads."""
    model, x = model_of(device), torch.randn(1, tokens, 512, device=device)
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
    return {
        "torch": lambda: torch.autograd.grad(y.sum(), taken, retain_graph=True),
        "sightline": lambda: seen.backward(z),
    }


def step(tokens: int, device: str) -> dict[str, Callable[[], object]]:
    """A run and the model's own backward pass, watched with influence and without."""
    model, x = model_of(device), torch.randn(1, tokens, 512, device=device)

    def run(influence: bool) -> None:
        with sl.watch(model, stats=(), influence=influence):
            TARGET(model(x)).sum().backward()
        model.zero_grad()

    return {"torch": lambda: run(False), "sightline": lambda: run(True)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    rows = []
    for tokens in LENGTHS[options.device]:
        for name, made in (("backward", backward), ("step", step)):
            result = compare(made(tokens, options.device))
            found = ratio(result, "sightline", "torch")
            print(f"{name:9} {tokens:6} tokens: {found:.3f}")
            rows.append({"what": name, "tokens": tokens, "ratio": round(found, 3), "times": dict(result)})
    if options.out is not None:
        write(f"influence-{'gpu' if options.device == 'cuda' else 'cpu'}", rows, options.out)


if __name__ == "__main__":
    main()
