"""What ranks check together: every one compares its part with what one process computes of the whole."""

from __future__ import annotations

import functools
import importlib.util
import os
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

import sightline as sl
from sightline.errors import RankError, SightlineError
from sightline.parallel import torch_ring
from sightline.parallel.ranks import Ranks

# Where the tensors are, and everything that is compared with.
DEVICE = torch.device(os.environ.get("SIGHTLINE_RANKS_ON", "cpu"))
# Torch's own ring, where this torch has it in the form that is known.
RING = "torch.distributed.tensor.experimental._context_parallel"
# Every number of a rank in float32 against the same number of one process, of numbers of size one. On a GPU one process
# takes other kernels than ranks do, which add up in another order: as tests/gpu/test_lens.py holds it to float64.
CLOSE = 1e-6 if DEVICE.type == "cpu" else 1e-5
# Of four ranks a few cases say all that two do not.
FEW = ("causal", "documents", "bias of -1e9", "sinks", "sigmoid")
STATS = (
    "entropy",
    "max_score",
    "distance",
    "total",
    "received",
    sl.Top(3),
    sl.Picture(7, 5),
    sl.Picture(4, reduce="max"),
)


def checks(size: int) -> dict[str, Callable[[int, int], None]]:
    """All checks for so many ranks, in their order; those that end a rank come last."""
    found = {name: value for name, value in globals().items() if name.startswith("check_")}
    last = [name for name in found if name.endswith(("_hangs", "_dies"))]
    return {name: found[name] for name in [*(name for name in found if name not in last), *last]}


def warm() -> None:
    """Import whatever the checks import, before anybody is forked."""
    if importlib.util.find_spec(RING):
        importlib.import_module(RING)
    importlib.import_module("torch._dynamo")  # torch's collectives ask it


def close(found: torch.Tensor, wanted: torch.Tensor, what: str = "", within: float = CLOSE) -> None:
    """Within a millionth of the largest number there is; NaN and infinities where the other has them."""
    bound = within * max(1.0, float(wanted.detach().nan_to_num(0, 0, 0).abs().amax() if wanted.numel() else 0))
    torch.testing.assert_close(found, wanted, rtol=0, atol=bound, equal_nan=True, msg=lambda text: f"{what}: {text}")


def parts(x: torch.Tensor, balance: str) -> torch.Tensor:
    return sl.parallel.shard(x, balance=balance)


def places(length: int, balance: str) -> torch.Tensor:
    return sl.parallel.shard(torch.arange(length), dim=0, balance=balance)


def cases(length: int) -> dict[str, dict[str, Any]]:
    """Calls over `length` queries and keys, by what is special about them."""
    ids = torch.arange(length).div(7, rounding_mode="floor").expand(2, -1)
    table = torch.rand(2, 1, length, length, device=DEVICE) < 0.5
    table[0, 0, 3] = False
    bias = torch.randn(4, length, length, device=DEVICE)
    hidden = torch.zeros(1, 1, length).masked_fill(torch.arange(length) > 5, -1e9).to(DEVICE)
    return {
        "full": {},
        "causal": {"mask": sl.causal()},
        "window": {"mask": sl.window(5, 1)},
        "documents": {"mask": sl.documents(ids) & sl.causal()},
        "padding": {"mask": sl.padding([length - 9, length])},
        "table": {"mask": sl.dense(table)},
        "prefix": {"mask": sl.prefix(6)},
        "alibi": {"bias": sl.alibi(4), "mask": sl.causal()},
        "bias": {"bias": bias},
        "bias of -1e9": {"bias": hidden, "mask": ~sl.window(length, length) | sl.window(0, length)},
        "softcap": {"softcap": 2.0, "scale": 0.7, "mask": sl.causal()},
        "sinks": {"sinks": torch.tensor([0.5, -1.0, 3.0, 0.0], device=DEVICE), "mask": sl.causal()},
        "relu": {"normalizer": "relu", "mask": sl.causal()},
        "sigmoid": {"normalizer": "sigmoid"},
        "uniform": {"normalizer": "uniform", "mask": sl.window(4)},
    }


def qkv(queries: int, keys: int, heads: int = 4, kv_heads: int = 2, **how: Any) -> list[torch.Tensor]:
    shapes = (heads, queries, 8), (kv_heads, keys, 8), (kv_heads, keys, 6)
    return [torch.randn(2, h, n, d, device=DEVICE, **how) for h, n, d in shapes]


def _same(case: str, found: torch.Tensor, wanted: torch.Tensor, what: str) -> None:
    close(found, wanted, f"{case}, {what}", CLOSE if found.dtype == torch.float32 else 1e-12)


