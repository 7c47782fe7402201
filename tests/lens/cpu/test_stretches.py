"""Stretches of keys mean what the mask means, or there are none."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import sightline as sl
from cases import Shape, inputs, masks, shapes
from sightline.backends.call import Call, make_call
from sightline.lens.cpu.stretches import Stretches, stretches


def make(shape: Shape, mask: object) -> Call:
    q, k, v = inputs(*shape.batch, heads=shape.heads, queries=shape.queries, keys=shape.keys)
    return make_call(q, k, v, mask=mask)


def written_out(found: Stretches, shape: Shape) -> torch.Tensor:
    column = torch.arange(shape.keys)
    table = (column >= torch.from_numpy(found.first)[..., None]) & (column < torch.from_numpy(found.stop)[..., None])
    if found.holes is not None:
        table = table & ~found.holes[:, None]
    size = torch.Size(shape.batch).numel()
    return table.expand(size, shape.queries, shape.keys)


@settings(max_examples=150)
@given(st.data())
def test_they_mean_what_the_mask_means(data: st.DataObject) -> None:
    shape = data.draw(shapes().filter(lambda s: min(s.heads, s.queries, s.keys, *s.batch) > 0))
    mask, table = data.draw(masks(shape))
    found = stretches(make(shape, mask))
    if found is None:
        return
    every = table.reshape(-1, shape.heads, shape.queries, shape.keys)
    assert torch.equal(written_out(found, shape)[:, None].expand(every.shape), every)
    assert (np.diff(found.first) >= 0).all()
    assert (np.diff(found.stop) >= 0).all()


@pytest.mark.parametrize(
    "mask",
    [
        None,
        sl.causal(),
        sl.causal(align="start"),
        sl.window(3, 2),
        sl.prefix(4),
        sl.padding([5, 9]),
        sl.padding(torch.tensor([[False] * 4 + [True] * 5, [True] * 9])),
        sl.documents(torch.arange(9) // 2),
        sl.causal() & sl.padding([5, 9]) & sl.documents(torch.arange(9) // 4),
    ],
    ids=str,
)
def test_the_usual_masks_have_them(mask: sl.Mask | None) -> None:
    shape = Shape((2,), 1, 7, 9)
    found = stretches(make(shape, mask))
    assert found is not None
    assert found.holes is None
    if mask is not None:
        assert torch.equal(written_out(found, shape), mask.to_dense(7, 9).expand(2, 1, 7, 9)[:, 0])


@pytest.mark.parametrize(
    "mask",
    [
        sl.causal() | sl.window(0, 3) & ~sl.window(0),
        ~sl.causal(),
        sl.dense(torch.ones(7, 9, dtype=torch.bool)),
        sl.documents(torch.tensor([0, 1, 0, 1, 0, 1, 0, 1, 0])),
    ],
    ids=str,
)
def test_others_have_none(mask: sl.Mask) -> None:
    assert stretches(make(Shape((2,), 1, 7, 9), mask)) is None


def test_padding_between_is_holes() -> None:
    real = torch.tensor([[False, True, False, True, False], [False] * 5, [True] * 5])
    found = stretches(make(Shape((3,), 2, 4, 5), sl.causal() & sl.padding(real)))
    assert found is not None
    assert found.holes is not None
    assert found.holes.tolist() == [[False, False, True, False, False], [False] * 5, [False] * 5]
    assert found.stop[:, -1].tolist() == [4, 0, 5]
    assert found.first[:, 0].tolist() == [1, 0, 0]


def test_some_columns_of_them() -> None:
    found = stretches(make(Shape((), 1, 6, 6), sl.window(2)))
    assert found is not None
    part = found.clip(slice(2, 4))
    assert part.first.tolist() == [[2, 2, 2, 2, 2, 3]]
    assert part.stop.tolist() == [[2, 2, 3, 4, 4, 4]]
