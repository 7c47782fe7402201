"""How the files in format-3/ were made, which hold readings, several runs, and edits. Not to be run again.

Every later version must load them and give the numbers of expected.safetensors, which were not computed by the lens:
those of sights come from whole maps in float64, those of runs from torch's gradients of the model's own attention.

    PYTHONPATH=src:tests:tests/data python tests/data/make_format_3.py NEW_FOLDER
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

import sightline as sl
import watch_cases as tiny
from cases import Case
from lens_cases import statistics, whole_map

STATS = (
    "entropy",
    "max_score",
    "distance",
    "received",
    sl.Top(3),
    sl.Top(3, of="influence"),
    sl.Picture(4, 5, of="pull"),
    sl.Received(of="norms"),
    sl.Received(of="influence", reduce="magnitude"),
)


def sights() -> dict[str, tuple[Case, Tensor]]:
    """Calls with what their masks mean, and a gradient at each output."""
    draw = torch.Generator().manual_seed(23)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=draw)

    def call(options: dict[str, Any], table: Tensor | None, kv: int = 2, heads: int = 2, values: int = 8) -> Any:
        q, k, v = normal(2, heads, 9, 8), normal(2, kv, 9, 8), normal(2, kv, 9, values)
        return Case(q, k, v, options, table), normal(2, heads, 9, values)

    row, column = torch.arange(9)[:, None], torch.arange(9)
    causal, real = column <= row, torch.tensor([[False] * 3 + [True] * 6, [True] * 9])
    return {
        "readings": call({"mask": sl.causal()}, causal),
        "readings-grouped": call({"mask": sl.causal() & sl.padding(real)}, causal & real[:, None, None, :], 2, 4, 5),
        "readings-sinks": call({"mask": sl.window(3), "sinks": normal(2)}, causal & (row - column <= 3)),
        "readings-softcap": call({"softcap": 2.0, "scale": 0.7}, None),
        "readings-without-qk": call({"mask": sl.causal()}, causal),
    }


def cells(case: Case, grad: Tensor) -> dict[str, Tensor]:
    """Every cell of every reading, in float64."""
    whole = whole_map(case)
    groups = case.q.shape[1] // case.k.shape[1]
    v, g = case.v.double().repeat_interleave(groups, 1), grad.double()
    meets, along = g @ v.mT, (g * (whole.weights @ v)).sum(-1)
    influence = whole.weights * meets
    return statistics(whole) | {
        "weights": whole.weights,
        "influence": influence,
        "pull": whole.weights * (meets - along[..., None]),
        "norms": whole.weights * v.norm(dim=-1)[..., None, :],
        "influence.rows": influence.sum(-1),
        "influence.magnitude": influence.abs().sum(-2),
        "top.influence": influence.gather(-1, influence.abs().topk(3).indices),
    }


def run(folder: Path) -> dict[str, Tensor]:
    """Save two runs of one block, the last with influence; gives the maps of the last one, and what they did to y."""
    target, given = sl.targets.logit(7, than=3), tiny.inputs("llama", "left", batch=2, length=8)
    model = tiny.model("llama")
    with sl.watch(model, keep_qk=True, stats=tiny.STATS, influence=True, runs="all") as seen:
        model(**{name: x[:1, 3:] for name, x in given.items()})
        y = target(model(**given))
        seen.backward(y)
    for one in seen.runs:
        one.tokens = [[f"<{i}>" for i in ids] for ids in one.ids]
    seen.save(folder)
    output = tiny.model("llama", "eager")(**given, output_attentions=True)
    grads = torch.autograd.grad(target(output).sum(), output.attentions)
    exists = tiny.rows_that_exist("llama", "self", given)
    found = {"ids": torch.tensor(seen.ids)}
    for name, weights, grad in zip(seen.layers, output.attentions, grads, strict=True):
        found[f"{name}/weights"], found[f"{name}/exists"] = weights.detach(), exists.float()
        found[f"{name}/influence"] = weights.detach() * grad
    return found


def edits() -> sl.Edits:
    """One of each kind, with places of each kind."""
    model, given = tiny.model("llama"), tiny.inputs("llama", None, batch=1, length=5)
    with torch.no_grad(), sl.watch(model, keep_output=True, stats=()) as patched:
        model(**given)
    made, draw = sl.Edits(), torch.Generator().manual_seed(5)
    made.cut(heads=[(1, 2), (0, 3)], queries=-1, keys=[2, 5])
    made.cut(layers=[0], mask=sl.causal() & ~sl.window(3), renormalize=False)
    made.boost(2.5, queries=slice(4, None), keys=slice(1, 3), examples=[0])
    made.temperature(0.5, layers="model.layers.1.self_attn")
    made.force("previous", queries=slice(0, 4), heads=[(0, 0)])
    made.patch(patched, layers=[1], queries=[2])
    made.ablate(heads=[(1, 1)])
    made.ablate(heads=[(1, 0)], by=torch.randn(8, generator=draw))
    made.scale(0.25, heads=1, queries=[3])
    return made


def make(folder: Path) -> None:
    (folder / "sights").mkdir(parents=True)
    expected = {}
    for name, (case, grad) in sights().items():
        sight = sl.look(case.q, case.k, case.v, grad=grad, **case.options, stats=STATS)
        sight.save(folder / "sights" / f"{name}.safetensors", keep_qk="without-qk" not in name)
        expected |= {f"sights/{name}/{what}": t for what, t in cells(case, grad).items()}
    expected |= {f"runs/influence/{what}": t for what, t in run(folder / "runs" / "influence").items()}
    save_file({name: t.clone().contiguous() for name, t in expected.items()}, folder / "expected.safetensors")
    (folder / "edits").mkdir()
    every = edits()
    every.save(folder / "edits" / "all.json")
    (folder / "edits" / "all.txt").write_text("".join(f"{one}\n" for one in every))


if __name__ == "__main__":
    make(Path(sys.argv[1]))
