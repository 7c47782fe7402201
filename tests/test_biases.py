"""A bias of one's own is a class with a `tile`, and works wherever ALiBi does."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

import sightline as sl
from sightline.biases import Bias, GivenBias, as_bias
from sightline.errors import InputError, InputTypeError

BATCH, HEADS, QUERIES, KEYS = (2, 3), 4, 37, 45


class Ramp(Bias):
    """A number of its own for each member and head, times where the key stands."""

    def __init__(self, rate: torch.Tensor) -> None:
        self.rate = rate  # [*batch, heads]

    def tile(self, rows, columns, queries, keys, device=None, dtype=torch.float32) -> torch.Tensor:
        place = torch.arange(columns.start, columns.stop, device=device, dtype=dtype) / keys
        return self.rate.to(device, dtype)[..., None, None] * place


class Duck:
    """What has the methods of a bias is one, whatever it inherits from."""

    def tile(self, rows, columns, queries, keys, device, dtype) -> torch.Tensor:
        return torch.arange(columns.start, columns.stop, device=device, dtype=dtype) / keys

    def to_dense(self, queries, keys) -> torch.Tensor:
        return self.tile(slice(0, queries), slice(0, keys), queries, keys, "cpu", torch.float32)

    def check(self, batch, heads, queries, keys) -> None:
        if heads != HEADS:
            raise InputError("no", expected=HEADS, got=heads, hint="no")


def inputs() -> tuple[torch.Tensor, ...]:
    torch.manual_seed(0)
    q = torch.randn(*BATCH, HEADS, QUERIES, 8, dtype=torch.float64)
    k, v = (torch.randn(*BATCH, 2, KEYS, 8, dtype=torch.float64) for _ in "kv")
    return q, k, v


def ramp() -> tuple[Ramp, torch.Tensor]:
    bias = Ramp(torch.randn(*BATCH, HEADS, dtype=torch.float64))
    table = bias.rate[..., None, None] * torch.arange(KEYS, dtype=torch.float64) / KEYS
    return bias, table.expand(*BATCH, HEADS, QUERIES, KEYS)


@pytest.mark.parametrize("backend", ["auto", "streaming", "reference"])
def test_outputs_are_those_of_the_table(backend: str) -> None:
    (q, k, v), (bias, table) = inputs(), ramp()
    out = sl.attention(q, k, v, bias=bias, mask=sl.causal(), backend=backend)
    torch.testing.assert_close(out, sl.attention(q, k, v, bias=table, mask=sl.causal(), backend="reference"))


def test_it_is_seen_selected_and_saved(tmp_path: Path) -> None:
    (q, k, _), (bias, table) = inputs(), ramp()
    sight, want = (sl.look(q, k, bias=x, stats=("entropy", sl.Top(3))) for x in (bias, table))
    part = sight.select(batch=4, heads=[3, 1])
    for name, one in (("whole", sight), ("part", part)):
        one.save(tmp_path / f"{name}.sight")
        loaded = sl.Sight.load(tmp_path / f"{name}.sight")
        map_ = want.tile(slice(None), slice(None))
        map_ = map_ if one is sight else map_[1, 1, [3, 1]]
        for now in (one, loaded):
            torch.testing.assert_close(now.tile(slice(None), slice(None)), map_)
            torch.testing.assert_close(now.received(), map_.sum(-2))
    torch.testing.assert_close(sight.entropy, want.entropy)


def test_single_cells_are_those_of_the_table() -> None:
    bias, table = ramp()
    rule = bias.mod(BATCH, QUERIES, KEYS, torch.device("cpu"), torch.float64)
    b, h, i, j = torch.arange(6)[:, None, None], torch.arange(4)[None, :, None], torch.arange(37), torch.arange(37) + 8
    torch.testing.assert_close(rule(b, h, i, j), table.flatten(0, 1)[b, h, i, j])
    flat = bias.flattened(BATCH).to_dense(QUERIES, KEYS, dtype=torch.float64)
    torch.testing.assert_close(flat.expand(6, 4, QUERIES, KEYS), table.flatten(0, 1))
    alibi = sl.alibi(4)
    rule = alibi.mod((2,), QUERIES, KEYS, torch.device("cpu"), torch.float64)
    assert torch.equal(rule(b, h, i, j)[0], alibi.to_dense(QUERIES, KEYS, dtype=torch.float64)[h[0], i, j])


def test_one_that_does_not_fit_is_refused() -> None:
    q, k, v = inputs()
    with pytest.raises(InputError, match="the bias does not fit the call"):
        sl.attention(q, k, v, bias=Ramp(torch.randn(5)))


def test_an_object_with_the_methods_of_a_bias_is_one(tmp_path: Path) -> None:
    q, k, v = inputs()
    given: Any = Duck()
    assert isinstance(as_bias(given), GivenBias)
    table = given.to_dense(QUERIES, KEYS).double()
    torch.testing.assert_close(sl.attention(q, k, v, bias=given), sl.attention(q, k, v, bias=table))
    with pytest.raises(InputTypeError, match="this bias cannot be saved") as caught:
        sl.look(q, k, bias=given).save(tmp_path / "x.sight")
    assert "got: Duck" in str(caught.value)
    with pytest.raises(InputError, match="no"):
        sl.attention(q[..., :2, :, :], k, v, bias=given)
    with pytest.raises(InputTypeError, match="cannot be used as a bias"):
        sl.attention(q, k, v, bias=3)  # type: ignore[arg-type]
