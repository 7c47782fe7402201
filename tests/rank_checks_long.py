"""What ranks check in the shapes of real heads, which a GPU's own kernels take, in half precision too."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel

import sightline as sl
from rank_checks import DEVICE, Layer, Model, _as_one, _watched, parts, places
from sightline.lens import Sight

LENGTH = 333
# Of the largest number, in float32: what sums over some hundred keys differ by in another order.
CLOSE = 1e-5
STATS = ("entropy", "distance", "received", sl.Top(3), sl.Picture(7, 5))
BALANCES = ("contiguous", "head-tail")


def checks(size: int) -> dict[str, Callable[[int, int], None]]:
    """All checks; they are of two ranks."""
    return {name: value for name, value in globals().items() if name.startswith("check_")}


def cases() -> dict[str, dict[str, Any]]:
    return {
        "full": {},
        "causal": {"mask": sl.causal()},
        "window": {"mask": sl.window(50, 3)},
        "documents": {"mask": sl.documents(torch.arange(LENGTH) // 45) & sl.causal()},
        "padding": {"mask": sl.causal() & sl.padding([LENGTH - 40, LENGTH])},
        "alibi": {"bias": sl.alibi(4), "mask": sl.causal()},
        "sinks": {"sinks": torch.tensor([0.5, -1.0, 3.0, 0.0], device=DEVICE), "mask": sl.causal()},
    }


def draw(dtype: torch.dtype) -> list[torch.Tensor]:
    return [torch.randn(2, heads, LENGTH, 64, device=DEVICE).to(dtype) for heads in (4, 2, 2)]


def exact(x: Any) -> Any:
    return x.double() if isinstance(x, torch.Tensor) else x


def gap(found: torch.Tensor, wanted: torch.Tensor) -> float:
    """The largest difference, of the largest number there is."""
    assert found.shape == wanted.shape
    assert found.isfinite().all()
    return float((found.double() - wanted.double()).abs().amax() / wanted.double().abs().amax().clamp_min(1.0))


def apart(found: torch.Tensor, wanted: torch.Tensor) -> float:
    """How far off all numbers are together: the largest of many roundings in half precision would be left to chance."""
    assert found.isfinite().all()
    return float((found.double() - wanted.double()).norm() / wanted.double().norm())


def readings(sight: Sight, here: torch.Tensor | None = None) -> dict[str, torch.Tensor]:
    """All that is compared; of a sight of one process the places that a rank has."""
    rows = {"lse": sight.lse, "entropy": sight.entropy, "distance": sight.distance / LENGTH}
    found = rows | {"received": sight.received(), "top": sight.top(3).weights.mT}
    found = found if here is None else {name: x[..., here] for name, x in found.items()}
    return found | {"picture": sight.picture(size=(7, 5))}


def check_sights_in_float32_are_those_of_one_process(rank: int, size: int) -> None:
    """In float64, and in float32, by whatever kernel one process takes there."""
    for name, options in cases().items():
        q, k, v = draw(torch.float32)
        finer = {key: exact(x) for key, x in options.items()}
        out, whole = sl.observe(*map(exact, (q, k, v)), stats=STATS, **finer)
        wanted = [(out, whole)]
        if name in ("causal", "documents"):
            wanted.append(sl.observe(q, k, v, stats=STATS, **options))
        for balance in BALANCES:
            here = places(LENGTH, balance)
            mine = [parts(x, balance) for x in (q, k, v)]
            got, sight = sl.parallel.observe(*mine, balance=balance, stats=STATS, **options)
            assert got.device.type == DEVICE.type
            assert sight.entropy.device.type == DEVICE.type
            ours = readings(sight) | {"output": got.mT, "attention": None}
            ours["attention"] = sl.parallel.attention(*mine, balance=balance, **options).mT
            ours["tile"] = sight.tile(slice(rank, len(here)), slice(3, 301)).mT
            for output, one in wanted:
                theirs = readings(one, here) | dict.fromkeys(("output", "attention"), output[..., here, :].mT)
                theirs["tile"] = one.tile(slice(0, LENGTH), slice(3, 301))[..., here[rank:], :].mT
                for what, value in theirs.items():
                    assert gap(ours[what], value) <= CLOSE, f"{balance}, {name}, {what}: {gap(ours[what], value)}"


def check_sights_in_bfloat16_are_as_good_as_those_of_one_process(rank: int, size: int) -> None:
    for name in ("full", "causal", "documents"):
        options = cases()[name]
        q, k, v = draw(torch.bfloat16)
        out, whole = sl.observe(*map(exact, (q, k, v)), stats=STATS, **options)
        alone, one = sl.observe(q, k, v, stats=STATS, **options)
        for balance in BALANCES:
            here = places(LENGTH, balance)
            got, sight = sl.parallel.observe(
                *(parts(x, balance) for x in (q, k, v)), balance=balance, stats=STATS, **options
            )
            off, bound = apart(got, out[..., here, :]), 2 * apart(alone[..., here, :], out[..., here, :])
            assert off <= bound, f"{balance}, {name}, output: {off} > {bound}"
            theirs, wanted = readings(one, here), readings(whole, here)
            for what, value in readings(sight).items():
                # Products of q and k are exact in float32: what errs is the lse of a kernel, and sums.
                off, bound = gap(value, wanted[what]), max(2 * gap(theirs[what], wanted[what]), 1e-4)
                assert off <= bound, f"{balance}, {name}, {what}: {off} > {bound}"


def check_long_gradients(rank: int, size: int) -> None:
    """In float32 those of float64, in bfloat16 with at most twice the error of one process."""
    for dtype in (torch.float32, torch.bfloat16):
        for name in ("causal", "window", "documents", "sinks"):
            options = cases()[name]
            weight = torch.randn(2, 4, LENGTH, 64, device=DEVICE).to(dtype)
            drawn = draw(dtype)
            wanted, alone = (_gradients(drawn, weight, options, to) for to in (torch.float64, dtype))
            for balance in BALANCES:
                here = places(LENGTH, balance)
                mine = [parts(x, balance) for x in drawn]
                given = _own(options)
                found = _gradients(mine, parts(weight, balance), given, dtype, balance)
                for what, got in found.items():
                    cut = slice(None) if what == "sinks" else (..., here, slice(None))
                    off, one = apart(got, wanted[what][cut]), apart(alone[what][cut], wanted[what][cut])
                    bound = 2 * one if dtype == torch.bfloat16 else CLOSE
                    if what == "sinks":  # four numbers, whose roundings are left to chance
                        bound = max(bound, torch.finfo(dtype).eps)
                    assert off <= bound, f"{dtype}, {balance}, {name}, {what}: {off} > {bound}"


def _own(options: dict[str, Any]) -> dict[str, Any]:
    return {key: x.clone() if isinstance(x, torch.Tensor) else x for key, x in options.items()}


def _gradients(
    drawn: list[torch.Tensor],
    weight: torch.Tensor,
    options: dict[str, Any],
    dtype: torch.dtype,
    balance: str | None = None,
) -> dict[str, torch.Tensor]:
    """Gradients of q, k, v and the sinks: by ranks, or without a balance by one process."""
    learned = {what: x.to(dtype).clone().requires_grad_() for what, x in zip("qkv", drawn, strict=True)}
    q, k, v = learned.values()
    if "sinks" in options:
        options = options | {"sinks": options["sinks"].double().to(torch.promote_types(dtype, torch.float32)).clone()}
        learned["sinks"] = options["sinks"].requires_grad_()
    if balance is None:
        out = sl.attention(q, k, v, **options)
    else:
        out = sl.parallel.attention(q, k, v, balance=balance, **options)
    (out * weight.to(dtype)).sum().backward()
    return {what: x.grad for what, x in learned.items() if x.grad is not None}


def check_long_parts_have_the_same_bits_run_after_run(rank: int, size: int) -> None:
    """By one of torch's kernels, however often a shape came: two of them round differently."""
    fixed = [SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH]
    for dtype in (torch.float32, torch.bfloat16):
        q, k, v = (parts(x, "head-tail") for x in draw(dtype))
        runs = []
        for _ in range(2):
            learned = [x.clone().requires_grad_() for x in (q, k, v)]
            with sdpa_kernel(fixed):
                out, sight = sl.parallel.observe(q, k, v, mask=sl.causal(), balance="head-tail", stats=STATS)
                attended = sl.parallel.attention(*learned, mask=sl.causal(), balance="head-tail")
                attended.float().square().sum().backward()
            rectangle = sight.tile(slice(0, 100), slice(0, LENGTH))
            runs.append([out, attended, rectangle, *readings(sight).values(), *(x.grad for x in learned)])
        assert all(torch.equal(a, b) for a, b in zip(*runs, strict=True)), dtype
        picture = runs[0][8]
        assert picture.shape[-2:] == (7, 5)
        both = sl.parallel.unshard(picture[None], dim=0)
        assert all(torch.equal(both[0], one) for one in both), "the same picture on every rank"