def check_sights_and_outputs_are_those_of_one_process(rank: int, size: int) -> None:
    for balance in ("contiguous", "head-tail"):
        for name, options in cases(37).items():
            if size > 2 and name not in FEW:
                continue
            exact = torch.float32 if name in ("causal", "bias of -1e9") else torch.float64
            q, k, v = (x.to(exact) for x in qkv(37, 37))
            options = {
                key: x.to(exact) if key in ("bias", "sinks") and isinstance(x, torch.Tensor) else x
                for key, x in options.items()
            }
            grad = torch.randn(2, 4, 37, 6, dtype=exact, device=DEVICE)
            out, whole = sl.observe(q, k, v, stats=STATS, grad=grad, **options)
            mine, own = [parts(x, balance) for x in (q, k, v)], parts(grad, balance)
            got, sight = sl.parallel.observe(*mine, balance=balance, stats=STATS, grad=own, **options)
            here = places(37, balance)
            assert sight.shape == (2, 4, len(here), 37), name
            assert sight.positions == here.tolist()
            assert sight.whole_shape == whole.shape

            same = functools.partial(_same, f"{balance}, {name}")
            same(got, out[..., here, :], "output")
            if "normalizer" not in options:
                same(sight.lse, whole.lse[..., here], "lse")
                same(sight.sink_share, whole.sink_share[..., here], "sink")
            for statistic, units in (("entropy", 1), ("max_score", 1), ("distance", 37), ("total", 1)):
                same(sight.statistic(statistic) / units, whole.statistic(statistic)[..., here] / units, statistic)
            same(sight.received(), whole.received()[..., here], "received")
            weights, keys = whole.top(3).weights[..., here, :], whole.top(3).keys[..., here, :]
            same(sight.top(3).weights, weights, "top")
            # Where two weights are nearly the same, either key may come first.
            clear = (weights[..., :-1] - weights[..., 1:]).abs().amin(-1) > 1e-5
            assert torch.equal(sight.top(3).keys[clear], keys[clear]), name
            same(sight.picture(size=(7, 5)), whole.picture(size=(7, 5)), "picture")
            same(sight.picture(size=(4, 4), reduce="max"), whole.picture(size=(4, 4), reduce="max"), "largest")
            # What was not asked for before; each rank its own tile, all the same picture.
            rows = slice(1, len(here))
            same(sight.tile(rows, slice(3, 31)), whole.tile(slice(0, 37), slice(3, 31))[..., here[rows], :], "tile")
            rectangle = {"rows": slice(5, 30), "columns": slice(2, 37), "size": (3, 4), "visible_only": True}
            same(sight.picture(**rectangle).nan_to_num(-1), whole.picture(**rectangle).nan_to_num(-1), "rectangle")
            same(sight.influence, whole.influence[..., here], "influence of rows")
            same(sight.received(of="norms"), whole.received(of="norms")[..., here], "norms")
            by = torch.rand(2, 4, 37, device=DEVICE)
            same(sight.received(by[..., here]), whole.received(by)[..., here], "weighted")


