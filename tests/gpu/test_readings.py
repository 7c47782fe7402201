"""Readings on a real GPU: the kernels against the float64 reference, a watched Llama, and memory at 65,536 tokens."""

from __future__ import annotations

import gc

import pytest
import torch

import sightline as sl
import watch_cases as tiny
from sightline.backends import reference
from sightline.lens import plan
from sightline.lens.gpu import plan as gpu_plan
from sightline.lens.gpu import readings as gpu_readings

reading_columns = pytest.importorskip("sightline.kernels.reading_columns")
reading_edges = pytest.importorskip("sightline.kernels.reading_edges")

MASKS = {
    "none": lambda: None,
    "causal": sl.causal,
    "window": lambda: sl.window(100, 20),
    "padding": lambda: sl.causal() & sl.padding([300, 77]),
    "documents": lambda: sl.causal() & sl.documents(torch.arange(333) // 50),
}
STATS = tuple(
    request
    for of in ("influence", "pull", "norms")
    for request in (
        sl.Received(of=of, reduce="magnitude"),
        sl.Received(of=of, reduce="max"),
        sl.Top(2, of=of),  # of most rows from the two stretches of columns with the largest cells
        sl.Picture(cell=(9, 8), of=of, reduce="sum"),
        sl.Picture(cell=(70, 32), of=of, reduce="max"),
    )
)


@pytest.fixture
def kernels(monkeypatch):
    """Counts the passes by the kernels."""
    runs = []
    run = gpu_readings.run
    monkeypatch.setattr(gpu_readings, "run", lambda *given: runs.append(given) or run(*given))
    return runs


def draw(dtype, queries=333, keys=333, dim=64, value_dim=None, heads=4, kv_heads=1, batch=2):
    sizes = ((heads, queries, dim), (kv_heads, keys, dim), (kv_heads, keys, value_dim or dim))
    q, k, v = (torch.randn(batch, *size, device="cuda").to(dtype) for size in sizes)
    return q, k, v, torch.randn(batch, heads, queries, value_dim or dim, device="cuda").to(dtype)


def truth_of(q, k, v, g, **options):
    weights = reference.weights(q.double(), k.double(), **options)
    values = v.double().repeat_interleave(q.shape[1] // k.shape[1], 1)
    carried = g.double() @ values.mT
    along = (g.double() * (weights @ values)).sum(-1, keepdim=True)
    return {
        "norms": weights * values.norm(dim=-1)[..., None, :],
        "influence": weights * carried,
        "pull": weights * (carried - along),
    }


def check(sight, truth, bound, most=2):
    for of, cells in truth.items():
        size = truth["influence"].abs().max() if of == "pull" else cells.abs().max()

        def near(got, want, size=size, of=of):
            assert (got.double() - want).abs().max() <= bound * max(size, want.abs().max()), of

        # The pull of a row sums up to 0, but for the digits that g.o lacks: of all rows these add up as they fall.
        rows = cells.shape[-2] ** 0.5 if of == "pull" else 1.0

        near(sight.received(of=of, reduce="magnitude"), cells.abs().sum(-2))
        high, low = cells.amax(-2).clamp_min(0), cells.amin(-2).clamp_max(0)
        largest = sight.received(of=of, reduce="max")
        near(largest.abs(), torch.maximum(high, -low))
        # Of a cell above 0 and one below it, nearly as large, either is the largest.
        clear = (high + low).abs() > 2 * bound * size
        near(largest * clear, torch.where(high >= -low, high, low) * clear)
        near(sight.picture(cell=(9, 8), of=of, reduce="sum").sum((-1, -2)), cells.sum((-1, -2)), size * rows)
        corner = cells[..., :70, :32].flatten(-2)
        near(sight.picture(cell=(70, 32), of=of, reduce="max")[..., 0, 0].abs(), corner.abs().amax(-1))
        top = sight.top(most, of=of)
        n = min(most, cells.shape[-1])
        near(top.weights[..., :n].abs(), cells.abs().topk(n, -1).values)
        near(top.weights, cells.gather(-1, top.keys.clamp_min(0)).masked_fill(top.keys < 0, 0.0))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32], ids=str)
@pytest.mark.parametrize("dim, value_dim", [(64, 64), (80, 128), (128, 128), (256, 256)])
@pytest.mark.parametrize("name", MASKS)
def test_readings_equal_the_reference(dtype, dim, value_dim, name, kernels):
    mask = MASKS[name]()
    q, k, v, g = draw(dtype, dim=dim, value_dim=value_dim)
    sight = sl.look(q, k, v, grad=g, mask=mask, stats=STATS)
    # g.o is of an output that has the digits of its dtype.
    check(sight, truth_of(q, k, v, g, mask=mask), 1e-4 if dtype == torch.float32 else 2e-2)
    # Wider heads are left to torch's tiles.
    assert bool(kernels) == (max(dim, value_dim) <= gpu_readings.WIDEST)


