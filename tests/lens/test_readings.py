"""What was carried and what mattered: every reading is that of dense autograd, and all ways to ask for it agree."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

import sightline as sl
from cases import Case, cases, generator, inputs
from lens_cases import Map, lift, limit, whole_map
from sightline.errors import InputError, InputTypeError
from sightline.lens import by_map
from sightline.lens.cpu.top_keys import Best
from sightline.lens.kept import KeptSight
from sightline.lens.readings import Extra

ALL = slice(None)
SIGNED = ("influence", "pull")


def gradient(case: Case, seed: int = 0) -> Tensor:
    shape = (*case.q.shape[:-1], case.v.shape[-1])
    return torch.randn(shape, generator=generator(seed), dtype=torch.float64).to(case.q.dtype)


def by_autograd(case: Case, g: Tensor, m: Map) -> dict[str, Tensor]:
    """Influence with the weights as a leaf, pull with the scores, from the whole map in float64."""
    v, g = lift(case.v, case).double(), lift(g, case).double()
    values = v.repeat_interleave(m.weights.shape[-3] // v.shape[-3], -3)
    weights = m.weights.detach().requires_grad_()
    (slope,) = torch.autograd.grad(((weights @ values) * g).sum(), weights)
    found = {
        "weights": m.weights,
        "norms": m.weights * values.norm(dim=-1)[..., None, :],
        "influence": m.weights * slope,
        "terms": m.weights * (g.abs() @ values.abs().mT),
    }
    if case.options.get("normalizer", "softmax") == "softmax":
        empty = ~(m.scores > -torch.inf).any(-1, keepdim=True)
        scores = m.scores.masked_fill(empty, 0.0).requires_grad_()
        sinks = case.options.get("sinks")
        column = scores.new_full((*scores.shape[:-1], 1), -torch.inf)
        if sinks is not None:
            column = sinks.double()[..., None, None].expand(column.shape)
        both = torch.cat([scores, column], -1).softmax(-1)[..., :-1]
        (pull,) = torch.autograd.grad(((both @ values) * g).sum(), scores)
        found["pull"] = pull.masked_fill(empty, 0.0)
    return found


def close(found: Tensor, truth: Tensor, size: float, bound: float) -> bool:
    assert found.shape == truth.shape
    assert torch.isfinite(found).all()
    return not truth.numel() or float((found.double() - truth).abs().max()) <= bound * size + 1e-300


def bound_of(case: Case, of: str, m: Map) -> float:
    """As for weights; of half precision the output, from which g.o is made, has no more digits than it has."""
    eps = torch.finfo(case.q.dtype).eps if of == "pull" and case.q.dtype.itemsize == 2 else 0.0
    return 4 * limit(case.q.dtype, m.magnitude) + 2 * eps


def strongest(cells: Tensor, visible: Tensor, n: int) -> Tensor:
    sizes = cells.abs().masked_fill(~visible, -1.0)
    return sizes.topk(min(n, cells.shape[-1]), -1).values.clamp_min(0.0)


@settings(max_examples=60)
@given(cases(rarely=(), usually=(0, 1, 2, 5, 17, 64)), st.integers(0, 99))
def test_every_reading_is_that_of_dense_autograd(case: Case, seed: int) -> None:
    g, m = gradient(case, seed), whole_map(case)
    truth = by_autograd(case, g, m)
    _, sight = sl.observe(case.q, case.k, case.v, grad=g, **case.options)
    alone = sl.look(case.q, case.k, case.v, grad=g, **case.options)
    for of in ("norms", "influence", "pull"):
        if of not in truth:
            with pytest.raises(InputError, match="derivative by a score of a softmax"):
                sight.tile(ALL, ALL, of=of)
            continue
        cells = truth[of]
        size = float((cells if of == "norms" else truth["terms"]).abs().amax() if cells.numel() else 0.0)
        bound = bound_of(case, of, m)
        rows, keys = max(cells.shape[-2], 1), max(cells.shape[-1], 1)
        assert close(lift(sight.tile(ALL, ALL, of=of), case), cells, size, bound), of
        assert close(lift(alone.tile(ALL, ALL, of=of), case), cells, size, bound), of
        for reduce, column in (("sum", cells.sum(-2)), ("magnitude", cells.abs().sum(-2))):
            assert close(lift(sight.received(of=of, reduce=reduce), case), column, size * rows, bound), (of, reduce)
        largest = cells.abs().amax(-2) if cells.shape[-2] else torch.zeros_like(cells.sum(-2))
        assert close(lift(sight.received(of=of, reduce="max"), case).abs(), largest, size, bound), of
        top = sight.top(3, of=of)
        want = strongest(cells, m.visible, 3)
        assert close(lift(top.weights, case).abs()[..., : want.shape[-1]], want, size, bound), of
        if cells.numel():
            assert close(lift(sight.picture(size=(3, 2), reduce="sum", of=of), case).sum((-1, -2)), cells.sum((-1, -2)),
                         size * rows * keys, bound) or min(rows, keys) < 3, of  # fmt: skip
    assert close(lift(sight.influence, case), truth["influence"].sum(-1), *_of_rows(case, truth, m))
    assert close(lift(alone.influence, case), truth["influence"].sum(-1), *_of_rows(case, truth, m))


def _of_rows(case: Case, truth: dict[str, Tensor], m: Map) -> tuple[float, float]:
    """Rows are g.o, and the output has the digits of its dtype."""
    terms = truth["terms"].sum(-1)
    return float(terms.max()) if terms.numel() else 0.0, 8 * limit(case.q.dtype, m.magnitude) + 2 * torch.finfo(
        case.q.dtype
    ).eps


@settings(max_examples=40)
@given(cases((torch.float64,), rarely=(), usually=(1, 5, 17, 64)))
def test_rows_and_columns_sum_to_what_they_must(case: Case) -> None:
    """Rows of influence to g.o, of pull to 0 with the sink's, columns per key head to v.dV."""
    g = gradient(case)
    v = case.v.clone().requires_grad_()
    out = sl.attention(case.q, case.k, v, **case.options)
    (dv,) = torch.autograd.grad(out, v, g)
    sight = sl.look(case.q, case.k, case.v, grad=g, **case.options)
    influence = sight.tile(ALL, ALL, of="influence")
    torch.testing.assert_close(influence.sum(-1), (g * out.detach()).sum(-1), atol=1e-10, rtol=1e-9)
    columns = lift(sight.received(of="influence"), case)
    per_key_head = columns.unflatten(-2, (lift(v, case).shape[-3], -1)).sum(-2)
    torch.testing.assert_close(per_key_head, lift((v * dv).sum(-1), case), atol=1e-10, rtol=1e-9)
    if case.options.get("normalizer", "softmax") == "softmax":
        pull = sight.tile(ALL, ALL, of="pull").sum(-1) - sight.sink_share * sight.influence
        assert float(pull.abs().max() if pull.numel() else 0.0) < 1e-10