def check_tiles_of_large_scores_are_those_of_one_process(rank: int, size: int) -> None:
    """Blocks have other shapes than the whole map, and a product in float32 rounds by its shape: here by 1e-5."""
    q, k, v = torch.randn(3, 1, 4, 200, 64, device=DEVICE).unbind()
    for factor, options in (
        (30.0, {"mask": sl.causal()}),
        (30.0, {}),
        (10.0, {"sinks": torch.full((4,), 20.0, device=DEVICE)}),
        (30.0, {"mask": sl.documents(torch.arange(200) // 90), "softcap": 50.0}),
    ):
        _, whole = sl.observe(factor * q, k, v, **options)
        for balance in ("contiguous", "head-tail"):
            mine = [parts(x, balance) for x in (factor * q, k, v)]
            _, sight = sl.parallel.observe(*mine, balance=balance, **options)
            here = places(200, balance)
            rows = slice(rank, len(here))  # every rank its own
            wanted = whole.tile(slice(0, 200), slice(3, 190))[..., here[rows], :]
            close(sight.tile(rows, slice(3, 190)), wanted, f"{balance}, {options}")


class Attends(nn.Module):
    """Two layers of attention, for a part of the sequence each, or for all of it."""

    def __init__(self, causal: bool) -> None:
        super().__init__()
        self.causal = causal
        self.layers = nn.ModuleList([nn.Linear(32, 96), nn.Linear(32, 96)])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            q, k, v = (t.unflatten(-1, (4, 8)).transpose(1, 2) for t in layer(x).chunk(3, -1))
            x = F.scaled_dot_product_attention(q, k, v, is_causal=self.causal).transpose(1, 2).flatten(2)
        return x


def check_a_model_under_torchs_context_parallel_is_watched(rank: int, size: int) -> None:
    if not importlib.util.find_spec(RING):
        return  # a torch that has it elsewhere, in another form
    torchs = importlib.import_module(f"{RING}._attention")
    mesh = init_device_mesh("cpu", (size,))

    def ring(operator: Any, args: tuple, kwargs: dict) -> tuple[DTensor, ...]:
        """What torch has for the operators of a GPU, and not for the CPU's."""
        causal = args[4] if len(args) > 4 else kwargs.get("is_causal", False)
        local = [x.to_local() for x in args[:3]]
        found = torchs._templated_ring_attention(mesh.get_group(), 2, operator, *local, is_causal=causal)
        return tuple(DTensor.from_local(x, mesh, [Shard(2)], run_check=False) for x in found[:2])

    operator = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu.default
    torchs.custom_ops[operator] = ring
    try:
        for causal, balance in ((True, True), (True, False), (False, False)):
            model, x = Attends(causal).eval(), torch.randn(2, 8 * size, 32)
            with torch.no_grad(), sl.watch(model, keep_qk=True) as one:
                model(x)
            torchs._cp_options.enable_load_balance = balance
            runs = []
            for watched in (False, True):
                part = x.clone()
                with torch.no_grad(), torchs.context_parallel(mesh, buffers=[part], buffer_seq_dims=[1]):
                    if not watched:
                        runs.append(model(part))
                        continue
                    with sl.watch(model, keep_qk=True) as seen:
                        runs.append(model(part))
            assert torch.equal(*runs), "watching changed it"
            assert seen.layers == one.layers
            assert not seen.unseen
            for name in one.layers:
                close(seen[name].lse, one[name].lse, "lse", 1e-5)
                close(seen[name].entropy, one[name].entropy, "entropy", 1e-5)
                close(seen[name].received(), one[name].received(), "received", 1e-5)
                everything = slice(0, 8 * size)
                close(seen[name].tile(everything, everything), one[name].tile(everything, everything), "tile", 1e-5)
    finally:
        del torchs.custom_ops[operator]
        torchs._cp_options.enable_load_balance = True


def check_gradients_are_those_of_one_process(rank: int, size: int) -> None:
    names = FEW[:2] if size > 2 else ("full", "causal", "documents", "softcap", "sinks", "bias", "sigmoid")
    for balance in ("contiguous", "head-tail"):
        for name in names:
            options = dict(cases(23)[name])
            learned = [x for x in (options.get("bias"), options.get("sinks")) if isinstance(x, torch.Tensor)]
            q, k, v = qkv(23, 23)
            weight = torch.randn(2, 4, 23, 6, device=DEVICE)
            wholes = [x.clone().requires_grad_() for x in (q, k, v)]
            for x in learned:
                x.requires_grad_()
            (sl.attention(*wholes, **options) * weight).sum().backward()
            wanted = [x.grad.clone() for x in learned]
            for x in learned:
                x.grad = None
            mine = [parts(x, balance).clone().requires_grad_() for x in (q, k, v)]
            (sl.parallel.attention(*mine, balance=balance, **options) * parts(weight, balance)).sum().backward()
            for own, whole in zip(mine, wholes, strict=True):
                close(own.grad, parts(whole.grad, balance))
            for own, grad in zip(learned, wanted, strict=True):
                torch.testing.assert_close(own.grad, grad, rtol=10 * CLOSE, atol=CLOSE)


def check_uneven_and_unequal_parts(rank: int, size: int) -> None:
    """Parts of any lengths, an empty one too, and fewer queries than keys, as with a cache; float64; two axes."""
    queries, keys = [3, 0, 5, 1][:size], [4, 9, 0, 2][:size]
    q, k, v = (x.double() for x in qkv(sum(queries), sum(keys)))
    whole, sight = sl.observe(q, k, v, mask=sl.causal(), stats=("distance", "received"))
    mine = [x.split(n, -2)[rank] for x, n in ((q, queries), (k, keys), (v, keys))]
    got, own = sl.parallel.observe(*mine, mask=sl.causal(), stats=("distance", "received"))
    torch.testing.assert_close(got, whole.split(queries, -2)[rank], rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(own.distance, sight.distance.split(queries, -1)[rank], rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(own.received(), sight.received().split(keys, -1)[rank], rtol=1e-12, atol=1e-12)
    for normalizer in ("relu", "sigmoid", "uniform"):  # a rank may hold no key
        options = {"mask": sl.causal(), "normalizer": normalizer}
        wanted = sl.attention(q, k, v, **options).split(queries, -2)[rank]
        torch.testing.assert_close(sl.parallel.attention(*mine, **options), wanted, rtol=1e-12, atol=1e-12)
    flat = sl.parallel.attention(*(x[0, 0] for x in mine))
    torch.testing.assert_close(flat, sl.attention(q[0, 0], k[0, 0], v[0, 0]).split(queries, 0)[rank])
    grad = torch.randn(sum(queries), 6, device=DEVICE).double()
    _, whole = sl.observe(q[0, 0], k[0, 0], v[0, 0], grad=grad)
    _, own = sl.parallel.observe(*(x[0, 0] for x in mine), grad=grad.split(queries, 0)[rank])
    torch.testing.assert_close(own.influence, whole.influence.split(queries)[rank])
    torch.testing.assert_close(own.received(of="norms"), whole.received(of="norms").split(keys)[rank])


def check_the_same_bits_run_after_run(rank: int, size: int) -> None:
    q, k, v = (parts(x, "head-tail") for x in qkv(64, 64, 4, 4))
    runs = []
    for _ in range(2):
        out, sight = sl.parallel.observe(q, k, v, mask=sl.causal(), balance="head-tail", stats=STATS)
        runs.append([out, sight.entropy, sight.received(), sight.picture(size=(7, 5)), sight.top(3).weights])
        runs[-1].append(sl.parallel.attention(q, k, v, mask=sl.causal(), balance="head-tail"))
    assert all(torch.equal(a, b) for a, b in zip(*runs, strict=True))
    pictures = sl.parallel.unshard(runs[0][3][None], dim=0)  # of every rank
    assert all(torch.equal(pictures[0], one) for one in pictures)


def check_nothing_goes_around_further_than_somebody_needs_it(rank: int, size: int) -> None:
    """Keys and values end with the last rank that reads them; what is gathered for them goes home."""
    passed: list[tuple[str, int]] = []
    real = Ranks.rotate

    def rotate(self: Ranks, step: str, tensors: Any, shapes: Any) -> Any:
        passed.append((step.partition(",")[0], sum(tensor.numel() for tensor in tensors)))
        return real(self, step, tensors, shapes)

    Ranks.rotate = rotate
    try:
        q, k, v = (torch.randn(1, 2, 6, width, dtype=torch.float64, device=DEVICE) for width in (8, 8, 3))
        sl.parallel.attention(q.requires_grad_(), k, v).sum().backward()
        sl.parallel.observe(q.detach(), k, v, stats=("received", "entropy"))
    finally:
        Ranks.rotate = real
    by_step: dict[str, int] = {}
    for step, numbers in passed:
        by_step[step] = by_step.get(step, 0) + numbers
    keys, values, received = 2 * 6 * 8, 2 * 6 * 3, 2 * 6
    assert by_step == {
        "keys and values": 2 * (size - 1) * (keys + values),
        "gradients": (size - 1) * (keys + values) + size * (keys + values),
        "statistics": (size - 1) * keys + size * received,
    }, by_step


def check_torchs_own_ring_does_what_it_can(rank: int, size: int) -> None:
    used: list[str] = []
    real = torch_ring.run
    torch_ring.run = lambda *given: used.append(given[-1]) or real(*given)
    try:
        for balance, mask in (("contiguous", None), ("contiguous", sl.causal()), ("head-tail", sl.causal())):
            wholes = [torch.randn(2, 4, 32, 8, requires_grad=True) for _ in range(3)]
            mine = [parts(x.detach(), balance).requires_grad_() for x in wholes]
            out = sl.attention(*wholes, mask=mask)
            got = sl.parallel.attention(*mine, mask=mask, balance=balance)
            close(got, parts(out, balance))
            out.square().sum().backward()
            got.square().sum().backward()
            for own, whole in zip(mine, wholes, strict=True):
                close(own.grad, parts(whole.grad, balance))
    finally:
        torch_ring.run = real
    assert used == ([] if torch_ring._templated() is None else ["contiguous", "contiguous", "head-tail"])


def check_nan_stays_where_it_belongs(rank: int, size: int) -> None:
    """A key that nobody sees may hold anything; one that is seen spoils its rows alone."""
    q, k, v = (torch.randn(1, 2, 24, 8, device=DEVICE) for _ in range(3))
    k[:, :, -1], v[:, :, -1] = torch.nan, torch.inf
    v[:, :, 10] = torch.nan
    mask = sl.causal() & sl.padding([23])
    whole = sl.attention(q, k, v, mask=mask)
    got = sl.parallel.attention(*(parts(x, "contiguous") for x in (q, k, v)), mask=mask)
    own = places(24, "contiguous")
    assert got[:, :, own >= 10].isnan().all()
    if DEVICE.type == "cpu":  # torch's CUDA kernels multiply hidden values by 0, and NaN spreads over their tiles
        close(got, parts(whole, "contiguous"))
        assert not whole[:, :, :10].isnan().any()


def check_dropout_drops_what_it_says_and_its_gradient_fits(rank: int, size: int) -> None:
    """The mean over all values of one is one; the gradient of the values is what the output was made with."""
    q, k = (torch.zeros(1, 2, 64, 8, device=DEVICE) for _ in range(2))
    v = torch.ones(1, 2, 64, 4, device=DEVICE, requires_grad=True)
    out = sl.parallel.attention(q, k, v, dropout=0.25)
    assert out.std() > 0.005
    assert 0.9 < float(sl.parallel.unshard(out).mean()) < 1.1
    total = sl.parallel.unshard(out).sum()
    out.sum().backward()
    torch.testing.assert_close(sl.parallel.unshard(v.grad).sum(), total, rtol=1e-4, atol=1e-3)


def check_a_mesh_is_a_group(rank: int, size: int) -> None:
    mesh = dist.device_mesh.init_device_mesh("cpu", (size,), mesh_dim_names=("cp",))
    q = torch.randn(1, 2, 16, 8)
    mine = sl.parallel.shard(q, mesh)
    got = sl.parallel.unshard(sl.parallel.attention(mine, mine, mine, group=mesh), mesh)
    close(got, sl.attention(q, q, q))
    wide = dist.device_mesh.init_device_mesh("cpu", (size // 2, 2), mesh_dim_names=("dp", "cp"))
    _refused("one axis", lambda: sl.parallel.attention(mine, mine, mine, group=wide))
    part = sl.parallel.shard(q, wide["cp"])
    got = sl.parallel.unshard(sl.parallel.attention(part, part, part, group=wide["cp"]), wide["cp"])
    close(got, sl.attention(q, q, q))


def check_what_does_not_fit_is_refused_on_every_rank(rank: int, size: int) -> None:
    q = torch.randn(1, 2, 4, 8)
    one = rank == 1
    _refused("scale", lambda: sl.parallel.attention(q, q, q, scale=0.5 if one else 0.25))
    _refused("dim", lambda: sl.parallel.attention(*[q[..., : 4 if one else 8]] * 3))
    _refused("asked for", lambda: sl.parallel.observe(q, q, q, stats=("entropy",) if one else ()))
    _refused("mask", lambda: sl.parallel.attention(q, q, q, mask=sl.causal() if one else None))
    _refused("fit", lambda: sl.parallel.attention(q, q, q, mask=sl.padding([[True] * 5])))
    _refused("fit", lambda: sl.parallel.attention(q, q, q, bias=torch.zeros(3, 3)))
    _refused("balance", lambda: sl.parallel.attention(q, q, q, balance="zigzag"))
    _refused("backend", lambda: sl.parallel.attention(q, q, q, backend="none"))
    _refused("sigmoid", lambda: sl.parallel.attention(q, q, q, normalizer="sigmoid", sinks=torch.zeros(2)))
    _, sight = sl.parallel.observe(q, q, q)
    for ask in (
        lambda: sight.save("nowhere"),
        lambda: sight.top(2, of="norms"),
        lambda: sight.tile(0, 0, of="influence"),
        lambda: sight.received(reduce="max"),
        lambda: sight.spans({"a": slice(0, 1)}),
        lambda: sight.share(sl.causal()),
        lambda: sl.parallel.observe(q, q, q, stats=(sl.Picture(4, of="pull"),)),
    ):
        _refused("one rank's part", ask)
    _refused("influence of cells is not known", lambda: sight.influence)
    grad = torch.ones(1, 2, 4, 7 if one else 8)
    _refused("grad does not fit" if one else "rank 1 refused", lambda: sl.parallel.observe(q, q, q, grad=grad))
    _refused("dropout", lambda: sl.parallel.observe(q, q, q, grad=q, dropout=0.5))
    q.add_(1)
    _refused("changed after the call", lambda: sight.entropy)


def check_what_one_rank_refuses_is_refused_on_all(rank: int, size: int) -> None:
    """The others hear why, at once: they do not wait in vain, and do not go on with something else."""
    begun = time.monotonic()
    q, one = torch.randn(1, 2, 4, 8), rank == 1
    k = q[..., :7] if one else q
    _refused("dim" if one else "rank 1 refused", lambda: sl.parallel.attention(q, k, q))
    k = q.double() if one else q
    _refused("dtype" if one else "rank 1 refused", lambda: sl.parallel.attention(q, k, q))
    stats = ("entropie",) if one else ()
    _refused("entropie", lambda: sl.parallel.observe(q, q, q, stats=stats))
    mask = "causal" if one else None
    _refused("used as a mask", lambda: sl.parallel.observe(q, q, q, mask=mask))
    heard = Ranks().agree("words", {"said": "ü" * 3000 * rank})  # some longer than a first message
    assert [len(one["said"]) for one in heard] == [3000 * other for other in range(size)]
    close(sl.parallel.attention(q, q, q), sl.attention(q, *[sl.parallel.unshard(q)] * 2), "and it goes on")
    assert time.monotonic() - begun < 20


def check_what_is_of_the_whole_is_the_same_on_every_rank(rank: int, size: int) -> None:
    """Another mask, bias or sinks on one rank would give numbers of no call at all."""
    q, one = torch.randn(1, 2, 4, 8, device=DEVICE), rank == 1
    whole = 4 * size
    ids, table = torch.arange(whole, device=DEVICE) // 3, torch.randn(2, whole, whole, device=DEVICE)
    other = table.clone()
    other[1, 2, 3] += 1e-6
    turned = table.flip(-1)
    for here, there in (
        ({"mask": sl.window(3)}, {"mask": sl.window(2)}),
        ({"mask": sl.documents(ids) & sl.causal()}, {"mask": sl.documents(ids.flip(0)) & sl.causal()}),
        ({"mask": sl.padding(torch.tensor([5]))}, {"mask": sl.padding(torch.tensor([6]))}),
        ({"mask": table > 0}, {"mask": turned > 0}),
        ({"bias": table}, {"bias": other}),
        ({"bias": table}, {"bias": turned}),
        ({"bias": table}, {"bias": table.clone().requires_grad_()}),
        ({"bias": sl.alibi(2)}, {"bias": table}),
        (
            {"sinks": torch.tensor([0.5, 1.0], device=DEVICE)},
            {"sinks": torch.tensor([1.0, 0.5], device=DEVICE)},
        ),
        ({"scale": 0.5}, {"scale": -0.5}),
    ):
        options = there if one else here
        _refused(next(iter(here)), lambda options=options: sl.parallel.attention(q, q, q, **options))
    # A copy is the same, and so is memory of another order.
    mask = sl.documents(ids.clone() if one else ids)
    sl.parallel.attention(q, q, q, mask=mask, bias=table.mT.contiguous().mT if one else table)


def check_ranks_that_ask_a_sight_for_different_things_are_refused(rank: int, size: int) -> None:
    begun = time.monotonic()
    q, one = torch.randn(1, 2, 4, 8), rank == 1
    _, sight = sl.parallel.observe(q, q, q)
    _refused("different things", lambda: sight.entropy if one else sight.received())
    _refused("different things", lambda: sight.received(torch.rand(1, 2, 4)) if one else sight.received())
    _refused("different things", lambda: sight.picture(size=(3, 3) if one else (4, 4)))
    _refused("different things", lambda: sight.tile(0, 0) if one else sight.distance)
    close(sight.received().sum(), torch.tensor(8.0), "and it goes on")  # every rank has the same four queries
    _refused("do not make the same call", lambda: sl.parallel.unshard(q[..., : 4 if one else 8]))
    _refused("do not make the same call", lambda: sl.parallel.unshard(q.double() if one else q))
    _refused("balance", lambda: sl.parallel.unshard(q, balance="zigzag" if one else "contiguous"))
    assert time.monotonic() - begun < 20


class Layer(torch.nn.Module):
    """Self-attention, whose heads follow from how wide its projections are on this rank."""

    def __init__(self, heads: int = 4) -> None:
        super().__init__()
        self.q, self.k, self.v, self.o = (torch.nn.Linear(32, 32) for _ in range(4))
        self.wide = 32 // heads

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = (p(x).unflatten(-1, (-1, self.wide)).transpose(1, 2) for p in (self.q, self.k, self.v))
        out = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        return x + self.o(out.transpose(1, 2).flatten(2))


class Model(torch.nn.Module):
    def __init__(self, layers: int = 4) -> None:
        super().__init__()
        self.tokens = torch.nn.Embedding(50, 32)
        self.layers = torch.nn.ModuleList(Layer() for _ in range(layers))

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.tokens(ids)
        for layer in self.layers:
            x = layer(x)
        return x


def _watched(model: torch.nn.Module, *given: torch.Tensor, **options: Any) -> Any:
    with (
        torch.no_grad(),
        sl.watch(model, stats=("entropy", "received", "overview", "shares", sl.Top(2)), **options) as seen,
    ):
        model(*given)
    return seen


def _as_one(found: Any, whole: Any) -> None:
    """Everything that can be asked of a gathered run is what it is of the run of one process."""
    assert found.layers == whole.layers
    assert found.ids == whole.ids
    for name in whole.layers:
        assert found.heads(name) == whole.heads(name)
        assert found[name].shape == whole[name].shape
        close(found[name].lse, whole[name].lse, name)
        close(found[name].entropy, whole[name].entropy, name)
        close(found[name].received(), whole[name].received(), name)
        close(found[name].top(2).weights, whole[name].top(2).weights, name)
        close(found[name].tile(slice(3, 9), slice(0, 9)), whole[name].tile(slice(3, 9), slice(0, 9)), name)
        close(found[name].picture(size=(3, 2)), whole[name].picture(size=(3, 2)), name)
        close(found[name].max_score, whole[name].max_score, name)
        for share, rows in whole.shares(name).items():
            close(found.shares(name)[share], rows, share)
    for mine, wanted in zip(found.portraits(), whole.portraits(), strict=True):
        assert mine[:2] == wanted[:2]
        close(torch.tensor(mine[2:], dtype=torch.float64), torch.tensor(wanted[2:], dtype=torch.float64), str(mine))
    close(found.rollout(), whole.rollout(), "rollout")


def check_a_model_under_tensor_parallel(rank: int, size: int) -> None:
    model, ids = Model(2).eval(), torch.randint(50, (2, 11))
    whole = _watched(model, ids, keep_qk=True)
    mesh = dist.device_mesh.init_device_mesh("cpu", (size,))
    plan = {f"layers.*.{name}": ColwiseParallel() for name in "qkv"} | {"layers.*.o": RowwiseParallel()}
    parallelize_module(model, mesh, plan)
    mine = _watched(model, ids, keep_qk=True)
    assert mine[0].shape == (2, 4 // size, 11, 11)  # rank-local use stays possible
    found = mine.gather(mesh)
    _as_one(found, whole)
    close(found[0].received(torch.ones(2, 4, 11)), whole[0].received(), "fetched")
    close(found[1].tile(2, 1), whole[1].tile(2, 1), "fetched")
    close(found[0].received(reduce="max"), whole[0].received(reduce="max"), "fetched")
    close(found[0].spans({"some": slice(0, 4)}).table, whole[0].spans({"some": slice(0, 4)}).table, "spans")
    close(found[0].share(sl.window(1)), whole[0].share(sl.window(1)), "share")
    assert mine[0].shape == (2, 4 // size, 11, 11)
    if size == 2:  # of four ranks each has one head, which is all of them
        some = _watched(model, ids, heads=0)
        _refused("only some heads", lambda: some.gather(mesh))


def check_long_maps_are_fetched_from_who_holds_them(rank: int, size: int) -> None:
    """Beyond what is kept cell by cell; where q and k were not kept, all ranks are refused."""
    model, ids = Model(1).eval(), torch.randint(50, (1, 600))
    whole = _watched(model, ids, keep_qk=True)
    mesh = dist.device_mesh.init_device_mesh("cpu", (size,))
    plan = {f"layers.*.{name}": ColwiseParallel() for name in "qkv"} | {"layers.*.o": RowwiseParallel()}
    parallelize_module(model, mesh, plan)
    kept, not_kept = (_watched(model, ids, keep_qk=keep).gather(mesh) for keep in (True, False))
    close(kept[0].tile(slice(500, 520), slice(7, 600)), whole[0].tile(slice(500, 520), slice(7, 600)), "tile")
    close(kept[0].distance / 600, whole[0].distance / 600, "distance")
    close(kept[0].top(4).weights, whole[0].top(4).weights, "strongest")
    by = torch.rand(1, 4, 600)
    close(kept[0].received(by), whole[0].received(by), "weighted")
    close(kept[0].share(sl.window(1)), whole[0].share(sl.window(1)), "share")
    _refused("; here", lambda: kept[0].tile(slice(500, 520), slice(7, 599 if rank == 1 else 600)))  # not the same
    close(not_kept[0].entropy, whole[0].entropy, "entropy")
    _refused("needs q and k", lambda: not_kept[0].tile(slice(500, 520), slice(7, 600)))


def check_a_model_in_pipeline_stages(rank: int, size: int) -> None:
    model, ids = Model(4).eval(), torch.randint(50, (2, 11))
    whole = _watched(model, ids)
    x = model.tokens(ids)
    each = 4 // size
    for layer in model.layers[: rank * each]:
        x = layer(x)

    class Stage(torch.nn.Module):
        """The layers of this rank, by the names they have in the whole."""

        def __init__(self) -> None:
            super().__init__()
            self.layers = torch.nn.ModuleDict({str(i): model.layers[i] for i in range(rank * each, (rank + 1) * each)})
            self.tokens = model.tokens if rank == 0 else None

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            x = x if self.tokens is None else self.tokens(x)
            for layer in self.layers.values():
                x = layer(x)
            return x

    mine = _watched(Stage(), ids if rank == 0 else x.detach())
    assert len(mine) == each
    found = mine.gather()
    assert found.layers == whole.layers
    assert [found.number(name) for name in found.layers] == [0, 1, 2, 3]
    assert found.ids == whole.ids
    for name in whole.layers:
        close(found[name].entropy, whole[name].entropy, name)
        close(found[name].tile(slice(0, 11), slice(0, 11)), whole[name].tile(slice(0, 11), slice(0, 11)), name)


def check_heads_that_are_divided_inside_of_stages(rank: int, size: int) -> None:
    """A mesh of both: the heads of each stage first, and then the stages; fetched through one and the other."""
    model, ids = Model(4).eval(), torch.randint(50, (2, 11))
    whole = _watched(model, ids, keep_qk=True)
    mesh = init_device_mesh("cpu", (size // 2, 2), mesh_dim_names=("pp", "tp"))
    each, stage = 4 // (size // 2), mesh["pp"].get_local_rank()
    x = ids if stage == 0 else model.tokens(ids).detach()
    with torch.no_grad():
        for layer in model.layers[: stage * each]:
            x = layer(x)
    if stage:
        model.tokens = torch.nn.Identity()
    names = {str(i): layer for i, layer in enumerate(model.layers) if i // each == stage}
    model.layers = torch.nn.ModuleDict(names)
    model.forward = lambda x: functools.reduce(lambda y, layer: layer(y), model.layers.values(), model.tokens(x))
    plan = {f"layers.*.{name}": ColwiseParallel() for name in "qkv"} | {"layers.*.o": RowwiseParallel()}
    parallelize_module(model, mesh["tp"], plan)
    mine = _watched(model, x, keep_qk=True)
    assert (len(mine), mine[0].shape[1]) == (each, 2)
    found = mine.gather(mesh["tp"], over="heads").gather(mesh["pp"], over="layers")
    assert found.layers == whole.layers
    for name in whole.layers:
        assert found.heads(name) == whole.heads(name)
        close(found[name].entropy, whole[name].entropy, name)
        close(found[name].tile(slice(3, 9), slice(0, 9)), whole[name].tile(slice(3, 9), slice(0, 9)), name)
        close(found[name].received(reduce="max"), whole[name].received(reduce="max"), name)


def check_a_model_under_fsdp(rank: int, size: int) -> None:
    """Every rank sees every layer, of its own examples; there is nothing to gather, and that is said."""
    model, ids = Model(2).eval(), torch.randint(50, (size, 9))
    whole = _watched(model, ids)
    mesh = dist.device_mesh.init_device_mesh("cpu", (size,))
    for layer in model.layers:
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    mine = _watched(model, ids[rank : rank + 1])
    assert mine.layers == whole.layers
    for name in whole.layers:
        close(mine[name].entropy, whole[name].entropy[rank : rank + 1], name)
        close(mine[name].received(), whole[name].received()[rank : rank + 1], name)
    _refused("different inputs", lambda: mine.gather())
    x = torch.randn(1, 9, 32) + rank  # no tokens: other examples, or heads of the same, nobody can tell
    own = _watched(Layer().eval(), x)
    _refused("nobody can tell", lambda: own.gather())
    assert own.gather(over="heads")[0].shape == (1, 4 * size, 9, 9)
    assert own.gather(over="layers")[0].shape == (1, 4, 9, 9)
    same = _watched(model, ids[:1])
    _refused("the same heads", lambda: same.gather())


def _refused(word: str, call: Callable[[], object]) -> None:
    said = _error(SightlineError, call)
    assert word in said, said


def _error(kind: type[Exception], call: Callable[[], object]) -> str:
    """What an error says that must come."""
    try:
        call()
    except kind as error:
        return str(error)
    raise AssertionError("nothing was refused")


def check_a_rank_that_hangs(rank: int, size: int) -> None:
    """The others end within the timeout of the group, and name it."""
    dist.barrier()
    group = dist.new_group(timeout=timedelta(seconds=4))
    q = torch.randn(1, 2, 4, 8)
    begun = time.monotonic()
    if rank != size - 1:
        said = _error(RankError, lambda: sl.parallel.attention(q, q, q, group=group))
        assert f"rank {size - 1} did not answer: what the call is" in said, said
        assert time.monotonic() - begun < 8
    dist.barrier()


def check_a_rank_that_computes_no_gradient_hangs(rank: int, size: int) -> None:
    dist.barrier()
    group = dist.new_group(timeout=timedelta(seconds=4))
    q = torch.randn(1, 2, 4, 8, dtype=torch.float64, requires_grad=True)
    out = sl.parallel.attention(q, q, q, group=group)
    begun = time.monotonic()
    if rank != size - 1:
        said = _error(RankError, lambda: out.sum().backward())
        assert "did not answer: gradients, keys and values, step" in said, said
        assert f"rank {size - 1} did not answer" in said or rank != 0, said
        assert time.monotonic() - begun < 8
    dist.barrier()


def check_a_rank_that_leaves_torchs_own_ring_hangs(rank: int, size: int) -> None:
    """Of more than one other torch's error does not say which it was."""
    if torch_ring._templated() is None:
        return  # a torch that has it in another form
    dist.barrier()
    group = dist.new_group(timeout=timedelta(seconds=4))
    q = torch.randn(1, 2, 4, 8)
    begun, real = time.monotonic(), torch_ring.run
    if rank == size - 1:
        torch_ring.run = lambda call, *_: (call.q, call.q[..., 0])
    try:
        if rank == size - 1:
            sl.parallel.attention(q, q, q, group=group)
        else:
            said = _error(RankError, lambda: sl.parallel.attention(q, q, q, group=group))
            who = "rank 1 did not answer" if size == 2 else f"one of the ranks {'1' if rank == 0 else '0'}, "
            assert said.startswith(who), said
            assert "did not answer: torch's ring of keys and values" in said, said
            assert time.monotonic() - begun < 8
    finally:
        torch_ring.run = real
    dist.barrier()


def check_a_rank_that_dies(rank: int, size: int) -> None:
    """In the middle of the ring: who waits for it names it, and the step."""
    dist.barrier()
    group = dist.new_group(timeout=timedelta(seconds=6))
    q = torch.randn(1, 2, 4, 8)
    if rank == size - 1:
        real = Ranks.rotate

        def die(self: Ranks, *given: Any) -> Any:
            return os._exit(0) if "statistics" in given[0] else real(self, *given)

        Ranks.rotate = die
    begun = time.monotonic()
    said = _error(
        RankError,
        lambda: sl.parallel.observe(q, q, q, group=group, mask=sl.window(1), stats=("received",)),
    )
    assert "did not answer: statistics, keys, step" in said, said
    if rank == 0:
        assert f"rank {size - 1} did not answer" in said, said
    assert time.monotonic() - begun < 12