@pytest.mark.parametrize(
    "options",
    [{"softcap": 4.0}, {"sinks": torch.randn(4)}, {"bias": sl.alibi(4)}, {"bias": torch.randn(4, 333, 333)}],
    ids=["softcap", "sinks", "alibi", "bias"],
)
def test_more_than_a_mask(options, kernels):
    options = {name: x.cuda() if isinstance(x, torch.Tensor) else x for name, x in options.items()}
    q, k, v, g = draw(torch.bfloat16)
    sight = sl.look(q, k, v, grad=g, mask=sl.causal(), stats=STATS, **options)
    exact = {name: x.double() if isinstance(x, torch.Tensor) else x for name, x in options.items()}
    check(sight, truth_of(q, k, v, g, mask=sl.causal(), **exact), 2e-2)
    assert kernels


@pytest.mark.parametrize("queries,keys", [(1, 1), (1, 777), (777, 1), (130, 257), (257, 130), (2049, 2051)])
def test_odd_lengths(queries, keys, kernels):
    q, k, v, g = draw(torch.bfloat16, queries=queries, keys=keys, dim=128)
    stats = [sl.Top(8, of=stat.of) if isinstance(stat, sl.Top) else stat for stat in STATS]
    sight = sl.look(q, k, v, grad=g, mask=sl.causal(), stats=stats)
    check(sight, truth_of(q, k, v, g, mask=sl.causal()), 2e-2, most=8)
    assert kernels


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=str)
def test_what_only_long_texts_have(dtype, kernels, monkeypatch):
    """Stretches of several blocks of columns, pixels of several programs as whole numbers, maps and rows in parts."""
    monkeypatch.setattr(reading_columns, "BINS", 8)
    monkeypatch.setattr(reading_columns, "_PROGRAMS", 1)
    monkeypatch.setattr(reading_edges, "_AT_ONCE", 1 << 16)
    monkeypatch.setattr(gpu_plan, "_PARTS", 0)
    q, k, v, g = draw(dtype, queries=2049, keys=2051, batch=1)
    picture, sizes = sl.Picture(2, 2, of="pull", reduce="sum"), sl.Received(of="pull", reduce="magnitude")
    stats = [sl.Top(2, of="pull"), picture, sizes]
    first, second = (sl.look(q, k, v, grad=g, mask=sl.causal(), stats=stats) for _ in range(2))
    truth = truth_of(q, k, v, g, mask=sl.causal())["pull"]
    bound = 2e-2 if dtype == torch.bfloat16 else 1e-4
    got = first.value(sizes).double()
    assert (got - truth.abs().sum(-2)).abs().max() <= bound * got.max()
    top = first.top(2, of="pull")
    assert (top.weights.double().abs() - truth.abs().topk(2, -1).values).abs().max() <= bound * truth.abs().max()
    off = (first.value(picture).double().sum((-1, -2)) - truth.sum((-1, -2))).abs().max()
    assert off <= bound * truth.abs().sum(-1).max() * 2049**0.5
    for request, value in first.kept.items():
        both = (x if isinstance(x, tuple) else (x,) for x in (value, second.kept[request]))
        assert all(torch.equal(a, b) for a, b in zip(*both, strict=True)), request
    assert kernels


def test_rows_without_a_gradient(kernels):
    """Where g is 0, as all rows but the last have it of a target at the end, the lowest keys come with cells of 0."""
    q, k, v, g = draw(torch.bfloat16, queries=1500, keys=1500, dim=128, batch=1)
    g[..., :-1, :] = 0.0
    sight = sl.look(q, k, v, grad=g, mask=sl.causal(), stats=[sl.Top(4, of="influence")])
    keys, cells = sight.top(4, of="influence")
    assert torch.equal(keys[..., 3:-1, :], torch.arange(4, device="cuda").expand_as(keys[..., 3:-1, :]))
    assert not cells[..., :-1, :].any()
    truth = truth_of(q, k, v, g, mask=sl.causal())["influence"][..., -1, :].abs().topk(4, -1).values
    assert (cells[..., -1, :].double().abs() - truth).abs().max() <= 2e-2 * truth.max()
    assert kernels


