"""The Triton kernel, in Triton's interpreter or for real where there is a GPU, against the walk in torch operations."""

from __future__ import annotations

import pytest
import torch

import sightline as sl
from held_memory import Held
from sightline.backends.call import make_call
from sightline.lens import plan
from sightline.lens.gpu import plan as gpu_plan
from sightline.lens.job import Weighted
from sightline.lens.levels import Levels
from sightline.lens.rows import rows_only

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"

PICTURES = (
    sl.Picture(8, 8),
    sl.Picture(8, 8, reduce="max"),
    sl.Picture(10, 7),  # pixels of unequal size
    sl.Picture(cell=(16, 32)),  # the last pixel ragged
    sl.Picture(cell=(20, 12), reduce="max"),  # cells that fit no tile
    sl.Picture(6, 5, rows=slice(10, 50), columns=slice(20, 57)),
    sl.Picture(90, 90),  # more pixels than cells
)


@pytest.fixture
def tile(monkeypatch):
    """Lays out every pass in tiles of some rows and columns."""
    from sightline.kernels import layout

    def use(rows, columns):
        monkeypatch.setattr(layout, "default_tiling", lambda *_: layout.Tiling(rows, columns, 4, 1))
        gpu_plan._goes.cache_clear()

    yield use
    gpu_plan._goes.cache_clear()


@pytest.fixture(autouse=True)
def small_tiles(tile):
    tile(32, 32)


def both(heads, kv_heads, queries, keys, dim=16, batch=1, dtype=torch.float32, requests=(), **options):
    """The same job by the walk and by the kernel."""
    torch.manual_seed(0)
    q = torch.randn(batch, heads, queries, dim, device=DEVICE).to(dtype)
    k = torch.randn(batch, kv_heads, keys, dim, device=DEVICE).to(dtype)
    call = make_call(q, k, k, **options)
    levels = Levels(call, rows_only(call))
    weighted = Weighted(torch.randn(batch, heads, queries, device=DEVICE))
    wanted = ["entropy", "max_score", "distance", "total", "received", weighted, *requests]
    job = plan._plan(call, wanted)
    found = gpu_plan.run(levels, job)
    assert found is not None, "the kernel can do this"
    slow = plan._by_walk(levels, job)
    return [plan._with_pictures(call, job, *results) for results in (slow, found)]


def assert_same(slow, fast, bound, all_of_them=True):
    assert not all_of_them or fast.keys() >= slow.keys()
    for name in fast:
        if name not in slow:
            continue
        a, b = slow[name].double(), fast[name].double()
        assert torch.equal(a == -torch.inf, b == -torch.inf), name
        a, b = (t.masked_fill(t == -torch.inf, 0.0) for t in (a, b))
        assert (a - b).abs().max() <= bound * a.abs().max().clamp_min(1.0), name


IDS = torch.arange(40) // 17

CASES = {
    "plain": {"shape": (2, 2, 40, 40)},
    "causal, grouped": {"shape": (4, 2, 40, 61), "mask": sl.causal()},
    "aligned at the start": {"shape": (1, 1, 40, 61), "mask": sl.causal(align="start")},
    "window and padding": {"shape": (1, 1, 47, 61), "mask": sl.window(20, 5) & sl.padding([61, 20]), "batch": 2},
    "more queries than keys": {"shape": (1, 1, 61, 47), "mask": sl.causal()},
    "alibi and soft-cap": {"shape": (2, 1, 40, 40), "mask": sl.causal(), "bias": sl.alibi(2), "softcap": 3.0},
    "dense bias": {"shape": (2, 1, 40, 50), "bias": torch.randn(2, 40, 50)},
    "table and sinks": {"shape": (2, 2, 40, 50), "mask": torch.rand(1, 1, 40, 50) > 0.5, "sinks": torch.randn(2)},
    "documents": {"shape": (1, 1, 40, 40), "mask": sl.causal() & sl.documents(IDS)},
    "prefix and holes": {"shape": (1, 1, 40, 42), "mask": sl.prefix(9) & sl.padding(torch.rand(1, 42) > 0.3)},
    "a head of 24": {"shape": (1, 1, 40, 50), "dim": 24},
    "one row, one key": {"shape": (1, 1, 1, 1), "mask": sl.causal()},
}


@pytest.mark.parametrize("name", CASES)
def test_every_statistic_equals_the_walk(name):
    options = {key: t.to(DEVICE) if isinstance(t, torch.Tensor) else t for key, t in CASES[name].items()}
    shape = options.pop("shape")
    slow, fast = both(*shape, requests=[sl.Picture(5, 4)], **options)
    assert_same(slow, fast, bound=5e-6)


@pytest.mark.parametrize("picture", PICTURES, ids=str)
def test_every_kind_of_picture_equals_the_walk(picture):
    assert_same(*both(1, 1, 61, 77, requests=[picture], mask=sl.window(50, 3)), bound=5e-6)


