"""Models that show a part of their layers, each with a kind of attention of its own: what is missing is named."""

from __future__ import annotations

import importlib
from pathlib import Path

import pytest
import torch
from torch import nn

from sightline.watching.intercept.unseen import SAMPLED
from watch_by_hand import run

BENCHMARKS = Path(__file__).resolve().parents[3] / "benchmarks"
# Layers seen; ends of the paths of those that are not, with the reason and how many there are.
EXPECTED = {
    "ClapModel": (4, {}),
    "DetrModel": (6, {}),
    "DeformableDetrModel": (2, {("self_attn.attn", SAMPLED): 2, ("encoder_attn.attn", SAMPLED): 2}),
    "RTDetrModel": (3, {("encoder_attn.attn", SAMPLED): 2}),
    "Mask2FormerModel": (8, {("self_attn", SAMPLED): 2}),
    "GroundingDinoModel": (
        16,
        {
            ("self_attn.attn", SAMPLED): 2,
            ("encoder_attn.attn", SAMPLED): 2,
        },
    ),
}


TEXTS = ("ClapModel", "GroundingDinoModel")  # have padding
RUNS = [(name, side) for name in EXPECTED for side in (("left", "right") if name in TEXTS else (None,))]


@pytest.mark.parametrize("name, side", RUNS)
def test_models_that_show_a_part_of_their_layers(name, side, monkeypatch):
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    case = next(case for case in importlib.import_module("zoo_vision").CASES if case.name == name)
    torch.manual_seed(0)
    model, given = case.make().eval(), case.inputs(side)
    caller = nn.Module()
    caller.model, caller.forward = model, lambda: model(**given)
    seen = run(caller)
    count, unseen = EXPECTED[name]
    assert len(seen.layers) == count
    left = dict(seen.unseen)
    for (end, reason), many in unseen.items():
        found = [path for path, why in left.items() if path.endswith(f".{end}") and why == reason]
        assert len(found) == many
        for path in found:
            del left[path]
    assert not left