@pytest.mark.parametrize("of", ["influence", "pull"])
def test_in_half_precision_no_worse_than_twice_eager(of: str) -> None:
    q, k, v = inputs(2, heads=4, kv_heads=2, queries=67, keys=83, dim=16, dtype=torch.bfloat16)
    case = Case(q, k, v, {"mask": sl.causal()}, sl.causal().to_dense(67, 83))
    g = gradient(case)
    m = whole_map(case)
    truth = by_autograd(case, g, m)[of]
    # Eager attention with its gradients kept, all in bfloat16.
    values = v.repeat_interleave(2, 1)
    scores = (q @ k.repeat_interleave(2, 1).mT * 16**-0.5).masked_fill(~m.visible, -torch.inf).requires_grad_()
    weights = scores.softmax(-1)
    weights.retain_grad()
    (weights @ values).backward(g)
    assert weights.grad is not None
    assert scores.grad is not None
    eager = weights * weights.grad if of == "influence" else scores.grad
    sight = sl.look(q, k, v, grad=g, mask=sl.causal())
    ours = (sight.tile(ALL, ALL, of=of).double() - truth).abs()
    theirs = (eager.detach().double() - truth).abs()
    assert ours.max() <= 2 * theirs.max()
    assert ours.mean() <= 2 * theirs.mean()


