"""Counting visible cells by sums of ends is counting them one by one."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import sightline as sl
from sightline.explore.visible_counts import VisibleCounts
from sightline.lens import Sight

MASKS = {
    "none": None,
    "causal": sl.causal(),
    "start": sl.causal(align="start"),
    "window": sl.window(3),
    "both sides": sl.window(2, 4),
    "prefix": sl.prefix(3),
    "padding": sl.padding(torch.tensor([7, 2])),
    "causal and padding": sl.causal() & sl.padding(torch.tensor([7, 0])),
    "documents": sl.documents(torch.tensor([[0] * 5 + [1] * 4, [2] * 9]), torch.tensor([[0] * 3 + [1] * 8, [2] * 11])),
    "holes": ~sl.window(1),
    "dense": sl.dense(torch.rand(2, 1, 9, 11) > 0.4),
}


@cache
def sight_of(name: str) -> Sight:
    return sl.look(torch.randn(2, 1, 9, 4), torch.randn(2, 1, 11, 4), mask=MASKS[name])


@pytest.mark.parametrize("name", MASKS)
@given(st.data())
def test_counts(name: str, data: st.DataObject) -> None:
    mask = MASKS[name]
    queries, keys = 9, 11
    batch = data.draw(st.integers(0, 1))
    counts = VisibleCounts(sight_of(name).select(batch, [0]))
    visible = np.ones((queries, keys), bool)
    if mask is not None:
        visible = mask.to_dense(queries, keys).expand(2, 1, queries, keys)[batch, 0].numpy()
    spans = []
    for length in (queries, keys):
        start = data.draw(st.integers(0, length - 1))
        spans.append(slice(start, data.draw(st.integers(start + 1, length))))
    cell = data.draw(st.tuples(st.integers(1, 5), st.integers(1, 5)))
    part = visible[spans[0], spans[1]].astype(int)
    starts = [np.arange(0, n, c) for n, c in zip(part.shape, cell, strict=True)]
    wanted = np.add.reduceat(np.add.reduceat(part, starts[0], 0), starts[1], 1)
    np.testing.assert_array_equal(counts(spans[0], spans[1], cell), wanted)
