"""Every statistic of a sight against the float64 definition made from the whole map."""

from __future__ import annotations

import subprocess
import sys
from itertools import pairwise

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

import sightline as sl
from cases import Case, cases, generator, inputs
from lens_cases import Map, gap, lift, limit, painted, statistics, whole_map
from sightline.errors import InputError, InputTypeError

PRECISE = (torch.float64, torch.float32)
HALVES = (torch.float16, torch.bfloat16)


def seen(case: Case, **more: object) -> sl.Sight:
    return sl.look(case.q, case.k, **case.options, **more)


def asked(sight: sl.Sight) -> dict[str, Tensor]:
    """Every row statistic, and what the keys received; without the lse where it has no meaning."""
    names = ["entropy", "distance", "max_score", "total", "sink_share"]
    found = {name: getattr(sight, name) for name in names}
    if "'softmax'" in repr(sight):
        found["lse"] = sight.lse
    found["received"] = sight.received()
    return found


def check(
    case: Case, found: dict[str, Tensor], m: Map, truth: dict[str, Tensor], eager: dict[str, Tensor] | None
) -> None:
    for name, value in found.items():
        assert not value.requires_grad
        ours, allowed = gap(lift(value, case), truth[name], name), limit(case.q.dtype, m.magnitude)
        if eager is not None:
            theirs = gap(eager[name], truth[name], name)
            allowed = max(allowed, 2 * theirs)
        assert ours <= allowed, f"{name}: error {ours:.3g}, allowed {allowed:.3g}, {case}"


def check_top(case: Case, m: Map, n: int, allowed: float) -> None:
    top = seen(case).top(n)
    keys, weights = lift(top.keys, case), lift(top.weights, case)
    assert keys.shape == weights.shape == (*m.weights.shape[:-1], n)
    there = keys >= 0
    assert torch.equal(there.sum(-1), m.visible.sum(-1).clamp_max(n))
    assert bool((there[..., :-1] | ~there[..., 1:]).all()), "the absent keys come last"
    assert bool((weights[~there] == 0).all())
    assert bool((keys[~there] == -1).all())
    assert bool((weights[..., :-1] >= weights[..., 1:]).all())
    if not keys.numel() or not m.weights.shape[-1]:
        return
    ranked = m.weights.masked_fill(~m.visible, -1.0).sort(-1, descending=True).values.clamp_min(0.0)
    ranked = torch.nn.functional.pad(ranked, (0, max(0, n - ranked.shape[-1])))[..., :n]
    assert gap(weights, ranked) <= allowed
    # The keys are those of the weights, each of them once, and visible.
    of_keys = m.weights.gather(-1, keys.clamp_min(0)).masked_fill(~there, 0.0)
    assert gap(weights, of_keys) <= allowed
    assert bool(m.visible.gather(-1, keys.clamp_min(0))[there].all())
    marked = torch.zeros(*m.weights.shape[:-1], m.weights.shape[-1] + 1).scatter_add_(
        -1, keys.masked_fill(~there, m.weights.shape[-1]), torch.ones_like(weights, dtype=torch.float32)
    )
    assert bool((marked[..., :-1] <= 1).all())


@settings(max_examples=120)
@given(cases(PRECISE))
def test_every_row_statistic_and_received(case: Case) -> None:
    m = whole_map(case)
    check(case, asked(seen(case)), m, statistics(m), None)


@settings(max_examples=80)
@given(cases(HALVES))
def test_in_half_precision_the_error_is_at_most_twice_that_of_eager_torch(case: Case) -> None:
    m = whole_map(case)
    check(case, asked(seen(case)), m, statistics(m), statistics(whole_map(case, case.q.dtype)))


@settings(max_examples=60)
@given(cases(PRECISE), st.sampled_from((1, 2, 5, 40)))
def test_top(case: Case, n: int) -> None:
    m = whole_map(case)
    check_top(case, m, n, limit(case.q.dtype, m.magnitude))