def test_the_same_bits_twice_and_by_torch_the_same_numbers(monkeypatch):
    q, k, v, g = draw(torch.bfloat16, queries=1001, keys=1001, dim=128)
    first, second = (sl.look(q, k, v, grad=g, mask=sl.causal(), stats=STATS) for _ in range(2))
    monkeypatch.setenv("SIGHTLINE_READINGS", "torch")
    slow = sl.look(q, k, v, grad=g, mask=sl.causal(), stats=STATS)
    for request, value in first.kept.items():
        pairs = (x if isinstance(x, tuple) else (x,) for x in (value, second.kept[request], slow.kept[request]))
        for a, b, c in zip(*pairs, strict=True):
            assert torch.equal(a, b), request
            if a.is_floating_point():
                assert (a.abs() - c.abs()).abs().max() <= 1e-3 * c.abs().max(), request


def test_in_half_precision_no_worse_than_twice_eager():
    q, k, v, g = draw(torch.bfloat16, queries=333, keys=333, dim=128)
    truth = truth_of(q, k, v, g, mask=sl.causal())["influence"].abs().sum(-2)
    hidden = ~sl.causal().to_dense(333, 333, "cuda")
    scores = (q @ k.repeat_interleave(4, 1).mT * 128**-0.5).masked_fill(hidden, -torch.inf)
    weights = scores.softmax(-1).requires_grad_()
    (weights @ v.repeat_interleave(4, 1)).backward(g)
    eager = ((weights * weights.grad).double().abs().sum(-2) - truth).abs()
    sight = sl.look(q, k, v, grad=g, mask=sl.causal())
    ours = (sight.received(of="influence", reduce="magnitude").double() - truth).abs()
    assert ours.max() <= 2 * eager.max()
    assert ours.mean() <= 2 * eager.mean()


def test_memory_at_65_536_tokens(kernels):
    """16 heads of 128: all that is beyond q, k, v, the output and g, results included."""
    q, k, v, g = (torch.randn(1, 16, 65_536, 128, device="cuda", dtype=torch.bfloat16) for _ in range(4))
    stats = (
        sl.Received(of="influence", reduce="magnitude"),
        sl.Picture(512, 512, of="influence"),
        sl.Top(4, of="influence"),
    )
    short = tuple(x[..., :100, :] for x in (q, k, v))
    sl.observe(*short, grad=g[..., :100, :], mask=sl.causal(), stats=stats)  # compiled and tried
    gc.collect()
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    out, sight = sl.observe(q, k, v, grad=g, mask=sl.causal(), stats=stats)
    torch.cuda.synchronize()
    beyond = torch.cuda.max_memory_allocated() - before - out.nbytes
    assert beyond <= 128 << 20, f"{beyond / (1 << 20):.0f} MiB"
    assert len(kernels) >= 2  # and the trial
    rows = sight.tile(slice(65_500, 65_536), slice(0, 65_536), of="influence").double()
    top = sight.top(4, of="influence")
    assert torch.allclose(top.weights[..., 65_500:, :].double().abs(), rows.abs().topk(4, -1).values, rtol=1e-2)


@pytest.mark.parametrize("length", [5, 333, 1027])
def test_a_watched_llama_in_bf16(length, kernels):
    model = tiny.model("llama", max_position_embeddings=2048).cuda().to(torch.bfloat16).eval()
    ids = torch.randint(0, model.config.vocab_size, (2, length), device="cuda")
    target = sl.targets.logit(7, than=3)
    with sl.watch(model, influence=True, keep_qk=True) as seen:
        seen.backward(target(model(ids)))
    for name in seen.layers:
        sight = seen[name]
        assert sight.device.type == "cpu"
        cells = sight.tile(slice(None), slice(None), of="influence").double()
        rows = sight.influence.double()
        assert (cells.sum(-1) - rows).abs().max() <= 2e-2 * cells.abs().sum(-1).max()
    # While everything is on the GPU, by the kernels: what stats name.
    stats = (sl.Top(3, of="influence"), sl.Received(of="influence", reduce="magnitude"))
    with sl.watch(model, influence=True, stats=stats) as again:
        again.backward(target(model(ids)))
    assert kernels
    for name in seen.layers:
        want = seen[name].received(of="influence", reduce="magnitude")
        got = again[name].received(of="influence", reduce="magnitude")
        assert (got - want).abs().max() <= 2e-2 * want.abs().max()
        one, other = (run[name].top(3, of="influence").weights.abs() for run in (again, seen))
        assert (one - other).abs().max() <= 2e-2 * other.max()


def test_what_the_kernels_leave_to_torch(kernels):
    q, k, v, g = draw(torch.bfloat16, queries=100, keys=100)
    truth = truth_of(q, k, v, g)["influence"]
    sight = sl.look(q, k, v, grad=g)
    spans = sight.spans({"first": slice(0, 40)}, of="influence")
    assert (spans.table[..., 0, 0].double() - truth[..., :40].sum((-1, -2))).abs().max() <= 1e-2 * truth.abs().sum()
    assert not kernels
    assert sight.top(40, of="influence").keys.shape[-1] == 40
    assert plan.gpu_readings is gpu_readings
