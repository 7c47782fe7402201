"""The norms a layer can have."""

from __future__ import annotations

import pytest
import torch

import sightline as sl
from sightline import nn as slnn
from sightline.nn.norms import make_norm


def test_layer_norm_takes_mean_and_variance_and_rms_norm_size_alone():
    x = torch.randn(3, 8, dtype=torch.float64) + 2
    layer, rms = (make_norm(name, 8, eps=1e-6).double() for name in ("layer", "rms"))
    centred = x - x.mean(-1, keepdim=True)
    torch.testing.assert_close(layer(x), centred / (centred.square().mean(-1, keepdim=True) + 1e-6).sqrt())
    torch.testing.assert_close(rms(x), x / (x.square().mean(-1, keepdim=True) + 1e-6).sqrt())


@pytest.mark.parametrize("make", [lambda: make_norm("batch", 8), lambda: slnn.EncoderLayer(8, 2, norm="batch")])
def test_unknown_norms_are_refused(make):
    with pytest.raises(sl.errors.InputError, match="unknown norm\n  expected: one of layer, rms\n  got: 'batch'"):
        make()


@pytest.mark.parametrize("norm", ["layer", "rms"])
@pytest.mark.parametrize("norm_output", [False, True])
def test_layers_use_the_norm_that_was_asked_for(norm, norm_output):
    layer = slnn.EncoderLayer(8, heads=2, norm=norm, norm_output=norm_output, eps=1e-3)
    kind = torch.nn.LayerNorm if norm == "layer" else torch.nn.RMSNorm
    found = [module for module in layer.modules() if isinstance(module, torch.nn.LayerNorm | torch.nn.RMSNorm)]
    assert len(found) == (4 if norm_output else 2)
    assert all(isinstance(module, kind) and module.eps == 1e-3 for module in found)
