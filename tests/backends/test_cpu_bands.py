from __future__ import annotations

import pytest
import torch

import sightline as sl
from cases import inputs
from sightline.backends import cpu_bands, reference
from sightline.backends.call import make_call
from sightline.backends.tiles import Columns
from sightline.positions import alibi


def call(**options):
    return make_call(*inputs(2, heads=4, kv_heads=2, queries=6, keys=8), **options)


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"mask": sl.window(2)},
        {"bias": alibi(4)},
        {"bias": torch.zeros(6, 8)},
        {"sinks": torch.zeros(4)},
        {"mask": sl.causal(), "bias": alibi(4), "sinks": torch.zeros(4)},
    ],
    ids=str,
)
def test_softmax_with_mask_bias_and_sinks_is_what_it_can(options):
    assert cpu_bands.can(call(**options))


@pytest.mark.parametrize(
    "options",
    [
        {"softcap": 3.0},
        {"normalizer": "relu"},
        {"dropout": 0.1},
        {"bias": torch.zeros(6, 8, requires_grad=True)},
    ],
    ids=str,
)
def test_what_it_cannot(options):
    assert not cpu_bands.can(call(**options))


@pytest.mark.parametrize("sizes", [{"queries": 0}, {"keys": 0}, {"heads": 0}, {"dim": 0}])
def test_nothing_is_not_for_the_kernel(sizes):
    given = {"heads": 2, "queries": 3, "keys": 3, "dim": 4, **sizes}
    q = torch.zeros(given["heads"], given["queries"], given["dim"])
    k = torch.zeros(given["heads"], given["keys"], given["dim"])
    assert not cpu_bands.can(make_call(q, k, k))


@pytest.mark.parametrize("value_dim", [2, 4, 9])
def test_forward_and_backward_by_themselves(value_dim):
    q, k, v = inputs(2, 3, heads=4, kv_heads=2, queries=40, keys=50, value_dim=value_dim, grad=True)
    options = {"mask": sl.padding(torch.tensor([0, 20, 50])) & sl.window(9), "bias": alibi(4)}
    one = make_call(q.detach(), k.detach(), v.detach(), **options)
    out, lse = cpu_bands.forward(one)
    truth = reference.matrix_view(q, k, v, **options)
    torch.testing.assert_close(out, truth.detach())
    assert (lse[:, 0] == -torch.inf).all()
    direction = torch.randn_like(out)
    ours = cpu_bands.backward(one, direction, out, lse)
    for a, b in zip(ours, torch.autograd.grad(truth, (q, k, v), direction), strict=True):
        torch.testing.assert_close(a, b)


def test_a_band_takes_the_runs_of_keys_it_sees():
    columns = [Columns(slice(0, 4), True), Columns(slice(4, 8), False), Columns(slice(12, 14), True)]
    assert cpu_bands._runs(columns) == [slice(0, 8), slice(12, 14)]
    x = torch.arange(14.0)[None, None, :, None]
    assert cpu_bands._take(x, columns).flatten().tolist() == [*range(8), 12, 13]


def test_the_table_of_a_band_stays_within_bounds():
    """At a million keys a band has few rows, so that its table stays within some megabytes."""
    big = make_call(
        *[torch.zeros(1, dtype=torch.float32).expand(8, 8, 1 << 20, 64)] * 3, mask=sl.causal(), bias=alibi(8)
    )
    height = cpu_bands._height(big)
    assert 1 <= height <= 16
    small = call(mask=sl.causal())
    assert cpu_bands._height(small) == cpu_bands._HEIGHT