def test_memory_of_a_long_text(monkeypatch, tile):
    """All that is there at the same time, at 65,536 tokens; what kernels would write is not looked at."""
    tile(64, 128)
    from sightline.kernels import layout, map_pass, measure, row_stats

    for module in (layout, map_pass, measure, row_stats):
        monkeypatch.setattr(module, "launch", lambda *_, **__: None)
    q = torch.zeros(1, 16, 65_536, 128, dtype=torch.float16, device=DEVICE)
    call, lse = make_call(q, q, q, mask=sl.causal()), torch.zeros(1, 16, 65_536, device=DEVICE)
    job = plan._plan(call, ["received", "entropy", "max_score", "distance", sl.Picture(512, 512)])
    with Held(q, lse) as held:
        assert gpu_plan.run(Levels(call, lse), job) is not None
    assert held.most <= 56 << 20, held.most >> 20  # 32 of it are results, and 16 a band of the queries


@pytest.mark.parametrize("mask", [None, sl.causal(), sl.window(9)], ids=str)
@pytest.mark.parametrize("picture", [sl.Picture(40, 9), sl.Picture(80, 9, reduce="max")], ids=str)
def test_a_band_of_rows_after_the_other(mask, picture, monkeypatch):
    """Where queries are many, they are copied band by band; the strongest keys need the stretches of all of them."""
    from sightline.kernels import layout, map_pass

    made, top = [], sl.Top(3)
    monkeypatch.setattr(map_pass, "bands", lambda *given: made.append(layout.bands(*given)) or made[-1])
    given = {"heads": 1, "kv_heads": 1, "queries": 80, "keys": 75, "mask": mask, "requests": [picture, top]}
    whole = both(**given)[1]
    assert {len(some) for some in made} == {1}
    monkeypatch.setattr(layout, "_COPIED", 1024)
    monkeypatch.setattr(layout, "_BAND", 1024)
    slow, fast = both(**given)
    assert max(len(some) for some in made) > 2
    for mine, alike in zip(fast.pop(top), whole.pop(top), strict=True):
        assert torch.equal(mine, alike)
    del slow[top]
    assert_same(slow, fast, bound=5e-6)


def test_pixels_as_large_as_several_tiles():
    assert_same(*both(1, 1, 200, 77, requests=[sl.Picture(3, 2), sl.Picture(cell=(64, 77), reduce="max")]), bound=5e-6)


@pytest.mark.parametrize("block", [32, 128])
@pytest.mark.parametrize("mask", [None, sl.causal()], ids=str)
def test_pixels_as_wide_as_what_a_program_has(block, mask, tile):
    """A group of columns, a block of them, both blocks, and more."""
    tile(32, block)
    pictures = [sl.Picture(cell=(16, width), reduce="sum") for width in (64, block, 2 * block, 4 * block)]
    slow, fast = both(1, 1, 48, 300, requests=pictures, mask=mask)
    assert_same(slow, fast, bound=5e-6)
    assert all(fast[picture].dtype == torch.float32 for picture in pictures)


def test_half_precision():
    assert_same(*both(2, 1, 40, 40, dtype=torch.float16, requests=PICTURES[:2], mask=sl.causal()), bound=2e-3)


def test_inputs_with_strides():
    torch.manual_seed(0)
    q, k = (torch.randn(2, 40, 2, 16, device=DEVICE).transpose(1, 2) for _ in range(2))
    call = make_call(q, k, k)
    levels = Levels(call, rows_only(call))
    job = plan._plan(call, ["received", "entropy"])
    found = gpu_plan.run(levels, job)
    assert found is not None
    assert_same(plan._by_walk(levels, job)[0], found[0], bound=5e-6)


def test_the_same_bits_twice():
    first = both(1, 1, 40, 61, requests=PICTURES[:2], mask=sl.causal())[1]
    second = both(1, 1, 40, 61, requests=PICTURES[:2], mask=sl.causal())[1]
    names = [name for name in first if name in second]
    assert len(names) >= 6
    assert all(torch.equal(first[name], second[name]) for name in names)


@pytest.mark.parametrize(
    "names", [["entropy"], ["distance"], ["max_score"], ["entropy", "distance", "max_score"]], ids=str
)
def test_rows_that_sum_to_one_by_themselves(names):
    """Without a total: each statistic alone, and all of them."""
    torch.manual_seed(0)
    q, k = torch.randn(1, 2, 50, 16, device=DEVICE), torch.randn(1, 1, 41, 16, device=DEVICE)
    for mask in (None, sl.causal()):
        call = make_call(q, k, k, mask=mask)
        levels, job = Levels(call, rows_only(call)), plan._plan(call, names)
        found = gpu_plan.run(levels, job)[0]
        assert found.keys() == set(names)
        assert_same(plan._by_walk(levels, job)[0], found, bound=5e-6)


