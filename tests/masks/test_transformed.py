"""Every mask, alone and combined: some of it selected, one batch axis, a copy, and a file and back."""

from __future__ import annotations

import tempfile
from pathlib import Path

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import sightline as sl
from cases import Shape, masks, shapes
from sightline.masks import Mask, as_mask

CPU = torch.device("cpu")


def drawn(data: st.DataObject) -> tuple[Shape, Mask, torch.Tensor]:
    shape = data.draw(shapes().filter(lambda s: min(s.heads, s.queries, s.keys, *s.batch) > 0))
    mask, table = data.draw(masks(shape))
    return shape, as_mask(mask), table.expand(*shape.batch, shape.heads, shape.queries, shape.keys)


def check(mask: Mask, table: torch.Tensor) -> None:
    """All that a mask says of itself is true of a table."""
    *batch, heads, queries, keys = table.shape
    mask.check(tuple(batch), heads, queries, keys, CPU)
    assert torch.equal(mask.to_dense(queries, keys).expand(table.shape), table)
    flat = table.reshape(-1, heads, queries, keys)
    b, h = torch.arange(len(flat)).view(-1, 1, 1, 1), torch.arange(heads).view(-1, 1, 1)
    i, j = torch.arange(queries).view(-1, 1), torch.arange(keys)
    for rule in (mask.mod, super(type(mask), mask).mod if type(mask).__mro__[1] is Mask else mask.mod):
        assert torch.equal(rule(tuple(batch), queries, keys, CPU)(b, h, i, j).expand(flat.shape), flat)
    row = mask.key_row(keys, CPU)
    if row is not None:
        assert torch.equal(row[..., None, None, :].expand(table.shape), table)
    if mask.sees_first_key:
        assert torch.equal(table[..., 0], table.any(-1))
    if mask.band is not None:
        assert torch.equal(mask.band.to_dense(queries, keys).expand(table.shape), table)
    every = torch.ones((), dtype=torch.bool)
    for part in mask.conjuncts():
        every = every & part.to_dense(queries, keys)
    assert torch.equal(every.expand(table.shape), table)


@settings(max_examples=100)
@given(st.data())
def test_they_mean_the_same(data: st.DataObject) -> None:
    shape, mask, table = drawn(data)
    check(mask, table)
    copy = mask.to("cpu", copy=True)
    assert not {id(t) for t in copy.tensors()} & {id(t) for t in mask.tensors()}
    check(copy, table)
    flat = mask.flattened(shape.batch)
    check(flat, table.reshape(-1, *table.shape[-3:]))
    heads = data.draw(st.none() | st.lists(st.integers(0, shape.heads - 1), min_size=1, max_size=3))
    member = data.draw(st.none() | st.tuples(*(st.integers(0, n - 1) for n in shape.batch)))
    part = table if member is None else table[member]
    check(mask.select(member, heads), part if heads is None else part[..., heads, :, :])
    assert mask.writable(shape.queries, shape.keys) is mask


@settings(max_examples=40)
@given(st.data())
def test_they_come_back_from_a_file(data: st.DataObject) -> None:
    shape, mask, table = drawn(data)
    q = torch.randn(*shape.batch, shape.heads, shape.queries, 2)
    k = torch.randn(*shape.batch, shape.heads, shape.keys, 2)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "x.sight")
        sl.look(q, k, mask=mask).save(path, keep_qk=False)
        loaded = sl.Sight.load(path).call.mask
    assert loaded is not None
    check(loaded, table)
