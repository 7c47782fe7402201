"""The sweep on the CPU against the float64 definition, with tiles so small that there are many of them."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

import sightline as sl
from cases import Case, cases, generator, inputs
from lens_cases import Map, gap, lift, limit, painted, statistics, whole_map
from sightline.backends.call import make_call
from sightline.kernels.native import tile as native_tile
from sightline.lens import plan
from sightline.lens.cpu import plan as cpu_plan
from sightline.lens.cpu import sweep, whole_maps
from sightline.lens.levels import Levels

PRECISE = (torch.float64, torch.float32)
HALVES = (torch.float16, torch.bfloat16)
ROW_STATS = ("entropy", "distance", "max_score", "received")


by_kernel: list[int] = []  # one for each band that the compiled kernel did under the last `small_tiles`


@contextlib.contextmanager
def small_tiles(
    tile: tuple[int, int] = (8, 16), pieces: int = 5, threads: int = 1, compiled: bool = True
) -> Iterator[list[str]]:
    """Tiles of a few rows and columns, and no way back to the walk unless the sweep refuses. Gives who did what."""
    patch, seen, before = pytest.MonkeyPatch(), [], torch.get_num_threads()
    for name, value in (("_SMALL", 1), ("_TILE", tile), ("_LONG_TILE", tile), ("_PIECES", pieces), ("_ALONE", 0)):
        patch.setattr(cpu_plan, name, value)
    patch.setattr(cpu_plan, "_COMPILED", 1 if compiled else 1 << 62)
    patch.setattr(whole_maps, "_KEYS", 0)
    walk, run = plan.walk, cpu_plan.run

    def swept(*args: Any) -> Any:
        both = run(*args)
        seen.append("refused" if both is None else "swept")
        return both

    patch.setattr(cpu_plan, "run", swept)
    fused = sweep.CompiledSums

    def made(*args: Any) -> Any:
        by_kernel.append(1)
        return fused(*args)

    by_kernel.clear()
    patch.setattr(sweep, "CompiledSums", made)
    patch.setattr(plan, "walk", lambda *args, **options: (seen.append("walked"), walk(*args, **options)))
    torch.set_num_threads(threads)
    try:
        yield seen
    finally:
        torch.set_num_threads(before)
        patch.undo()


def pictures(data: st.DataObject, queries: int, keys: int) -> list[dict[str, Any]]:
    """Up to three pictures of the whole or of parts."""
    found = []
    for _ in range(data.draw(st.integers(0, 3))):
        options: dict[str, Any] = {"reduce": data.draw(st.sampled_from(("mean", "max", "sum")))}
        pair = data.draw(st.tuples(st.integers(1, 20), st.integers(1, 20)))
        options["cell" if data.draw(st.booleans()) else "size"] = pair
        if data.draw(st.booleans()):
            for name, length in (("rows", queries), ("columns", keys)):
                start = data.draw(st.integers(0, length - 1))
                options[name] = (start, data.draw(st.integers(start + 1, length)))
        found.append(options)
    return found


def as_request(options: dict[str, Any]) -> sl.Picture:
    size = options.get("size", (512, 512))
    spans = {name: slice(*options[name]) for name in ("rows", "columns") if name in options}
    return sl.Picture(*size, cell=options.get("cell"), reduce=options["reduce"], **spans)


def check(case: Case, sight: sl.Sight, m: Map, asked: tuple[str, ...], eager: dict[str, Tensor] | None = None) -> None:
    truth = statistics(m)
    for name in asked:
        found = lift(sight.received() if name == "received" else getattr(sight, name), case)
        allowed = limit(case.q.dtype, m.magnitude)
        if eager is not None:
            # Torch's kernel gives the lse of half precision to 6e-5, and eager torch is exact where a row sees one key.
            allowed = max(10 * allowed, 2 * gap(eager[name], truth[name], name))
        ours = gap(found, truth[name], name)
        assert ours <= allowed, f"{name}: error {ours:.3g}, allowed {allowed:.3g}, {case}"


def check_top(case: Case, sight: sl.Sight, m: Map, n: int) -> None:
    top = sight.top(n)
    keys, weights = lift(top.keys, case), lift(top.weights, case)
    there = keys >= 0
    assert torch.equal(there.sum(-1), m.visible.sum(-1).clamp_max(n))
    allowed = limit(case.q.dtype, m.magnitude)
    ranked = m.weights.masked_fill(~m.visible, -1.0).sort(-1, descending=True).values.clamp_min(0.0)
    ranked = torch.nn.functional.pad(ranked, (0, max(0, n - ranked.shape[-1])))[..., :n]
    assert gap(weights, ranked) <= allowed
    assert gap(weights, m.weights.gather(-1, keys.clamp_min(0)).masked_fill(~there, 0.0)) <= allowed
    assert all(len(set(row)) == len(row) for row in (r[r >= 0].tolist() for r in keys.flatten(0, -2)))


def swept_cases(dtypes: tuple[torch.dtype, ...]) -> st.SearchStrategy[Case]:
    """Calls that the sweep takes, if their masks allow it."""

    def suits(case: Case) -> bool:
        usual = "bias" not in case.options and case.options.get("normalizer", "softmax") == "softmax"
        return usual and min(case.q.numel(), case.k.numel()) > 0

    return cases(dtypes, rarely=(), usually=(1, 2, 3, 7, 16, 31, 90)).filter(suits)


def enough(case: Case, tile: tuple[int, int]) -> tuple[int, int]:
    """A tile size with which a case has at most some hundred tiles."""
    cells = case.q.shape[:-1].numel() * case.k.shape[-2]
    while cells > 200 * tile[0] * tile[1]:
        tile = (2 * tile[0], 2 * tile[1])
    return tile


TILES = st.sampled_from(((1, 1), (2, 5), (7, 3), (8, 16), (64, 128)))
ASKED = st.sets(st.sampled_from(ROW_STATS))


@pytest.mark.cpu_kernels
@settings(max_examples=120)
@given(swept_cases(PRECISE), TILES, st.integers(1, 12), ASKED, st.sampled_from((0, 1, 3, 8)), st.data())
def test_any_statistics_of_any_call(
    case: Case, tile: tuple[int, int], pieces: int, asked: set[str], n: int, data: st.DataObject
) -> None:
    check_all(case, tile, pieces, asked, n, pictures(data, case.q.shape[-2], case.k.shape[-2]), compiled=False)


@settings(max_examples=120)
@given(swept_cases((torch.float32,)), TILES, st.integers(1, 12), ASKED, st.sampled_from((0, 0, 3)), st.data())
def test_any_statistics_by_the_compiled_kernel(
    case: Case, tile: tuple[int, int], pieces: int, asked: set[str], n: int, data: st.DataObject
) -> None:
    check_all(case, tile, pieces, asked, n, pictures(data, case.q.shape[-2], case.k.shape[-2]), compiled=True)


@settings(max_examples=60)
@given(swept_cases((torch.float32,)), TILES, st.integers(1, 12), ASKED, st.sampled_from(("sum", "mean")))
def test_the_compiled_kernel_writes_cells_straight_into_a_picture(
    case: Case, tile: tuple[int, int], pieces: int, asked: set[str], reduce: str
) -> None:
    check_all(case, tile, pieces, asked, 0, [{"cell": (1, 1), "reduce": reduce}], compiled=True)


def check_all(
    case: Case,
    tile: tuple[int, int],
    pieces: int,
    asked: set[str],
    n: int,
    views: list[dict[str, Any]],
    compiled: bool,
) -> None:
    tops = (sl.Top(n),) if n else ()
    m = whole_map(case)
    with small_tiles(enough(case, tile), pieces, compiled=compiled) as seen:
        sight = sl.look(case.q, case.k, **case.options, stats=(*asked, *tops, *map(as_request, views)))
        assert seen in ([], ["swept"], ["refused", "walked"])
        before = len(seen)
        check(case, sight, m, tuple(asked))
        if n:
            check_top(case, sight, m, n)
        for options in views:
            spans = {name: slice(*options.get(name, (None,))) for name in ("rows", "columns")}
            rest = {name: value for name, value in options.items() if name not in spans}
            found = lift(sight.picture(**spans, **rest), case)
            assert gap(found, painted(m, **options)) <= limit(case.q.dtype, m.magnitude), f"{options}, {case}"
        assert len(seen) == before, "all of it was computed in one go"


@pytest.mark.cpu_kernels
@settings(max_examples=40)
@given(swept_cases(HALVES))
def test_in_half_precision_the_error_is_at_most_twice_that_of_eager_torch(case: Case) -> None:
    m = whole_map(case)
    with small_tiles(enough(case, (8, 16))):
        sight = sl.look(case.q, case.k, **case.options, stats=ROW_STATS)
        check(case, sight, m, ROW_STATS, statistics(whole_map(case, case.q.dtype)))


@settings(max_examples=40)
@given(swept_cases(PRECISE), st.integers(0, 2**32 - 1))
def test_received_with_weights_is_the_product_with_the_map(case: Case, seed: int) -> None:
    m = whole_map(case)
    r = torch.randn(m.weights.shape[:-1], generator=generator(seed), dtype=torch.float64).to(case.q.dtype)
    with small_tiles(enough(case, (8, 16))):
        found = lift(sl.look(case.q, case.k, **case.options).received(r[0] if case.q.dim() == 2 else r), case)
    exact = (r.double()[..., None, :] @ m.weights).squeeze(-2)
    size = float((r.double().abs()[..., None, :] @ m.weights).max())
    assert float((found.double() - exact).abs().max()) <= limit(case.q.dtype, m.magnitude) * size


STATS = (*ROW_STATS, sl.Picture(9, 11), sl.Picture(40, 7, reduce="max"), sl.Picture(2, 3, reduce="sum"))
# For the strongest keys weights are written down.
TOPS = pytest.mark.parametrize("tops", [(sl.Top(5),), ()], ids=["with top", "without"])


def kept(threads: int, mask: sl.Mask | None, tops: tuple[sl.Top, ...]) -> list[Tensor]:
    q, k, _ = inputs(2, heads=2, kv_heads=1, queries=90, keys=130, dim=16, dtype=torch.float32)
    with small_tiles(threads=threads) as seen:
        sight = sl.look(q, k, mask=mask, stats=(*STATS, *tops))
        assert seen == ["swept"]
        assert bool(by_kernel) == (native_tile.kernel() is not None)
    found = []
    for value in sight.kept.values():
        found += list(value) if isinstance(value, tuple) else [value]
    return found


@pytest.mark.parametrize("mask", [None, sl.causal(), sl.window(9, 3)], ids=str)
@TOPS
def test_the_same_bits_with_any_number_of_threads(mask: sl.Mask | None, tops: tuple[sl.Top, ...]) -> None:
    first = kept(1, mask, tops)
    for threads in (1, 2, 3, 3):
        assert all(torch.equal(a, b) for a, b in zip(first, kept(threads, mask, tops), strict=True))


def test_when_the_compiled_kernel_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of the same call always or never, whatever was asked for before."""
    q, k, v = (torch.randn(1, 2, 300, 16) for _ in range(3))

    def kernel(q: Tensor, k: Tensor, scale: float | None = None) -> object:
        return cpu_plan._kernel(Levels(make_call(q, k, v.to(q.dtype), scale=scale), torch.zeros(1, 2, 300)))

    assert kernel(q, k) is None, "a small one"
    monkeypatch.setattr(cpu_plan, "_COMPILED", 1)
    assert kernel(q, k) is kernel(q.half(), k.half()) is native_tile.kernel()
    assert kernel(q.double(), k.double()) is None
    assert kernel(1e18 * q, 1e18 * k) is kernel(1e18 * q, 1e16 * k, scale=1e8) is None, "products may be infinite"
    for number in (torch.inf, -torch.inf, torch.nan):
        for place in (q, k):
            kept, place[0, 1, 5, 3] = place[0, 1, 5, 3].clone(), number
            assert kernel(q, k) is None
            place[0, 1, 5, 3] = kept