@pytest.fixture(scope="module")
def long() -> tuple[Tensor, ...]:
    q, k, v = inputs(1, heads=4, kv_heads=2, queries=517, keys=601, dim=8, value_dim=5, dtype=torch.float32)
    return q, k, v, torch.randn(1, 4, 517, 5, generator=generator(3))


STATS = tuple(
    request
    for of in ("influence", "pull", "norms")
    for request in (
        sl.Top(5, of=of),
        sl.Picture(20, 31, of=of, reduce="max"),
        sl.Picture(20, 31, of=of),
        sl.Received(of=of),
        sl.Received(of=of, reduce="max"),
        sl.Received(of=of, reduce="magnitude"),
    )
)


def same_results(one: sl.Sight, other: sl.Sight, exactly: bool) -> None:
    for request, value in one.kept.items():
        parts, others = (x if isinstance(x, tuple) else (x,) for x in (value, other.kept[request]))
        for a, b in zip(parts, others, strict=True):
            assert torch.equal(a, b) if exactly else torch.allclose(a, b, atol=2e-5, rtol=1e-4), request


def test_many_readings_in_one_pass_and_the_same_bits_twice(
    long: tuple[Tensor, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    q, k, v, g = long
    options: dict[str, Any] = {"mask": sl.causal() & sl.window(300), "sinks": torch.zeros(4), "softcap": 8.0}
    one, two = (sl.look(q, k, v, grad=g, stats=STATS, **options) for _ in range(2))
    same_results(one, two, exactly=True)
    # All maps together, in other tiles.
    monkeypatch.setattr(by_map, "_SMALL", 1 << 60)
    same_results(one, sl.look(q, k, v, grad=g, stats=STATS, **options), exactly=False)
    cells = {of: one.tile(ALL, ALL, of=of) for of in ("influence", "pull", "norms")}
    for of, x in cells.items():
        top = one.top(5, of=of)
        at = x.gather(-1, top.keys.clamp_min(0)).masked_fill(top.keys < 0, 0.0)
        assert torch.allclose(top.weights, at, atol=1e-5)
        assert (top.weights.abs().diff(dim=-1) <= 1e-6).all()
        assert torch.allclose(top.weights.abs(), x.abs().topk(5, -1).values, atol=1e-5)
        low, high = x.amin(-2), x.amax(-2)
        assert torch.allclose(one.received(of=of, reduce="max"), torch.where(high >= -low, high, low), atol=1e-5)


@pytest.mark.parametrize("of", ["weights", "norms", "influence", "pull"])
@pytest.mark.parametrize("options", [{}, {"softcap": 20.0}, {"mask": sl.window(30), "bias": sl.alibi(4)}])
def test_a_cell_is_the_same_in_any_rectangle(of: str, options: dict[str, Any]) -> None:
    """Also where scores are large, and where the terms of g . v nearly cancel: a product's rounding is not seen."""
    torch.manual_seed(0)
    q, g = 5 * torch.randn(4, 97, 64), torch.randn(4, 97, 64)
    k, v = torch.randn(2, 97, 64), torch.randn(2, 97, 64)
    sight = sl.look(q, k, v, grad=g, **{"mask": sl.causal(), **options})
    whole = sight.tile(ALL, ALL, of=of)
    parts = [
        (slice(96, 97), ALL),
        (ALL, slice(40, 41)),
        (slice(60, 61), slice(41, 42)),
        (slice(31, 84), slice(7, 66)),
    ]
    for rows, columns in parts:
        torch.testing.assert_close(sight.tile(rows, columns, of=of), whole[:, rows, columns], rtol=1e-6, atol=0)
    one = sight.select(heads=[3])
    torch.testing.assert_close(one.tile(ALL, slice(5, 9), of=of)[0], whole[3, :, 5:9], rtol=1e-6, atol=0)
    torch.testing.assert_close(
        sight.scores(slice(50, 51), slice(3, 4)), sight.scores(ALL, ALL)[:, 50:51, 3:4], rtol=1e-6, atol=0
    )


def test_pictures_of_signed_readings_keep_the_sign_of_the_largest() -> None:
    q, k, v = inputs(heads=1, queries=12, keys=12, dim=4)
    g = torch.randn(1, 12, 4, generator=generator(5), dtype=torch.float64)
    sight = sl.look(q, k, v, grad=g, mask=sl.causal())
    cells = sight.tile(ALL, ALL, of="influence")[0]
    blocks = cells.unfold(0, 3, 3).unfold(1, 4, 4).flatten(-2)
    want = blocks.gather(-1, blocks.abs().argmax(-1, keepdim=True))[..., 0]
    torch.testing.assert_close(sight.picture(cell=(3, 4), reduce="max", of="influence")[0], want)
    assert (want < 0).any()
    mean = sight.picture(cell=(3, 4), of="influence", visible_only=True)[0]
    seen = sl.causal().to_dense(12, 12).unfold(0, 3, 3).unfold(1, 4, 4).flatten(-2).sum(-1)
    torch.testing.assert_close(mean, torch.where(seen > 0, blocks.sum(-1) / seen, torch.nan), equal_nan=True)


def test_received_with_weights_of_queries(long: tuple[Tensor, ...]) -> None:
    q, k, v, g = (x[..., :61, :] for x in long)
    sight, r = sl.look(q, k, v, grad=g), torch.randn(1, 4, 61, generator=generator(8))
    for of in ("weights", "norms", "influence"):
        cells = r[..., None] * sight.tile(ALL, ALL, of=of)
        assert torch.allclose(sight.received(r, of=of), cells.sum(-2), atol=1e-5)
        assert torch.allclose(sight.received(r, of=of, reduce="magnitude"), cells.abs().sum(-2), atol=1e-5)
        low, high = cells.amin(-2), cells.amax(-2)
        assert torch.allclose(sight.received(r, of=of, reduce="max"), torch.where(high >= -low, high, low), atol=1e-6)


def test_rows_that_see_nothing_and_what_is_hidden_in_nan() -> None:
    """Padding may hold anything, in v and in g."""
    q, k, v = inputs(2, queries=6, keys=7, dtype=torch.float32)
    g = torch.randn(2, 2, 6, 4, generator=generator(1))
    keep = torch.ones(2, 1, 6, 7, dtype=torch.bool)
    keep[0, :, 2] = False
    keep[1, ..., -2:] = False
    clean = sl.look(q, k, v, grad=g, mask=sl.dense(keep))
    v, g = v.clone(), g.clone()
    v[1, :, -2:], g[0, :, 2] = torch.nan, torch.nan
    spoilt = sl.look(q, k, v, grad=g, mask=sl.dense(keep))
    for of in ("norms", "influence", "pull"):
        cells = spoilt.tile(ALL, ALL, of=of)
        assert (cells[0, :, 2] == 0).all()
        assert (cells[1, ..., -2:] == 0).all()
        torch.testing.assert_close(cells, clean.tile(ALL, ALL, of=of), atol=1e-6, rtol=1e-5)
        assert torch.equal(spoilt.top(2, of=of).keys, clean.top(2, of=of).keys)
        assert (spoilt.top(2, of=of).keys[0, :, 2] == -1).all()
        torch.testing.assert_close(spoilt.received(of=of), clean.received(of=of), atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(spoilt.influence, clean.influence, atol=1e-5, rtol=1e-5)
    assert (spoilt.influence[0, :, 2] == 0).all()


def test_rows_hidden_by_a_large_bias_are_uniform() -> None:
    """That is what torch computed."""
    q, k, v = inputs(queries=5, keys=5, dtype=torch.float32)
    g = torch.randn(2, 5, 4, generator=generator(1))
    bias = torch.zeros(5, 5)
    bias[3] = -1e9
    sight = sl.look(q, k, v, grad=g, bias=bias)
    torch.testing.assert_close(sight.tile(3, ALL, of="influence"), (g[:, 3:4] @ v.mT) / 5)
    assert sight.tile(3, ALL, of="pull").sum(-1).abs().max() < 1e-5


def test_a_kept_sight_answers_from_what_it_has() -> None:
    q, k, v = inputs(2, queries=9, keys=9, dtype=torch.float32)
    g = torch.randn(2, 2, 9, 4, generator=generator(1))
    full = sl.look(q, k, v, grad=g, mask=sl.causal(), stats=("received", sl.Picture(cell=(1, 1), reduce="sum")))
    full.prepare(sl.Received(of="norms"))
    sizes = full.extra.sizes
    bare = full.call.replace(q=None, k=None, v=None)
    kept = KeptSight(bare, full.row, {sl.Picture(cell=(1, 1), reduce="sum"): full.picture(cell=(1, 1), reduce="sum")},
                     extra=Extra(along=full.influence, sizes=sizes, norms_of="the projection"))  # fmt: skip
    assert kept.norms_of == "the projection"
    assert torch.equal(kept.influence, full.influence)
    torch.testing.assert_close(kept.tile(slice(2, 5), ALL, of="norms"), full.tile(slice(2, 5), ALL, of="norms"))
    torch.testing.assert_close(kept.received(of="norms"), full.received(of="norms"))
    torch.testing.assert_close(kept.top(3, of="norms").weights, full.top(3, of="norms").weights)
    torch.testing.assert_close(kept.picture(size=(3, 4), of="norms"), full.picture(size=(3, 4), of="norms"))
    torch.testing.assert_close(kept.spans({"a": [0, 1]}, of="norms").table, full.spans({"a": [0, 1]}, of="norms").table)
    torch.testing.assert_close(kept.share(sl.window(2)), full.share(sl.window(2)))
    with pytest.raises(InputError, match="influence of cells is not known here") as caught:
        kept.top(1, of="influence")
    assert caught.value.got == "no v and no grad"
    assert "seen.backward(y)" in str(caught.value.hint)
    # Without the map the norms of keys still follow from what they received.
    less = KeptSight(bare, full.row, {"received": full.received()}, extra=Extra(sizes=sizes, norms_of="the projection"))
    torch.testing.assert_close(less.received(of="norms"), full.received(of="norms"))
    with pytest.raises(InputError, match=r"top\(2, of='norms'\) needs q and k"):
        less.top(2, of="norms")
    with pytest.raises(InputError, match="influence of cells is not known here"):
        _ = less.influence


def test_what_is_missing_is_said() -> None:
    q, k, v = inputs(queries=5, keys=5)
    g = torch.zeros(2, 5, 4, dtype=torch.float64)
    with pytest.raises(InputError, match="norms of cells is not known here") as caught:
        sl.look(q, k).received(of="norms")
    assert caught.value.hint == "sl.look(q, k, v) or sl.observe(q, k, v)"
    with pytest.raises(InputError, match="influence of cells is not known here") as caught:
        sl.look(q, k, v, stats=sl.Top(3, of="influence"))
    assert caught.value.got == "no grad"
    with pytest.raises(InputError, match="influence of cells is not known here"):
        _ = sl.look(q, k, v).influence
    with pytest.raises(InputError, match="grad needs the values too"):
        sl.look(q, k, grad=g)
    with pytest.raises(InputError, match="under dropout"):
        sl.observe(q, k, v, grad=g, dropout=0.1)
    with pytest.raises(InputError, match="derivative by a score of a softmax") as caught:
        sl.look(q, k, v, grad=g, normalizer="relu", stats=sl.Received(of="pull"))
    assert caught.value.got == "'relu'"
    with pytest.raises(InputError, match="grad does not fit the call"):
        sl.look(q, k, v, grad=g[:1])
    with pytest.raises(InputTypeError, match="grad must be a floating tensor"):
        sl.look(q, k, v, grad=g.long())
    for ask in (sl.Top, sl.Picture, sl.Received, sl.look(q, k, v).received):
        with pytest.raises(InputError, match="unknown reading") as caught:
            ask(of="gradient")
        assert caught.value.expected == "one of weights, norms, influence, pull"
    with pytest.raises(InputError, match="unknown reduction"):
        sl.look(q, k).received(reduce="mean")


def test_values_alone_are_no_reason_to_refuse_weights() -> None:
    """A sight is a photograph: what v was changed to is never read, and what does not need it stays."""
    q, k, v = inputs(queries=5, keys=5)
    g = torch.randn(2, 5, 4, generator=generator(2), dtype=torch.float64)
    _, sight = sl.observe(q, k, v, grad=g)
    top, rows = sight.top(2, of="influence"), sight.influence
    v.mul_(2)
    assert torch.equal(sight.top(2, of="influence").weights, top.weights)  # it was computed
    assert torch.equal(sight.influence, rows)
    assert sight.received().shape == (2, 5)
    for ask in (lambda: sight.top(3, of="influence"), lambda: sight.received(of="norms")):
        with pytest.raises(InputError, match="v was changed after the call"):
            ask()
    assert sight.select(heads=[1]).extra.v is None
    g.zero_()
    with pytest.raises(InputError, match="v and grad were changed after the call"):
        sight.tile(0, 0, of="influence")
    with torch.inference_mode():
        seen = sl.look(q, k, v * 1)
        assert seen.extra.v is None
        assert torch.equal(seen.tile(ALL, ALL, of="norms"), seen.tile(ALL, ALL) * v.norm(dim=-1)[:, None])


def test_one_member_and_some_heads_read_alike(long: tuple[Tensor, ...]) -> None:
    q, k, v, g = (x[..., :40, :] for x in long)
    sight = sl.look(q, k, v, grad=g, mask=sl.causal(), stats=(sl.Received(of="pull"), sl.Top(2, of="influence")))
    part = sight.select(batch=0, heads=[3, 1])
    assert torch.equal(part.received(of="pull"), sight.received(of="pull")[0, [3, 1]])
    for of in ("norms", "influence", "pull"):
        whole = sight.tile(ALL, ALL, of=of)[0, [3, 1]]
        torch.testing.assert_close(part.tile(ALL, ALL, of=of), whole, atol=1e-6, rtol=1e-5)
    torch.testing.assert_close(part.influence, sight.influence[0, [3, 1]])


def test_two_readings_of_one_long_map_stay_small(long: tuple[Tensor, ...]) -> None:
    """A map of 24,000 x 24,000 would be two gigabytes."""
    q = torch.randn(1, 24_000, 4, generator=generator(0))
    g = torch.randn(1, 24_000, 4, generator=generator(1))
    sight = sl.look(q, q, q, grad=g, mask=sl.window(40), stats=(sl.Top(2, of="influence"), sl.Received(of="pull")))
    near = sight.tile(slice(23_000, 23_010), slice(22_900, 23_010), of="influence")
    top = sight.top(2, of="influence")
    assert torch.allclose(top.weights[:, 23_000:23_010, 0].abs(), near.abs().amax(-1), atol=1e-5)


def test_what_a_mask_hides_is_not_sorted(long: tuple[Tensor, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    """Tiles on the diagonal have many cells that are alike: absent. They are ranked below all others, apart."""
    answers = []
    by_groups = Best._by_groups
    monkeypatch.setattr(Best, "_by_groups", lambda *given: answers.append(by_groups(*given)) or answers[-1])
    q, k, v, g = (x[:, :2] for x in (long[0], long[1], long[2], long[3]))
    sight = sl.look(q, k, v, grad=g, mask=sl.causal(align="start"))
    top = sight.top(5, of="influence")
    assert len(answers) > 4
    assert all(answers)
    cells = sight.tile(ALL, ALL, of="influence")
    assert torch.allclose(top.weights.abs(), cells.abs().topk(5, -1).values, atol=1e-6)
    assert torch.equal((top.keys >= 0).sum(-1)[0, 0], torch.arange(1, 518).clamp_max(5))
