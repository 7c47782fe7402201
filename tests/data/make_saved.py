"""How the files in format-1/ were made. Not to be run again: they are what the first format looks like.

Every later version must load them and give the numbers of expected.safetensors, which were not computed by the lens:
those of sights come from the whole map in float64, under masks that are written out here by hand, those of runs from
what the model itself gives as its attention. A later format gets a folder of its own, made by a copy of this script;
format-2/ has six of the same sights, as the second format wrote them.

    PYTHONPATH=src:tests python tests/data/make_saved.py NEW_FOLDER
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors.torch import save_file
from torch import Tensor

import sightline as sl
import watch_cases as tiny
from cases import Case
from lens_cases import painted, statistics, whole_map

ALL = (
    "entropy",
    "max_score",
    "distance",
    "received",
    sl.Top(3),
    sl.Picture(4, 5),
    sl.Picture(cell=(2, 3), reduce="max"),
)


class Made(NamedTuple):
    """A sight to save: the call, what its mask means, what is computed before it is saved."""

    q: Tensor
    k: Tensor
    options: dict[str, Any]
    table: Tensor | None = None
    stats: tuple = ()
    keep_qk: bool = True


def sights() -> dict[str, Made]:
    draw = torch.Generator().manual_seed(11)

    def normal(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
        return torch.randn(*shape, generator=draw, dtype=torch.float64).to(dtype)

    def both(
        *batch: int, heads: int = 2, kv: int = 2, n: int = 9, m: int = 9, dtype: torch.dtype = torch.float32
    ) -> Any:
        return normal(*batch, heads, n, 8, dtype=dtype), normal(*batch, kv, m, 8, dtype=dtype)

    row, column = torch.arange(9)[:, None], torch.arange(9)
    causal = column <= row
    ids = torch.tensor([[0, 0, 0, 1, 1, 1, 1, 2, 2], [5, 5, 5, 5, 5, 3, 3, 3, 3]])
    same = (ids[:, :, None] == ids[:, None, :])[:, None]
    real = torch.tensor([[True] * 6 + [False] * 3, [True] * 9])
    table = torch.rand(2, 9, 9, generator=draw) < 0.5
    table[0, 3] = False
    windowed = causal & (row - column <= 3) & real[:, None, None, :] & same
    far = (torch.arange(6)[:, None] + 4 - torch.arange(10)).clamp_min(0)
    hidden = torch.zeros(9, 9)
    hidden[4] = -1e9
    return {
        "causal": Made(*both(2), {"mask": sl.causal()}, causal, ALL),
        "causal-computed-later": Made(*both(1), {"mask": sl.causal()}, causal),
        "without-qk": Made(*both(2), {"mask": sl.causal()}, causal, ALL, keep_qk=False),
        "one-head": Made(normal(9, 8), normal(9, 8), {}, None, ALL),
        "grouped": Made(*both(1, heads=4, kv=2), {"scale": 0.5}, None, ALL),
        "shorter-queries": Made(
            *both(heads=2, n=6, m=10),
            {"mask": sl.causal(align="end")},
            (far > 0) | (torch.arange(10) == torch.arange(6)[:, None] + 4),
            ALL,
        ),
        "window-padding-documents": Made(
            *both(2), {"mask": sl.window(3) & sl.padding([6, 9]) & sl.documents(ids)}, windowed, ALL
        ),
        "padding-by-keys": Made(*both(2), {"mask": sl.padding(real)}, real[:, None, None, :], ALL),
        "prefix-or-not": Made(
            *both(1),
            {"mask": sl.prefix(2) & ~sl.window(1)},
            (causal | (column < 2)) & ~(causal & (row - column <= 1)),
            ALL,
        ),
        "dense": Made(*both(2), {"mask": sl.dense(table)}, table, ALL),
        "dense-or-start": Made(*both(2), {"mask": sl.dense(table) | sl.causal(align="start")}, table | causal, ALL),
        "alibi": Made(*both(1), {"bias": sl.alibi(2), "mask": sl.causal()}, causal, ALL),
        "bias": Made(*both(2), {"bias": normal(2, 9, 9)}, None, ALL),
        "bias-half": Made(*both(2), {"bias": normal(1, 9, dtype=torch.bfloat16), "mask": sl.causal()}, causal, ALL),
        "sinks": Made(*both(2), {"sinks": normal(2), "mask": sl.causal()}, causal, ALL),
        "sinks-without-qk": Made(*both(2), {"sinks": normal(2)}, None, ALL, keep_qk=False),
        "softcap": Made(*both(1), {"softcap": 1.5, "scale": 1.0}, None, ALL),
        "relu": Made(*both(1), {"normalizer": "relu", "mask": sl.causal()}, causal, ALL),
        "relu-without-qk": Made(*both(1), {"normalizer": "relu"}, None, (*ALL, "total"), keep_qk=False),
        "sigmoid": Made(*both(1), {"normalizer": "sigmoid"}, None, ALL),
        "uniform": Made(*both(1), {"normalizer": "uniform", "mask": sl.causal()}, causal, ALL),
        "float64": Made(
            *both(2, dtype=torch.float64), {"mask": sl.causal(), "sinks": normal(2, dtype=torch.float64)}, causal, ALL
        ),
        "float16": Made(*both(2, dtype=torch.float16), {"mask": sl.causal()}, causal, ALL),
        "bfloat16": Made(*both(2, dtype=torch.bfloat16), {"mask": sl.causal()}, causal, ALL),
        "empty": Made(*both(0), {"mask": sl.causal()}, causal),
        "hidden-by-a-large-bias": Made(*both(1), {"bias": hidden}, None),
    }


def truth(made: Made) -> dict[str, Tensor]:
    """Every number of a sight, in float64, from its whole map."""
    options = dict(made.options)
    if isinstance(bias := options.get("bias"), sl.positions.Alibi):
        queries, keys = made.q.shape[-2], made.k.shape[-2]
        away = (torch.arange(queries)[:, None] + keys - queries - torch.arange(keys)).abs()
        options["bias"] = torch.stack(
            [-(2.0 ** (-8 * (h + 1) / bias.heads)) * away.double() for h in range(bias.heads)]
        )
    case = Case(made.q.double(), made.k.double(), made.k.double(), options, made.table)
    whole = whole_map(case)
    found = statistics(whole) | {"weights": whole.weights}
    if whole.weights.numel():
        found |= {
            "top.weights": whole.weights.topk(3).values,
            "picture.size": painted(whole, size=(4, 5)),
            "picture.cell": painted(whole, cell=(2, 3), reduce="max"),
        }
    if made.options.get("normalizer", "softmax") != "softmax":
        del found["lse"]
    return {name: t[0] if made.q.dim() == 2 else t for name, t in found.items()}


RUNS = {
    "generated": ("llama", True, True),
    "generated-without-qk": ("llama", False, True),
    "sinks": ("gpt-oss", True, False),
    "encoder-decoder": ("t5", True, False),
    "encoder": ("bert", False, False),
}
STEPS = 4


def run(folder: Path, family: str, keep_qk: bool, generate: bool) -> dict[str, Tensor]:
    """Save a watched run; gives its maps by the model's own account."""
    model = tiny.model(family, "eager" if family in tiny.EAGER_ONLY else "sdpa")
    given = tiny.inputs(family, "left" if family == "llama" else "right", batch=2, length=8)
    with torch.no_grad(), sl.watch(model, keep_qk=keep_qk, stats=tiny.STATS) as seen:
        if generate:
            model.generate(**given, max_new_tokens=STEPS, do_sample=False)
        else:
            model(**given)
    seen.tokens = [[f"<{i}>" for i in ids] for ids in seen.ids]
    seen.save(folder)
    if generate:
        ids = torch.tensor(seen.ids)
        mask = torch.cat([given["attention_mask"], torch.ones(len(ids), STEPS - 1, dtype=torch.long)], -1)
        given = {"input_ids": ids, "attention_mask": mask, "position_ids": (mask.cumsum(-1) - 1).clamp_min(0)}
    with torch.no_grad():
        output = tiny.model(family, "eager")(**given, output_attentions=True)
    found = {}
    names = tiny.layers_of(family, seen)
    for kind, maps in tiny.attentions(family, output).items():
        for name, weights in zip(names[kind], maps, strict=True):
            found[f"{name}/weights"] = weights
            exists = tiny.rows_that_exist(family, kind, given)
            found[f"{name}/exists"] = (
                torch.ones(weights.shape[0], weights.shape[2]) if exists is None else exists.float()
            )
    found["ids"] = torch.tensor(seen.ids)
    return found


def make(folder: Path) -> None:
    (folder / "sights").mkdir(parents=True)
    (folder / "runs").mkdir()
    expected = {}
    for name, made in sights().items():
        sl.look(made.q, made.k, **made.options, stats=made.stats).save(
            folder / "sights" / f"{name}.safetensors", keep_qk=made.keep_qk
        )
        expected |= {f"sights/{name}/{what}": t for what, t in truth(made).items()}
    for name, (family, keep_qk, generate) in RUNS.items():
        found = run(folder / "runs" / name, family, keep_qk, generate)
        expected |= {f"runs/{name}/{what}": t for what, t in found.items()}
    save_file({name: t.clone().contiguous() for name, t in expected.items()}, folder / "expected.safetensors")


if __name__ == "__main__":
    make(Path(sys.argv[1]))
