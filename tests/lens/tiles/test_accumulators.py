"""Each accumulator alone, fed with tiles by hand."""

from __future__ import annotations

from itertools import pairwise

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from cases import SEEDS, generator, inputs
from lens_cases import gap, gaps, stretches
from sightline.backends.call import Call, make_call
from sightline.lens import geometry
from sightline.lens.tiles.accumulators import Accumulator, Pixels, Received, RowSums, Seen, Strongest


def made(queries: int, keys: int, normalizer: str = "relu", dtype: torch.dtype = torch.float64) -> Call:
    q, k, v = inputs(heads=1, queries=queries, keys=keys, dtype=dtype)
    return make_call(q, k, v, normalizer=normalizer)


def feed(
    part: Accumulator, weights: torch.Tensor, cuts: list[int], across: list[int], visible: torch.Tensor | None = None
) -> object:
    """Cut a map at the given places and show it tile by tile."""
    for a, b in pairwise(cuts):
        for c, d in pairwise(across):
            rows, columns = slice(a, b), slice(c, d)
            seen = None if visible is None else visible[..., rows, columns]
            tile = weights[..., rows, columns]
            part.add(Seen(rows, columns, tile, seen, scores=tile))
    return part.result()


@st.composite
def cut(draw: st.DrawFn, length: int) -> list[int]:
    return (
        [0, *sorted(set(draw(st.lists(st.integers(1, length - 1), max_size=4)))), length] if length > 1 else [0, length]
    )


def drawn_map(seed: int, queries: int, keys: int) -> torch.Tensor:
    random = generator(seed)
    weights = torch.rand(1, queries, keys, generator=random, dtype=torch.float64)
    return weights.masked_fill(torch.rand(1, queries, keys, generator=random) < 0.3, 0.0)


@settings(max_examples=60)
@given(st.integers(1, 30), st.integers(1, 30), SEEDS, st.data())
def test_row_sums_do_not_depend_on_the_cuts(queries: int, keys: int, seed: int, data: st.DataObject) -> None:
    """Tiles before, across and after the diagonal all give the same distances."""
    weights, call = drawn_map(seed, queries, keys), made(queries, keys)
    found = feed(
        RowSums(call, {"entropy", "distance", "max_score", "total"}),
        weights,
        data.draw(cut(queries)),
        data.draw(cut(keys)),
    )
    total = weights.sum(-1)
    p = (weights / total[..., None]).nan_to_num(0.0)
    assert gap(found["total"], total) <= 1e-13
    assert gap(found["distance"], (p * gaps(queries, keys)).sum(-1)) <= 1e-13
    assert gap(found["entropy"], torch.special.entr(p).sum(-1), "entropy") <= 1e-13
    assert torch.equal(found["max_score"], weights.amax(-1))


@settings(max_examples=30)
@given(st.integers(1, 20), st.integers(2, 30), SEEDS, st.data())
def test_row_sums_of_columns_apart_are_joined(queries: int, keys: int, seed: int, data: st.DataObject) -> None:
    """As the explorer does, patch by patch; weights so small that float32 hardly holds them included."""
    weights, call = drawn_map(seed, queries, keys).float(), made(queries, keys, dtype=torch.float32)
    weights[:, ::2] *= 1e-40
    at = data.draw(st.integers(1, keys - 1))
    parts = []
    for left, right in ((0, at), (at, keys)):
        part = RowSums(call, {"entropy", "distance", "total"})
        feed(part, weights, [0, queries], [left, right])
        parts.append(part)
    parts[0].join(parts[1], slice(0, queries))
    found = parts[0].result()
    exact = weights.double()
    total = exact.sum(-1)
    p = (exact / total[..., None]).nan_to_num(0.0)
    assert gap(found["distance"], (p * gaps(queries, keys)).sum(-1)) <= 1e-5
    assert gap(found["entropy"], torch.special.entr(p).sum(-1), "entropy") <= 1e-5
    assert gap(found["total"], total) <= 1e-6


