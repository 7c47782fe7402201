"""Cases for the tests of the core: shapes, masks, biases and whole calls, drawn by Hypothesis.

A drawn mask comes with its meaning as a plain table, written down here a second time and without the library:
the tests compare what the library says with that table.
"""

from __future__ import annotations

import math
import sys
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from hypothesis import strategies as st
from torch import Tensor

import sightline as sl
from sightline.backends import reference
from sightline.positions import alibi

DTYPES = (torch.float64, torch.float32, torch.float16, torch.bfloat16)
BATCHES = ((), (1,), (2,), (2, 3), (0,))
GROUPS = ((1, 1), (4, 2), (8, 1), (3, 3), (12, 4))
# Limits beyond any length: the last does not fit into an int64.
HUGE = (sys.maxsize, sys.maxsize - 1, 1 << 62, 10**30)
LENGTHS = (0, 1, 2, 3, 5, 7, 16, 17, 31, 64, 129)
SHORT = (0, 1, 2, 3, 5, 7, 16, 17)
DIMS = (1, 3, 8, 16, 32)

# Plain torch may be exactly right by luck (one key, weights that are powers of two), and nothing is at most twice
# zero. Rounding the terms of the last sum costs every method some eps of them, so a few are granted to everybody.
FLOOR = 4


class Shape(NamedTuple):
    """The sizes that a mask, a bias or sinks must fit."""

    batch: tuple[int, ...]
    heads: int
    queries: int
    keys: int

    @property
    def full(self) -> tuple[int, ...]:
        return (*self.batch, self.heads, self.queries, self.keys)


class Drawn(NamedTuple):
    """A mask of the library, and the table `[*batch, heads, queries, keys]` it must mean."""

    mask: Any
    table: Tensor


@dataclass
class Case:
    """One call of `sl.attention`; `table` is the meaning of its mask."""

    q: Tensor
    k: Tensor
    v: Tensor
    options: dict[str, Any] = field(default_factory=dict)
    table: Tensor | None = None

    def __repr__(self) -> str:
        options = {name: _short(value) for name, value in self.options.items()}
        return f"Case(q={_short(self.q)}, k={_short(self.k)}, v={_short(self.v)}, {options})"


def _short(value: object) -> object:
    return f"{str(value.dtype)[6:]}{list(value.shape)}" if isinstance(value, Tensor) else value