@settings(max_examples=60)
@given(cases(PRECISE), st.integers(0, 2**32 - 1))
def test_received_with_weights_is_the_product_with_the_map(case: Case, seed: int) -> None:
    m = whole_map(case)
    r = torch.randn(m.weights.shape[:-1], generator=generator(seed), dtype=torch.float64)
    given_r = (r[0] if case.q.dim() == 2 else r).to(case.q.dtype)
    found = lift(seen(case).received(given_r), case)
    exact = (given_r.double().reshape(r.shape)[..., None, :] @ m.weights).squeeze(-2)
    # Signs may cancel: the error is relative to the sum of what is added.
    size = float((r.abs()[..., None, :] @ m.weights).max()) if m.weights.numel() else 0.0
    assert found.shape == exact.shape
    if exact.numel():
        assert float((found.double() - exact).abs().max()) <= limit(case.q.dtype, m.magnitude) * size


@st.composite
def parts(draw: st.DrawFn, length: int) -> tuple[int, int]:
    start = draw(st.integers(0, length - 1))
    return start, draw(st.integers(start + 1, length))


@settings(max_examples=120)
@given(cases(PRECISE), st.data())
def test_tiles_and_pictures_of_any_rectangle(case: Case, data: st.DataObject) -> None:
    queries, keys = case.q.shape[-2], case.k.shape[-2]
    sight, m = seen(case), whole_map(case)
    allowed = limit(case.q.dtype, m.magnitude)
    if not queries or not keys:
        with pytest.raises(InputError, match=r"a picture of no (rows|columns)"):
            sight.picture()
        assert lift(sight.tile(slice(None), slice(None)), case).shape == m.weights.shape
        return
    whole = data.draw(st.booleans(), "whole")
    rows = (0, queries) if whole else data.draw(parts(queries), "rows")
    columns = (0, keys) if whole else data.draw(parts(keys), "columns")
    tile = lift(sight.tile(slice(*rows), slice(*columns)), case)
    part = m.weights[..., slice(*rows), slice(*columns)]
    assert tile.shape == part.shape
    if part.numel():
        scale = float(part.max())
        assert float((tile.double() - part).abs().max()) <= allowed * max(scale, 1e-30)
    side = st.integers(1, 12)
    how = data.draw(st.sampled_from(("size", "cell")), "how")
    pair = data.draw(st.tuples(side, side), "pair")
    if how == "cell":
        pair = (max(pair[0], (rows[1] - rows[0]) // 12), max(pair[1], (columns[1] - columns[0]) // 12))
    for reduce in ("mean", "max", "sum"):
        for visible_only in (False, True):
            options = {"reduce": reduce, "visible_only": visible_only, how: pair}
            found = lift(sight.picture(slice(*rows), slice(*columns), **options), case)
            exact = painted(m, rows, columns, **options)
            assert gap(found, exact) <= allowed, f"{options}, {case}"


MASKS = ("none", "causal", "start", "window", "prefix", "documents", "padding", "joined")
OTHERS = [(name, normalizer) for name in ("causal", "joined") for normalizer in ("relu", "sigmoid", "uniform")]


@pytest.mark.parametrize("name, normalizer", [*((name, "softmax") for name in MASKS), *OTHERS])
def test_maps_of_several_tiles(name: str, normalizer: str) -> None:
    """300 x 700 crosses tile borders both ways; all statistics of it in one pass."""
    ids = torch.arange(700) // 130
    table = {
        "none": None,
        "causal": sl.causal(),
        "start": sl.causal(align="start"),
        "window": sl.window(40, 7),
        "prefix": sl.prefix(90),
        "documents": sl.documents(ids[400:], ids),
        "padding": sl.padding(torch.tensor([611])),
        "joined": (sl.causal() & sl.documents(ids[400:], ids)) | ~sl.window(300, 200),
    }[name]
    q, k, v = inputs(1, heads=4, kv_heads=2, queries=300, keys=700, dim=8, dtype=torch.float32)
    options = {"mask": table, "normalizer": normalizer}
    dense = None if table is None else table.to_dense(300, 700)
    case = Case(q, k, v, options, dense)
    pictures = [sl.Picture(2, 710), sl.Picture(16, 20, reduce="max"), sl.Picture(cell=(32, 100), reduce="sum")]
    sight = seen(case, stats=("entropy", "distance", "max_score", "received", sl.Top(8), *pictures))
    m = whole_map(case)
    check(case, asked(sight), m, statistics(m), None)
    check_top(case, m, 8, limit(torch.float32, m.magnitude))
    assert gap(sight.tile(slice(None), slice(None)), m.weights) <= 1e-5
    assert gap(sight.picture(size=(2, 710)), painted(m, size=(2, 710))) <= 1e-5
    assert gap(sight.picture(size=(16, 20), reduce="max"), painted(m, size=(16, 20), reduce="max")) <= 1e-5
    assert gap(sight.picture(cell=(32, 100), reduce="sum"), painted(m, cell=(32, 100), reduce="sum")) <= 1e-5


def test_a_map_of_several_tiles_with_everything() -> None:
    random = generator(3)
    q, k, v = inputs(2, heads=4, kv_heads=1, queries=300, keys=700, dim=16, dtype=torch.float32)
    bias = torch.randn(4, 1, 700, generator=random)
    options = {
        "mask": sl.causal(),
        "bias": bias,
        "softcap": 5.0,
        "sinks": torch.randn(4, generator=random),
        "scale": 0.3,
    }
    case = Case(q, k, v, options, sl.causal().to_dense(300, 700))
    m = whole_map(case)
    check(case, asked(seen(case)), m, statistics(m), None)
    check_top(case, m, 3, 1e-5)


def test_an_empty_row_has_no_numbers() -> None:
    q, k, _ = inputs(queries=4, keys=2)
    sight = sl.look(q, k, mask=sl.causal())  # the first two rows see nothing
    assert sight.lse[:, :2].eq(-torch.inf).all()
    assert sight.max_score[:, :2].eq(-torch.inf).all()
    for name in ("entropy", "distance", "total", "sink_share"):
        assert getattr(sight, name)[:, :2].eq(0).all(), name
    assert sight.top(2).keys[:, :2].eq(-1).all()
    assert sight.top(2).weights[:, :2].eq(0).all()
    assert sight.tile(slice(0, 2), slice(None)).eq(0).all()


def test_a_row_that_a_bias_empties_is_like_one_that_a_mask_empties() -> None:
    q, k, _ = inputs(queries=4, keys=3)
    bias = torch.zeros(4, 3, dtype=torch.float64)
    bias[1] = -torch.inf
    sight = sl.look(q, k, bias=bias)
    assert sight.lse[:, 1].eq(-torch.inf).all()
    for name in ("entropy", "distance", "total"):
        assert getattr(sight, name)[:, 1].eq(0).all(), name


@pytest.mark.parametrize("normalizer", ["relu", "sigmoid", "uniform"])
def test_only_softmax_has_an_lse(normalizer: str) -> None:
    q, k, _ = inputs()
    sight = sl.look(q, k, normalizer=normalizer)
    with pytest.raises(InputError, match="only softmax has a log-sum-exp") as caught:
        _ = sight.lse
    assert normalizer in str(caught.value)
    assert "try: sight.total" in str(caught.value)


@pytest.mark.parametrize("normalizer", ["relu", "sigmoid", "uniform"])
def test_asking_for_the_lse_in_stats_is_the_same_error(normalizer: str) -> None:
    q, k, v = inputs()
    with pytest.raises(InputError, match="only softmax has a log-sum-exp"):
        sl.observe(q, k, v, normalizer=normalizer, stats=("lse",))


def test_sinks_take_their_share() -> None:
    q, k, _ = inputs(heads=2, queries=3, keys=4)
    sight = sl.look(q, k, scale=0.0, sinks=torch.tensor([0.0, 4.0], dtype=torch.float64).log().nan_to_num(neginf=-1e9))
    # Four keys of score 0: the first head's sink is as good as not there, the second's weighs as much as all keys.
    assert torch.allclose(sight.sink_share, torch.tensor([[0.0], [0.5]], dtype=torch.float64).expand(2, 3))
    assert torch.allclose(sight.total + sight.sink_share, torch.ones(2, 3, dtype=torch.float64))
    assert torch.allclose(sight.entropy, torch.full((2, 3), 4.0, dtype=torch.float64).log())


def test_an_infinitely_weak_sink_is_no_sink() -> None:
    q, k, _ = inputs(heads=1, queries=3, keys=2)
    sight = sl.look(q, k, mask=sl.causal(), sinks=torch.tensor([-torch.inf], dtype=torch.float64))
    assert sight.sink_share.eq(0).all()
    assert torch.allclose(sight.total, torch.tensor([[0.0, 1.0, 1.0]], dtype=torch.float64))


def test_a_strong_sink_leaves_the_shape_of_the_rest() -> None:
    """Entropy and distance are of the weights divided by their sum, however little the sink leaves."""
    q, k, _ = inputs(heads=1, queries=5, keys=9, dtype=torch.float32)
    free, weak = sl.look(q, k), sl.look(q, k, sinks=torch.tensor([60.0]))
    assert gap(weak.entropy, free.entropy) <= 2e-5
    assert gap(weak.distance, free.distance) <= 2e-5


@pytest.mark.parametrize("dtype", PRECISE)
def test_top_breaks_ties_by_the_lower_key(dtype: torch.dtype) -> None:
    """1,300 keys of three kinds: equal weights lie in different tiles."""
    random = generator(1)
    kind = torch.randint(0, 3, (1300,), generator=random)
    k = torch.eye(4, dtype=dtype)[kind]  # products are exactly 1, 2 and 4
    q = torch.tensor([[1.0, 2.0, 4.0, 0.0], [4.0, 1.0, 2.0, 0.0]], dtype=dtype)
    for mask in (None, sl.causal(), sl.dense(torch.rand(2, 1300, generator=random) < 0.5)):
        visible = torch.ones(2, 1300, dtype=torch.bool) if mask is None else mask.to_dense(2, 1300)
        for n in (1, 8, 500, 700, 1299, 1301):
            keys = sl.look(q, k, mask=mask, scale=1.0).top(n).keys
            for i in range(2):
                order = sorted((-float(q[i, kind[j]]), j) for j in visible[i].nonzero().flatten().tolist())
                expected = [j for _, j in order][:n]
                assert keys[i].tolist() == expected + [-1] * (n - len(expected))


@pytest.mark.parametrize("normalizer", ["uniform", "relu"])
def test_top_of_many_equal_weights(normalizer: str) -> None:
    q, k = -torch.ones(3, 4), torch.ones(1100, 4)  # relu: every weight is 0
    top = sl.look(q, k, normalizer=normalizer).top(600)
    assert torch.equal(top.keys, torch.arange(600).expand(3, 600))
    window = sl.look(q, k, normalizer=normalizer, mask=sl.window(520)).top(600)
    for i in range(3):
        first = 1097 + i - 520
        assert window.keys[i].tolist() == list(range(first, 1098 + i)) + [-1] * 79


def test_top_of_more_than_there_are() -> None:
    top = sl.look(torch.randn(3, 4), torch.randn(5, 4)).top(9)
    assert top.keys[:, 5:].eq(-1).all()
    assert top.weights[:, 5:].eq(0).all()
    assert torch.equal(top.keys[:, :5].sort(-1).values, torch.arange(5).expand(3, 5))


def test_three_layers_multiplied_without_their_maps() -> None:
    """Attention rollout: r A3 A2 A1, by one pass a layer."""
    layers = [inputs(1, heads=1, queries=333, keys=333, dim=8, seed=seed)[:2] for seed in range(3)]
    sights = [sl.look(q, k, mask=sl.causal()) for q, k in layers]
    r = torch.zeros(1, 1, 333, dtype=torch.float64)
    r[..., -1] = 1
    product = r[..., None, :]
    for sight in reversed(sights):
        r = sight.received(weights=r)
        product = product @ sight.tile(slice(None), slice(None))
    assert gap(r, product.squeeze(-2)) <= 1e-12
    assert float(r.sum()) == pytest.approx(1.0, abs=1e-12)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_weights_of_a_row_sum_to_one(dtype: torch.dtype) -> None:
    """Also where the bias is finer than q and k: the lse and the weights must mean the same bias."""
    q, k, _ = inputs(1, queries=20, keys=30, dtype=dtype)
    for bias in (20 * torch.randn(20, 30), sl.alibi(2)):
        tile = sl.look(q, k, bias=bias).tile(slice(None), slice(None))
        assert float((tile.sum(-1) - 1).abs().max()) <= 1e-4


def test_tiles_put_together_are_the_map() -> None:
    q, k, v = inputs(2, heads=4, kv_heads=2, queries=61, keys=97)
    options = {"mask": sl.window(30, 2), "bias": sl.alibi(4)}
    sight = sl.look(q, k, **options)
    case = Case(q, k, v, options, sl.window(30, 2).to_dense(61, 97))
    cuts, across = [0, 1, 20, 20, 53, 61], [0, 33, 64, 97]
    rows = [
        torch.cat([sight.tile(slice(a, b), slice(c, d)) for c, d in pairwise(across)], -1) for a, b in pairwise(cuts)
    ]
    assert gap(torch.cat(rows, -2), whole_map(case).weights) <= 1e-12


def test_pictures_of_four_quadrants_are_the_picture_of_the_whole() -> None:
    q, k, _ = inputs(1, heads=2, queries=600, keys=1100, dtype=torch.float32)
    sight = sl.look(q, k, mask=sl.causal())
    for reduce in ("mean", "max", "sum"):
        for visible_only in (False, True):
            how = {"cell": (20, 25), "reduce": reduce, "visible_only": visible_only}
            whole = sight.picture(**how)
            quarters = [
                [sight.picture(slice(a, b), slice(c, d), **how) for c, d in ((0, 550), (550, 1100))]
                for a, b in ((0, 300), (300, 600))
            ]
            together = torch.cat([torch.cat(row, -1) for row in quarters], -2)
            assert whole.shape == (1, 2, 30, 44)
            assert gap(together, whole) <= 1e-6, how


def test_small_pictures_repeat_cells() -> None:
    q, k, _ = inputs(heads=1, queries=3, keys=5)
    sight = sl.look(q, k)
    tile = sight.tile(slice(1, 3), slice(1, 5))
    picture = sight.picture(slice(1, 3), slice(1, 5), size=(6, 10))
    rows, columns = torch.arange(6) * 2 // 6, torch.arange(10) * 4 // 10
    assert torch.equal(picture, tile[:, rows][:, :, columns])


def test_hidden_cells_count_as_zero_unless_only_visible_ones_are_asked_for() -> None:
    sight = sl.look(torch.zeros(4, 2), torch.zeros(4, 2), mask=sl.causal())
    mean, seen_only = sight.picture(size=(2, 2)), sight.picture(size=(2, 2), visible_only=True)
    assert torch.allclose(mean, torch.tensor([[2.0 / 4, 0.0], [(2 / 3 + 2 / 4) / 4, (1 / 3 + 2 / 4) / 4]]))
    assert torch.allclose(seen_only[0, 0], torch.tensor(2.0 / 3))
    assert torch.isnan(seen_only[0, 1])
    assert torch.allclose(seen_only[1], torch.tensor([(2 / 3 + 2 / 4) / 4, (1 / 3 + 2 / 4) / 3]))


def test_a_batch_is_its_members() -> None:
    q, k, _ = inputs(2, 3, heads=2, queries=9, keys=11)
    lengths = torch.tensor([[1, 5, 11], [0, 7, 2]])
    whole = sl.look(q, k, mask=sl.padding(lengths))
    for i in range(2):
        for j in range(3):
            one = sl.look(q[i, j], k[i, j], mask=sl.padding(lengths[i, j]))
            for name in ("lse", "entropy", "distance", "max_score"):
                assert gap(getattr(whole, name)[i, j], getattr(one, name), name) <= 1e-12
            assert torch.equal(whole.top(3).keys[i, j], one.top(3).keys)


def test_the_same_call_twice_gives_the_same_bits() -> None:
    q, k, _ = inputs(2, heads=4, kv_heads=2, queries=300, keys=700, dtype=torch.float32)
    stats = (
        "entropy",
        "distance",
        "max_score",
        "received",
        sl.Top(5),
        sl.Picture(50, 60),
        sl.Picture(9, 9, reduce="max"),
    )
    first, second = (sl.look(q, k, mask=sl.window(200), stats=stats) for _ in range(2))
    r = torch.rand(2, 4, 300)
    for name in ("lse", "entropy", "distance", "max_score"):
        assert torch.equal(getattr(first, name), getattr(second, name))
    assert torch.equal(first.received(), second.received())
    assert torch.equal(first.received(r), second.received(r))
    assert all(torch.equal(a, b) for a, b in zip(first.top(5), second.top(5), strict=True))
    assert torch.equal(first.picture(size=(50, 60)), second.picture(size=(50, 60)))


def test_the_results_do_not_depend_on_autocast() -> None:
    """Under autocast q and k are rounded, as torch's own attention does; what is made of them is not."""
    q, k, v = inputs(1, queries=40, keys=40, dim=16, dtype=torch.float32)
    for options in ({}, {"mask": sl.causal()}, {"mask": sl.window(9), "softcap": 9.0}):
        outside = sl.look((4 * q).bfloat16(), k.bfloat16(), **options)
        with torch.autocast("cpu", torch.bfloat16):
            inside = sl.observe(4 * q, k, v, **options, stats=("entropy", "distance", "received"))[1]
            tile = inside.tile(slice(None), slice(None))
        assert torch.equal(inside.lse, outside.lse)
        assert torch.equal(tile, outside.tile(slice(None), slice(None)))
        assert torch.equal(inside.entropy, outside.entropy)
        assert torch.equal(inside.distance, outside.distance)
        assert torch.equal(inside.received(), outside.received())


def test_shapes_and_repr() -> None:
    q, k, _ = inputs(2, heads=4, kv_heads=2, queries=3, keys=5)
    sight = sl.look(q, k, mask=sl.causal(), stats=("entropy",))
    assert sight.shape == (2, 4, 3, 5)
    assert sight.device == torch.device("cpu")
    assert sl.look(q[0], k[0]).shape == (4, 3, 5)
    flat = sl.look(q[0, 0], k[0, 0])
    assert flat.shape == (3, 5)
    assert flat.lse.shape == flat.entropy.shape == flat.total.shape == flat.sink_share.shape == (3,)
    assert flat.received().shape == flat.received(torch.ones(3)).shape == (5,)
    assert flat.top(2).keys.shape == (3, 2)
    assert flat.picture(size=(7, 8)).shape == (7, 8)
    assert flat.tile(slice(0, 2), 3).shape == (2, 1)
    assert repr(sight) == "Sight(shape=(2, 4, 3, 5), normalizer='softmax', mask=causal(), computed: entropy)"


def test_one_row_or_one_column_of_a_tile() -> None:
    q, k, _ = inputs(heads=1, queries=3, keys=5)
    sight = sl.look(q, k)
    whole = sight.tile(slice(None), slice(None))
    assert torch.equal(sight.tile(-1, slice(None)), whole[:, 2:])
    assert torch.equal(sight.tile(slice(-2, None), slice(1, -1)), whole[:, 1:, 1:4])
    assert sight.tile(slice(1, 1), slice(None)).shape == (1, 0, 5)


@pytest.mark.parametrize(
    "weights, error, text",
    [
        (torch.ones(2, 5), InputError, "the weights do not fit the map"),
        (torch.ones(3, 2, 6), InputError, "the weights do not fit the map"),
        (torch.ones(2, 6, dtype=torch.int64), InputTypeError, "weights must be a floating tensor"),
        ([1.0, 2.0], InputTypeError, "weights must be a floating tensor"),
    ],
)
def test_weights_that_do_not_fit(weights: object, error: type, text: str) -> None:
    q, k, _ = inputs()
    with pytest.raises(error, match=text) as caught:
        sl.look(q, k).received(weights)
    assert "(2, 6)" in str(caught.value)
    assert "try: " in str(caught.value)


@pytest.mark.parametrize("rows", [slice(0, 7), slice(5, 3), slice(0, 6, 2), slice(-9, None), 6, -7])
def test_rectangles_beyond_the_map(rows: slice | int) -> None:
    q, k, _ = inputs()
    sight = sl.look(q, k)
    with pytest.raises(InputError, match="the rows are not a part of the map") as caught:
        sight.tile(rows, slice(None))
    assert "a slice inside 0:6" in str(caught.value)
    with pytest.raises(InputError, match="the columns are not a part of the map"):
        sight.picture(slice(None), rows)


@pytest.mark.parametrize("rows", [(0, 3), "abc", 1.5, slice(0.5, 3), slice("a", None)])
def test_rectangles_that_are_no_slices(rows: object) -> None:
    q, k, _ = inputs()
    sight = sl.look(q, k)
    with pytest.raises(InputTypeError, match="rows"):
        sight.tile(rows, slice(None))
    with pytest.raises(InputTypeError, match="rows"):
        sight.picture(rows)


def test_pictures_of_a_bad_size() -> None:
    q, k, _ = inputs()
    sight = sl.look(q, k)
    for size in (64, [64, 64], (64,), (64, 64, 64)):
        with pytest.raises(InputTypeError, match="size is two whole numbers"):
            sight.picture(size=size)
    with pytest.raises(InputTypeError, match="size must be a whole number"):
        sight.picture(size=(64.0, 64))
    for pair in ({"size": (0, 64)}, {"cell": (1, 0)}, {"size": (-3, 64)}):
        with pytest.raises(InputError, match=r"(size|cell) is too small"):
            sight.picture(**pair)
    with pytest.raises(InputError, match="unknown reduction") as caught:
        sight.picture(reduce="median")
    assert "mean, max, sum" in str(caught.value)


def test_top_of_a_bad_number() -> None:
    q, k, _ = inputs()
    with pytest.raises(InputError, match="n is too small"):
        sl.look(q, k).top(0)
    with pytest.raises(InputTypeError, match="n must be a whole number"):
        sl.look(q, k).top(2.0)


MEMORY = """
import torch, sightline as sl
def peak():
    return next(int(l.split()[1]) for l in open("/proc/self/status") if l.startswith("VmHWM")) >> 10
def run(n):
    q, k, v = (torch.randn(1, 4, n, 32) for _ in range(3))
    return sl.observe(q, k, v, mask=sl.window(128), stats=("entropy", "received", sl.Picture(256, 256)))[1]
run(512).picture(size=(4, 4), visible_only=True)
before = peak()
sight = run(16384)
print(peak() - before)
sight.picture(size=(2, 2), visible_only=True)
print(peak() - before)
"""


def test_memory_is_linear_in_the_context() -> None:
    """In a process of its own. The map of 4 heads of 16,384 tokens would take 4 GiB, its mask a quarter of one."""
    done = subprocess.run([sys.executable, "-c", MEMORY], capture_output=True, text=True, check=True)
    together, with_visible_only = map(int, done.stdout.split())
    assert together < 150, f"{together} MiB for entropy, received and a picture"
    assert with_visible_only < 150, f"{with_visible_only} MiB with a small picture of the visible cells"