class Heads(nn.Module):
    """The heads of a layer that a rank has, and the sum of what all ranks add: through the CPU, as gloo sends."""

    def __init__(self, layer: Layer, rank: int, size: int) -> None:
        super().__init__()
        self.wide = layer.wide
        for name in "qkv":
            setattr(self, name, nn.Linear(32, 32 // size))
            getattr(self, name).weight.data = getattr(layer, name).weight.data.chunk(size)[rank].clone()
            getattr(self, name).bias.data = getattr(layer, name).bias.data.chunk(size)[rank].clone()
        self.o = nn.Linear(32 // size, 32, bias=False)
        self.o.weight.data = layer.o.weight.data.chunk(size, 1)[rank].clone()
        self.added = nn.Parameter(layer.o.bias.data.clone())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = (p(x).unflatten(-1, (-1, self.wide)).transpose(1, 2) for p in (self.q, self.k, self.v))
        out = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        total = self.o(out.transpose(1, 2).flatten(2)).cpu()
        dist.all_reduce(total)
        return x + total.to(x.device) + self.added


def check_a_model_whose_heads_are_divided_is_gathered(rank: int, size: int) -> None:
    model, ids = Model(2).eval().to(DEVICE), torch.randint(50, (2, 11)).to(DEVICE)
    whole = _watched(model, ids, keep_qk=True)
    for i, layer in enumerate(model.layers):
        model.layers[i] = Heads(layer, rank, size).eval().to(DEVICE)
    mine = _watched(model, ids, keep_qk=True)
    assert mine[0].shape == (2, 4 // size, 11, 11)
    found = mine.gather()
    _as_one(found, whole)
    for what in (lambda seen: seen[0].received(reduce="max"), lambda seen: seen[1].tile(2, 1)):
        assert gap(what(found), what(whole)) <= CLOSE