def test_without_a_compiler_the_results_are_the_same_but_for_rounding(monkeypatch: pytest.MonkeyPatch) -> None:
    q, k = torch.randn(1, 2, 300, 16), torch.randn(1, 1, 500, 16)
    stats = (*ROW_STATS, sl.Picture(20, 25))
    found = []
    for missing in (False, True):
        if missing:
            monkeypatch.setattr(native_tile, "kernel", lambda: None)
        with small_tiles((64, 128)) as seen:
            found.append(sl.look(q, k, mask=sl.causal(), stats=stats))
            assert seen == ["swept"]
            assert bool(by_kernel) == (native_tile.kernel() is not None)
    for name in ROW_STATS[:3]:
        torch.testing.assert_close(*(getattr(sight, name) for sight in found), rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(*(sight.received() for sight in found), rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(*(sight.picture(20, 25) for sight in found), rtol=1e-5, atol=1e-7)


def test_what_it_takes_and_what_it_leaves() -> None:
    q, k, v = inputs(1, queries=300, keys=300, dtype=torch.float32)
    assert cpu_plan.can(make_call(q, k, v, mask=sl.causal(), softcap=5.0, sinks=torch.zeros(2)))
    assert not cpu_plan.can(make_call(q, k, v, bias=torch.zeros(300, 300)))
    assert not cpu_plan.can(make_call(q, k, v, normalizer="relu"))
    assert not cpu_plan.can(make_call(q[..., :9, :], k, v))
    assert not cpu_plan.can(make_call(q, k, v).replace(q=q.to("meta")))
    with small_tiles() as seen:
        sl.look(q, k, mask=sl.causal(), stats="entropy")
        sl.look(q, k, mask=~sl.causal(), stats="entropy")
        sl.look(q, k, normalizer="sigmoid", stats="entropy")
    assert seen == ["swept", "refused", "walked", "walked"]


@pytest.mark.parametrize("mask", [None, sl.causal(), sl.window(300, 100), sl.padding([900])], ids=str)
def test_real_tiles(mask: sl.Mask | None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Tiles of the size that is used, cut both ways, and a picture whose pixels differ in size."""
    monkeypatch.setattr(cpu_plan, "_COMPILED", 1)
    q, k, v = inputs(1, heads=2, queries=1100, keys=1300, dim=32, dtype=torch.float32)
    table = None if mask is None else mask.to_dense(1100, 1300)
    case = Case(q, k, v, {} if mask is None else {"mask": mask}, table)
    m = whole_map(case)
    for tops in ((), (sl.Top(8),)):
        sight = sl.look(q, k, mask=mask, stats=(*ROW_STATS, sl.Picture(512, 512), *tops))
        check(case, sight, m, ROW_STATS)
        down, across = (torch.arange(513) * n // 512 for n in (1100, 1300))
        pixels = torch.zeros(1, 2, 512, 1300, dtype=torch.float64)
        pixels.index_add_(2, torch.bucketize(torch.arange(1100), down[1:], right=True), m.weights)
        exact = torch.zeros(1, 2, 512, 512, dtype=torch.float64)
        exact.index_add_(3, torch.bucketize(torch.arange(1300), across[1:], right=True), pixels)
        assert gap(sight.picture(), exact / (down.diff()[:, None] * across.diff())) <= 1e-5
    check_top(case, sight, m, 8)


@pytest.mark.cpu_kernels
@pytest.mark.parametrize("mask", [sl.causal(), sl.padding(torch.arange(90) % 7 > 2), sl.window(5)], ids=str)
def test_nan_in_hidden_keys_is_not_seen(mask: sl.Mask) -> None:
    q, k, _ = inputs(heads=1, queries=90, keys=90, dtype=torch.float32)
    clean = k.clone()
    k[:, 86] = torch.nan
    sees = mask.to_dense(90, 90).expand(1, 90, 90)[0][:, 86]
    lse = sl.look(q, clean, mask=mask).lse
    with small_tiles(compiled=False) as seen:
        found, truth = (sl.Sight(make_call(q, x, x, mask=mask), lse) for x in (k, clean))
        for sight in (found, truth):
            sight.prepare(*ROW_STATS, sl.Top(3))
        assert seen == ["swept"] * 2
    for name in ("entropy", "distance", "max_score"):
        assert torch.equal(getattr(found, name)[:, ~sees], getattr(truth, name)[:, ~sees])
        assert bool(getattr(found, name)[:, sees].isnan().all())
    assert torch.equal(found.top(3).keys[:, ~sees], truth.top(3).keys[:, ~sees])


@TOPS
def test_rows_that_see_nothing(tops: tuple[sl.Top, ...]) -> None:
    q, k, _ = inputs(heads=1, queries=60, keys=20, dtype=torch.float32)
    with small_tiles() as seen:
        sight = sl.look(q, k, mask=sl.causal(), stats=(*ROW_STATS, sl.Picture(6, 2), *tops))
        assert seen == ["swept"]
    assert sight.max_score[0, :40].eq(-torch.inf).all()
    assert sight.entropy[0, :40].eq(0).all()
    assert sight.distance[0, :40].eq(0).all()
    assert sight.top(2).keys[0, :40].eq(-1).all()
    assert sight.top(2).weights[0, :40].eq(0).all()
    assert sight.picture(size=(6, 2))[0, :4].eq(0).all()
    assert abs(float(sight.received().sum()) - 20) <= 1e-4


def test_a_rectangle_costs_only_that_rectangle(monkeypatch: pytest.MonkeyPatch) -> None:
    q, k, _ = inputs(heads=1, queries=900, keys=900, dtype=torch.float32)
    sight = sl.look(q, k, mask=sl.causal())
    cells: list[int] = []
    monkeypatch.setattr(
        cpu_plan, "spread", lambda tasks, alone: (cells.extend(t.__self__.cells for t in tasks), [t() for t in tasks])
    )
    sight.picture(slice(500, 600), slice(30, 130), size=(10, 10))
    assert 100 * 100 <= sum(cells) <= 101 * 101
    cells.clear()
    sight.picture(slice(100, 200), slice(500, 600), size=(10, 10))  # above the diagonal: all of it is hidden
    assert sum(cells) == 0


@TOPS
def test_in_inference_mode_and_outside(tops: tuple[sl.Top, ...]) -> None:
    q, k, _ = inputs(heads=2, queries=90, keys=90, dtype=torch.float32)
    for threads in (1, 2):
        with small_tiles(threads=threads):
            outside = sl.look(q, k, stats=(*STATS, *tops))
            with torch.inference_mode():
                inside = sl.look(q, k, stats=(*STATS, *tops))
        assert torch.equal(outside.entropy, inside.entropy)
        outside.entropy.add_(1.0)
        assert not any(x.is_inference() for x in (outside.entropy, outside.received(), *outside.top(5)))


def test_keys_that_are_not_laid_out_one_after_the_other() -> None:
    """As models have them: [batch, time, heads, dim] turned around, and heads that share their keys."""
    q, k = (torch.randn(2, 90, heads, 16, generator=generator(heads)).transpose(1, 2) for heads in (4, 2))
    case = Case(q, k, k, {"mask": sl.causal()}, sl.causal().to_dense(90, 90).expand(2, 4, 90, 90))
    m = whole_map(case)
    with small_tiles() as seen:
        sight = sl.look(q, k, mask=sl.causal(), stats=ROW_STATS)
        assert seen == ["swept"]
    check(case, sight, m, ROW_STATS)


@TOPS
def test_padding_of_a_batch_is_its_own_for_each_member(tops: tuple[sl.Top, ...]) -> None:
    q, k, v = inputs(3, heads=2, queries=70, keys=80, dtype=torch.float32)
    real = torch.rand(3, 80, generator=generator(1)) < 0.6
    mask = sl.causal() & sl.padding(real) & sl.padding([80, 44, 0])
    case = Case(q, k, v, {"mask": mask}, mask.to_dense(70, 80).expand(3, 2, 70, 80))
    m = whole_map(case)
    with small_tiles() as seen:
        sight = sl.look(q, k, mask=mask, stats=(*ROW_STATS, *tops))
        assert seen == ["swept"]
    check(case, sight, m, ROW_STATS)
    check_top(case, sight, m, 4)