def test_row_sums_hold_only_what_is_wanted() -> None:
    for name in ("entropy", "distance"):
        assert set(RowSums(made(3, 4, "softmax"), {name}).sums) == {name}
        assert set(RowSums(made(3, 4, "relu"), {name}).sums) == {name, "mass", "unit"}
    assert RowSums(made(3, 4), {"max_score"}).sums == {}
    assert set(RowSums(made(3, 4), {"max_score"}).maxima) == {"max_score"}
    assert RowSums(made(3, 4), {"entropy"}).maxima == {}


@settings(max_examples=40)
@given(st.integers(1, 30), st.integers(1, 30), SEEDS, st.booleans(), st.data())
def test_received_does_not_depend_on_the_cuts(
    queries: int, keys: int, seed: int, weighted: bool, data: st.DataObject
) -> None:
    weights = drawn_map(seed, queries, keys)
    r = torch.rand(1, queries, generator=generator(seed + 1), dtype=torch.float64) if weighted else None
    found = feed(Received(made(queries, keys), r), weights, data.draw(cut(queries)), data.draw(cut(keys)))
    exact = weights.sum(-2) if r is None else (r[..., None, :] @ weights).squeeze(-2)
    assert gap(found, exact) <= 1e-13


@settings(max_examples=80)
@given(st.integers(1, 12), st.integers(1, 40), st.integers(1, 45), SEEDS, st.data())
def test_the_strongest_are_a_stable_sort(queries: int, keys: int, n: int, seed: int, data: st.DataObject) -> None:
    """Weights out of four values, so that nearly all are ties, and some cells hidden."""
    random = generator(seed)
    weights = torch.randint(0, 4, (1, queries, keys), generator=random).double() / 4
    visible = torch.rand(1, queries, keys, generator=random) < data.draw(st.sampled_from((0.1, 0.6, 1.0)))
    weights = weights * visible
    part = Strongest(made(queries, keys), n)
    found_keys, found = feed(part, weights, data.draw(cut(queries)), data.draw(cut(keys)), visible)
    for i in range(queries):
        order = sorted((-float(weights[0, i, j]), j) for j in range(keys) if visible[0, i, j])[:n]
        rest = n - len(order)
        assert found_keys[0, i].tolist() == [j for _, j in order] + [-1] * rest
        assert found[0, i].tolist() == [-w for w, _ in order] + [0.0] * rest


@settings(max_examples=100)
@given(st.integers(1, 40), st.integers(1, 40), SEEDS, st.booleans(), st.data())
def test_pixels_do_not_depend_on_the_cuts(
    queries: int, keys: int, seed: int, largest: bool, data: st.DataObject
) -> None:
    weights = drawn_map(seed, queries, keys)
    spans = []
    for length in (queries, keys):
        start = data.draw(st.integers(0, length - 1))
        spans.append(slice(start, data.draw(st.integers(start + 1, length))))
    number = data.draw(st.tuples(st.integers(1, 20), st.integers(1, 20)))
    by_cell = data.draw(st.booleans())
    axes = [
        geometry.axis(s, None if by_cell else n, n if by_cell else None) for s, n in zip(spans, number, strict=True)
    ]
    found = feed(Pixels(made(queries, keys), *axes, largest), weights, data.draw(cut(queries)), data.draw(cut(keys)))
    down, across = (
        stretches(s.start, s.stop, None, n) if by_cell else stretches(s.start, s.stop, min(n, s.stop - s.start), None)
        for s, n in zip(spans, number, strict=True)
    )
    cells = [[weights[0, a:b, c:d] for c, d in across] for a, b in down]
    exact = torch.stack([torch.stack([x.max() if largest else x.sum() for x in line]) for line in cells])
    assert gap(found[0], exact) <= 1e-13


def test_what_is_not_there_is_an_error() -> None:
    with pytest.raises(NotImplementedError):
        Accumulator().result()