def generator(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


SEEDS = st.integers(0, 2**32 - 1)


def lengths(rarely: tuple[int, ...] = (), usually: tuple[int, ...] = LENGTHS) -> st.SearchStrategy[int]:
    """Lengths of a sequence; the long ones, which need several tiles, are drawn once in a while."""
    usual = st.sampled_from(usually)
    if not rarely:
        return usual
    return st.integers(0, 19).flatmap(lambda n: st.sampled_from(rarely) if n == 13 else usual)


@st.composite
def shapes(draw: Any, usually: tuple[int, ...] = LENGTHS) -> Shape:
    batch = draw(st.sampled_from(BATCHES))
    heads, _ = draw(st.sampled_from(GROUPS))
    return Shape(batch, heads, draw(lengths(usually=usually)), draw(lengths(usually=usually)))


@st.composite
def broadcastable(draw: Any, target: tuple[int, ...], at_least: int) -> tuple[int, ...]:
    """A shape that broadcasts to the target: leading axes may be missing, others may be 1."""
    axes = draw(st.integers(at_least, len(target)))
    return tuple(draw(st.sampled_from((size, 1))) for size in target[len(target) - axes :])


def _batch_part(draw: Any, batch: tuple[int, ...]) -> tuple[int, ...]:
    return draw(broadcastable(batch, 0)) if batch else ()


@st.composite
def bands(draw: Any, shape: Shape) -> Drawn:
    """Causal with both alignments, and windows with and without limits."""
    kind = draw(st.sampled_from(("causal", "start", "window")))
    place = torch.arange(shape.queries)[:, None] + (0 if kind == "start" else shape.keys - shape.queries)
    column = torch.arange(shape.keys)
    if kind != "window":
        mask = sl.causal() if kind == "causal" else sl.causal(align="start")
        return Drawn(mask, (column <= place).expand(shape.full))
    limit = st.none() | st.integers(0, 9) | st.integers(0, max(shape.keys, 1)) | st.sampled_from(HUGE)
    left, right = draw(limit), draw(limit)
    table = torch.ones(shape.queries, shape.keys, dtype=torch.bool)
    if left is not None and left not in HUGE:
        table &= column >= place - left
    if right is not None and right not in HUGE:
        table &= column <= place + right
    return Drawn(sl.window(left, right), table.expand(shape.full))


@st.composite
def prefixes(draw: Any, shape: Shape) -> Drawn:
    n = draw(st.integers(0, shape.keys + 2) | st.sampled_from(HUGE))
    place = torch.arange(shape.queries)[:, None] + shape.keys - shape.queries
    column = torch.arange(shape.keys)
    return Drawn(sl.prefix(n), ((column <= place) | (column < min(n, shape.keys))).expand(shape.full))


@st.composite
def documents(draw: Any, shape: Shape, in_order: bool | None = None) -> Drawn:
    """One or two lists of ids, in order or interleaved."""
    random = generator(draw(SEEDS))
    in_order = draw(st.booleans()) if in_order is None else in_order
    count = draw(st.sampled_from((1, 2, 5)))

    def ids(length: int) -> Tensor:
        values = torch.randint(-1, count, (*_batch_part(draw, shape.batch), length), generator=random)
        return values.sort(-1).values if in_order else values

    key_ids = ids(shape.keys)
    if shape.queries <= shape.keys and draw(st.booleans()):
        mask, query_ids = sl.documents(key_ids), key_ids[..., shape.keys - shape.queries :]
    else:
        query_ids = ids(shape.queries)
        mask = sl.documents(query_ids, key_ids)
    same = query_ids[..., :, None] == key_ids[..., None, :]
    return Drawn(mask, same.unsqueeze(-3).expand(shape.full))


@st.composite
def paddings(draw: Any, shape: Shape) -> Drawn:
    """Lengths (0 among them) or booleans, for all of the batch or some of its axes."""
    random = generator(draw(SEEDS))
    part = _batch_part(draw, shape.batch)
    if draw(st.booleans()):
        real = torch.rand(*part, shape.keys, generator=random) < draw(st.sampled_from((0.0, 0.5, 1.0)))
        mask = sl.padding(real)
    else:
        counts = torch.randint(0, shape.keys + 1, part, generator=random)
        real = torch.arange(shape.keys) < counts[..., None]
        mask = sl.padding(counts)
    return Drawn(mask, real[..., None, None, :].expand(shape.full))


@st.composite
def tables(draw: Any, shape: Shape) -> Drawn:
    """A dense mask of any shape that broadcasts."""
    part = draw(broadcastable(shape.full, 2))
    share = draw(st.sampled_from((0.0, 0.2, 0.7, 1.0)))
    table = torch.rand(part, generator=generator(draw(SEEDS))) < share
    mask = sl.dense(table) if draw(st.booleans()) else table
    return Drawn(mask, table.expand(shape.full))


def leaves(shape: Shape) -> st.SearchStrategy[Drawn]:
    return st.one_of(bands(shape), prefixes(shape), documents(shape), paddings(shape), tables(shape))


@st.composite
def masks(draw: Any, shape: Shape, depth: int = 3) -> Drawn:
    """Any mask, or masks joined by `& | ~`, up to a depth."""
    sign = draw(st.sampled_from(("leaf", "leaf", "&", "|", "~"))) if depth else "leaf"
    if sign == "leaf":
        return draw(leaves(shape))
    left = draw(masks(shape, depth - 1))
    mask = sl.dense(left.mask) if isinstance(left.mask, Tensor) else left.mask
    if sign == "~":
        return Drawn(~mask, ~left.table)
    right = draw(masks(shape, depth - 1))
    if sign == "&":
        return Drawn(mask & right.mask, left.table & right.table)
    return Drawn(mask | right.mask, left.table | right.table)


@st.composite
def biases(draw: Any, shape: Shape, dtype: torch.dtype) -> Any:
    """A dense bias of any shape that broadcasts, some of it -inf, or ALiBi."""
    if draw(st.integers(0, 3)) == 0:
        return alibi(shape.heads)
    random = generator(draw(SEEDS))
    table = 2 * torch.randn(draw(broadcastable(shape.full, 0)), generator=random, dtype=torch.float64)
    if draw(st.booleans()):
        table = table.masked_fill(torch.rand(table.shape, generator=random) < 0.2, -torch.inf)
    return table.to(draw(st.sampled_from((dtype, torch.float32))))


@st.composite
def cases(
    draw: Any,
    dtypes: tuple[torch.dtype, ...] = DTYPES,
    rarely: tuple[int, ...] = (300, 600),
    usually: tuple[int, ...] = LENGTHS,
    plain: bool = False,
    batches: tuple[tuple[int, ...], ...] = BATCHES,
    groups: tuple[tuple[int, int], ...] = GROUPS,
) -> Case:
    """A whole call. `plain`: only what SDPA can express (softmax; no mask, causal, padding, tables; a dense bias)."""
    dtype = draw(st.sampled_from(dtypes))
    batch = draw(st.sampled_from(batches))
    heads, kv_heads = draw(st.sampled_from(groups))
    shape = Shape(batch, heads, draw(lengths(rarely, usually)), draw(lengths(rarely, usually)))
    dim, value_dim = draw(st.sampled_from(DIMS)), draw(st.sampled_from(DIMS))
    random = generator(draw(SEEDS))

    def tensor(*size: int, factor: float = 1.0) -> Tensor:
        return (factor * torch.randn(size, generator=random, dtype=torch.float64)).to(dtype)

    q = tensor(*batch, heads, shape.queries, dim, factor=draw(st.sampled_from((1.0, 4.0))))
    k = tensor(*batch, kv_heads, shape.keys, dim)
    v = tensor(*batch, kv_heads, shape.keys, value_dim)
    if (batch, heads) == ((), 1) and draw(st.booleans()):
        q, k, v = q[0], k[0], v[0]
    options: dict[str, Any] = {}
    table = None
    if draw(st.integers(0, 4)):
        options["mask"], table = draw(_expressible(shape) if plain else masks(shape))
    causal = isinstance(options.get("mask"), sl.masks.Band)
    if draw(st.integers(0, 2)) == 0 and not (plain and causal):
        bias = draw(biases(shape, dtype))
        options["bias"] = bias.to_dense(shape.queries, shape.keys) if plain and not isinstance(bias, Tensor) else bias
    if draw(st.integers(0, 3)) == 0:
        options["scale"] = draw(st.sampled_from((0.5, 1.0, -0.3, 0.0, np.float32(0.7), np.int64(1))))
    if not plain:
        options["normalizer"] = draw(st.sampled_from(("softmax", "softmax", "softmax", "relu", "sigmoid", "uniform")))
        if draw(st.integers(0, 3)) == 0:
            options["softcap"] = draw(st.sampled_from((1.0, 5.0, np.float64(30.0), np.int32(2))))
        if options["normalizer"] == "softmax" and draw(st.integers(0, 3)) == 0:
            options["sinks"] = tensor(*draw(st.sampled_from(((heads,), (*batch, heads)))))
    return Case(q, k, v, options, table)


@st.composite
def _expressible(draw: Any, shape: Shape) -> Drawn:
    drawn = draw(st.one_of(paddings(shape), tables(shape), st.just(None)))
    if drawn is not None:
        return drawn
    align = "end" if shape.queries == shape.keys and draw(st.booleans()) else "start"
    below = torch.arange(shape.keys) <= torch.arange(shape.queries)[:, None]
    return Drawn(sl.causal(align=align), below.expand(shape.full))


def exact(case: Case) -> Tensor:
    """The definition in float64, of the very numbers that the case holds."""
    return exact_and_terms(case)[0]


def exact_and_terms(case: Case) -> tuple[Tensor, float]:
    """The definition in float64, and the largest sum of weights times |values|: what cancels in the last sum."""
    options = {
        name: value.double() if isinstance(value, Tensor) and name != "mask" else value
        for name, value in case.options.items()
    }
    flat = case.q.dim() == 2
    q, k, v = (t.double()[None] if flat else t.double() for t in (case.q, case.k, case.v))
    both = reference.matrix_view(q, k, torch.cat([v, v.abs()], -1), **options)
    out, terms = both.split(v.shape[-1], -1)
    return out[0] if flat else out, terms.max().item() if terms.numel() else 0.0


def plain_torch(case: Case, way: str) -> Tensor:
    """The same call in plain torch and in its own precision.

    `"sdpa"`: by torch's kernel with the mask written out. `"eager"`: the formula step by step. `"scaled"`: the same
    with q scaled before the product. `"reversed"`: the same with keys and channels, and so every sum, in the other
    order. A row that sees nothing is set to 0, where the formula would give NaN.
    """
    o, dtype = case.options, case.q.dtype
    flat = case.q.dim() == 2
    q, k, v = (t[None] if flat else t for t in (case.q, case.k, case.v))
    groups = q.shape[-3] // k.shape[-3]
    k, v = (t.repeat_interleave(groups, -3) for t in (k, v))
    queries, keys, dim = q.shape[-2], k.shape[-2], q.shape[-1]
    scale = o.get("scale")
    scale = 1 / math.sqrt(dim) if scale is None else scale
    visible = torch.ones(*q.shape[:-1], keys, dtype=torch.bool) if case.table is None else case.table
    bias = o.get("bias")
    if bias is not None:
        bias = (bias if isinstance(bias, Tensor) else _alibi(bias.heads, queries, keys)).to(dtype).expand(visible.shape)
    if way == "reversed":
        q, k, v, visible = q.flip(-1), k.flip(-1, -2), v.flip(-2), visible.flip(-1)
        bias = None if bias is None else bias.flip(-1)
    normalizer, softcap, sinks = o.get("normalizer", "softmax"), o.get("softcap"), o.get("sinks")
    if way == "sdpa":
        table = visible if bias is None else torch.where(visible, bias, -torch.inf)
        out = F.scaled_dot_product_attention(q, k, v, attn_mask=table, scale=scale)
        return out[0] if flat else out
    scores = (q @ k.mT) * scale if way != "scaled" else (q * scale) @ k.mT
    if softcap is not None:
        scores = softcap * torch.tanh(scores / softcap)
    if bias is not None:
        scores = scores + bias
    scores = scores.masked_fill(~visible, -torch.inf)
    count = visible.sum(-1, keepdim=True).clamp_min(1).to(dtype)
    if normalizer == "softmax":
        if sinks is not None:
            column = sinks[..., None, None].to(dtype).expand(*scores.shape[:-1], 1)
            weights = torch.cat([scores, column], -1).softmax(-1)[..., :-1]
        else:
            weights = scores.softmax(-1)
        weights = weights.masked_fill((scores == -torch.inf).all(-1, keepdim=True), 0.0)
    elif normalizer == "relu":
        weights = scores.relu() / count
    elif normalizer == "sigmoid":
        weights = (scores - count.log()).sigmoid()
    else:
        weights = visible / count
    out = weights @ v
    return out[0] if flat else out


def _alibi(heads: int, queries: int, keys: int) -> Tensor:
    """ALiBi written down a second time, in float64: of 12 heads the slopes of 8, and every second one of 16."""
    power = 1 << (heads.bit_length() - 1)
    exponents = [8 * (i + 1) / power for i in range(power)] + [4 * (2 * i + 1) / power for i in range(heads - power)]
    distance = (torch.arange(queries)[:, None] + keys - queries - torch.arange(keys)).abs()
    return -torch.tensor([2.0**-e for e in exponents], dtype=torch.float64)[:, None, None] * distance


def plain_error(case: Case, truth: Tensor, backend: str) -> float:
    """The error that plain torch makes in this case.

    In half precision that is the error of SDPA where it can express the call: it is far better than the formula
    step by step, which rounds every score. In single and double precision all ways are equally good, and the error of
    one of them is a matter of luck (in double precision the truth was computed by one of them), so it is the largest.
    The definition is itself the formula step by step.
    """
    o = case.options
    expressible = o.get("normalizer", "softmax") == "softmax" and "softcap" not in o and "sinks" not in o
    if backend == "reference":
        ways = ["eager", "scaled", "reversed"]
    elif case.q.dtype in (torch.float16, torch.bfloat16):
        ways = ["sdpa"] if expressible else ["eager"]
    else:
        ways = ["eager", "scaled", "reversed", *(["sdpa"] if expressible else [])]
    return max(error(plain_torch(case, way), truth) for way in ways)


def error(out: Tensor, truth: Tensor) -> float:
    """The largest difference, relative to the largest number of the truth; 0 where both are 0 throughout."""
    if not truth.numel():
        return 0.0
    largest = truth.abs().max().item()
    difference = (out.double() - truth).abs().max().item()
    return 0.0 if difference == 0 else difference / largest if largest else math.inf


def check(case: Case, backend: str) -> None:
    """`sl.attention` makes at most twice the error of plain torch, and gives the shape and dtype of its inputs."""
    out = sl.attention(case.q, case.k, case.v, **case.options, backend=backend)
    truth, terms = exact_and_terms(case)
    if out.shape != truth.shape or out.dtype != case.q.dtype:
        raise AssertionError(f"{case}: {_short(out)}, expected {case.q.dtype} {tuple(truth.shape)}")
    largest = truth.abs().max().item() if truth.numel() else 0.0
    if largest == 0:
        if not (out == 0).all():
            raise AssertionError(f"{case} by {backend}: expected 0, got {out}")
        return
    floor = FLOOR * torch.finfo(case.q.dtype).eps * max(1.0, terms / largest)
    if case.q.dtype == torch.float64:
        floor *= 2  # what it is compared with is float64 too, and rounded as much
    ours, theirs = error(out, truth), plain_error(case, truth, backend)
    if not ours <= 2 * theirs + floor:
        raise AssertionError(f"{case} by {backend}: error {ours:.3g}, plain torch {theirs:.3g}, floor {floor:.3g}")


def inputs(
    *batch: int,
    heads: int = 2,
    kv_heads: int | None = None,
    queries: int = 6,
    keys: int = 6,
    dim: int = 4,
    value_dim: int | None = None,
    dtype: torch.dtype = torch.float64,
    grad: bool = False,
    seed: int = 0,
) -> tuple[Tensor, Tensor, Tensor]:
    """q, k and v of the given sizes, for tests that need no drawing."""
    kv_heads, value_dim, random = kv_heads or heads, value_dim or dim, generator(seed)
    sizes = ((heads, queries, dim), (kv_heads, keys, dim), (kv_heads, keys, value_dim))
    q, k, v = (
        torch.randn(*batch, *size, generator=random, dtype=torch.float64).to(dtype).requires_grad_(grad)
        for size in sizes
    )
    return q, k, v