@pytest.mark.parametrize("picture", [sl.Picture(5, 4), sl.Picture(cell=(8, 16))], ids=["padded", "regular"])
@pytest.mark.parametrize("mask", [None, sl.causal()], ids=str)
def test_what_a_pass_looks_like_is_worked_out_once(picture, mask, monkeypatch):
    """Every layer of a model asks for the same: on a GPU the host would take longer over it than the device."""
    from sightline.kernels import layout, map_pass

    worked_out, real = [], layout.tiles_seen

    def counted(*given):
        worked_out.append(given)
        return real(*given)

    for module in (layout, map_pass):
        monkeypatch.setattr(module, "tiles_seen", counted)
    q = torch.randn(1, 1, 40, 16, device=DEVICE)
    for _ in range(3):
        call = make_call(q, q, q, mask=mask)
        job = plan._plan(call, ["entropy", "received", picture])
        assert gpu_plan.run(Levels(call, rows_only(call)), job) is not None
    assert len(worked_out) == 1


def test_whole_tiles_without_a_mask():
    """Every cell is there, and nothing has to be asked for."""
    for keys in (64, 128, 192):
        assert_same(*both(1, 1, 64, keys, requests=[sl.Picture(cell=(8, 16))]), bound=5e-6)


@pytest.mark.parametrize("mask", [None, sl.causal(), sl.window(9)], ids=str)
def test_pixels_of_one_program(mask):
    """As wide as what a thread sums at once: all of them, and also those that nobody sees."""
    pictures = [sl.Picture(cell=(8, 8)), sl.Picture(cell=(16, 16)), sl.Picture(cell=(32, 32), reduce="sum")]
    for picture in pictures:
        assert_same(*both(1, 1, 64, 96, requests=[picture], mask=mask), bound=5e-6)


@pytest.mark.parametrize(
    "mask",
    [
        ~sl.causal(),
        sl.causal() | sl.window(3, 3),
        sl.documents(torch.tensor([0, 1] * 16)),
        sl.dense(torch.ones(32, 32, dtype=torch.bool)) & sl.padding(torch.ones(1, 32, dtype=torch.bool)),
    ],
    ids=str,
)
def test_masks_it_leaves_to_the_walk(mask):
    q = torch.randn(1, 1, 32, 16)
    call = make_call(q, q, q, mask=mask)
    assert gpu_plan.run(Levels(call, rows_only(call)), plan._plan(call, ["received"])) is None


def test_what_is_not_finite_stays_in_the_rows_that_see_it():
    """Slots of a pixel that have no row look at some other row: they must not see what that one sees."""
    torch.manual_seed(0)
    q, k = (torch.randn(1, 1, 41, 16, device=DEVICE) for _ in range(2))
    picture = sl.Picture(7, 9)
    found = []
    for key in (k[0, 0, 35].clone(), torch.nan):
        k[0, 0, 35] = key
        call = make_call(q, k, k, mask=sl.causal())
        levels = Levels(
            call, rows_only(call).masked_fill(torch.arange(41, device=DEVICE) >= 35, key if key is torch.nan else 1.0)
        )
        job = plan._plan(call, [picture])
        found.append(plan._with_pictures(call, job, *gpu_plan.run(levels, job))[picture][0, 0])
    clean, hurt = found
    torch.testing.assert_close(hurt[:6], clean[:6])  # rows 0 to 34
    assert hurt[6].isnan().any()


@pytest.mark.filterwarnings("ignore:invalid value encountered in cast")
def test_rows_of_which_nothing_is_known_say_so():
    torch.manual_seed(0)
    q, k = (torch.randn(1, 1, 41, 16, device=DEVICE) for _ in range(2))
    call = make_call(q, k, k, mask=sl.causal())
    row = rows_only(call)
    row[..., 7] = torch.nan
    levels = Levels(call, row)
    fast = gpu_plan.run(levels, plan._plan(call, ["entropy", "distance", "total", "max_score"]))[0]
    for found in fast.values():
        assert torch.equal(found.isnan(), row.isnan())


@pytest.mark.parametrize("default", [torch.bfloat16, torch.float64], ids=str)
def test_sums_of_whole_numbers_take_no_notice_of_the_default_dtype(default, monkeypatch):
    """Pixels that are wider than what a program has are added up as whole numbers."""
    monkeypatch.setattr(gpu_plan, "_PARTS", 1)
    picture = sl.Picture(cell=(16, 200), reduce="sum")
    q, k = torch.randn(1, 1, 40, 16, device=DEVICE), torch.randn(1, 1, 300, 16, device=DEVICE)
    call = make_call(q, k, k)
    levels, job = Levels(call, rows_only(call)), plan._plan(call, [picture])
    (want,) = plan._by_walk(levels, job)[1].values()
    torch.set_default_dtype(default)
    try:
        (grid,) = gpu_plan.run(levels, job)[1].values()
    finally:
        torch.set_default_dtype(torch.float32)
    torch.testing.assert_close(grid, want)


@pytest.mark.filterwarnings("ignore:invalid value encountered in cast")
def test_rows_of_which_nothing_is_known_say_so_beside_their_strongest_keys():
    q, k = (torch.randn(1, 1, 41, 16, device=DEVICE) for _ in range(2))
    call = make_call(q, k, k, mask=sl.causal())
    row = rows_only(call)
    row[..., 7] = torch.nan
    found = gpu_plan.run(Levels(call, row), plan._plan(call, ["max_score", sl.Top(3)]))[0]
    assert torch.equal(found["max_score"].isnan(), row.isnan())
