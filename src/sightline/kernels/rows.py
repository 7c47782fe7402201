"""What is done for each row before and after a pass over the map: one small kernel each, instead of a dozen operations.

A pass adds up whole numbers for each row (fixed point), next to each other in memory.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from sightline.kernels.launch import launch

LN2 = 0.6931471805599453
# The largest negated log2 of a weight that a row has seen, before it has seen any: a pattern no float reaches.
NOTHING = 0x7FFFFFFF
# Rows of one program.
_BLOCK = 1024


@triton.jit
def _prepare(LSE, L, SUMS, LARGEST, rows, PER_ROW: tl.constexpr, MAXIMUM: tl.constexpr, BLOCK: tl.constexpr):
    """Logarithms to base 2, 0 for rows that see nothing; and what the pass adds to, before it begins."""
    i = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    ok = i < rows
    lse2 = tl.load(LSE + i, mask=ok, other=0.0).to(tl.float32) * 1.4426950408889634
    tl.store(L + i, tl.where(lse2 == -float("inf"), 0.0, lse2), mask=ok)
    for part in tl.static_range(PER_ROW):
        tl.store(SUMS + i * PER_ROW + part, tl.zeros([BLOCK], tl.int64), mask=ok)
    if MAXIMUM:
        tl.store(LARGEST + i, tl.full([BLOCK], 0x7FFFFFFF, tl.int32), mask=ok)


@triton.jit
def _finish(
    LSE, REST, SUMS, LARGEST, ENTROPY, DISTANCE, TOTAL, SCORE, rows, unit_entropy, unit_distance, unit_total,
    PER_ROW: tl.constexpr, AT_ENTROPY: tl.constexpr, AT_DISTANCE: tl.constexpr, AT_TOTAL: tl.constexpr,
    MAXIMUM: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """From the sums of each row to its statistics; AT_... says where a sum stands in its row, -1 if it does not."""
    i = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    ok = i < rows
    sums = SUMS + i * PER_ROW
    if AT_TOTAL >= 0:
        total = tl.load(sums + AT_TOTAL, mask=ok, other=0).to(tl.float32) * unit_total
        tl.store(TOTAL + i, total, mask=ok)
    if AT_ENTROPY >= 0:
        spread = -(tl.load(sums + AT_ENTROPY, mask=ok, other=0).to(tl.float32) * unit_entropy)
        tl.store(ENTROPY + i, tl.maximum(spread, 0.0), mask=ok)
    if AT_DISTANCE >= 0:
        far = tl.load(sums + AT_DISTANCE, mask=ok, other=0).to(tl.float32) * unit_distance
        tl.store(DISTANCE + i, far, mask=ok)
    if MAXIMUM:
        bits = tl.load(LARGEST + i, mask=ok, other=0x7FFFFFFF)
        score = tl.load(LSE + i, mask=ok, other=0.0).to(tl.float32)
        below = bits.to(tl.float32, bitcast=True) - tl.load(REST + i, mask=ok, other=0.0)
        score -= below * 0.6931471805599453
        # Where nothing was seen the bits are NaN as a float.
        tl.store(SCORE + i, tl.where(score == score, score, -float("inf")), mask=ok)


def prepare(lse: Tensor, per_row: int, largest: Tensor | None) -> tuple[Tensor, Tensor]:
    """The lse to base 2, and zeros for so many sums of each row; `largest`, one number for each row, is set to NOTHING.

    `lse` is `[batch, heads, queries]` and contiguous; a row that sees nothing gets an lse of 0.
    """
    lse2 = torch.empty(lse.shape, dtype=torch.float32, device=lse.device)
    sums = torch.empty(*lse.shape, per_row, dtype=torch.int64, device=lse.device)
    rows = lse.numel()
    tensors = (lse, lse2, sums, lse2 if largest is None else largest)
    launch(_prepare, (-(-rows // _BLOCK), 1, 1), tensors, (rows,), (per_row, largest is not None, _BLOCK))
    return lse2, sums


def finish(
    lse: Tensor,
    lse2: Tensor,
    rest: Tensor,
    sums: Tensor,
    names: list[str],
    units: dict[str, float],
    largest: Tensor | None,
) -> dict[str, Tensor]:
    """The statistics of each row from its sums, which stand in the order of their names; and the largest score.

    The sums are of w log2 w (entropy), w |i - j| (distance) and w (total), in these units. The memory of `lse2` and of
    `largest` is used for results: neither is read afterwards.
    """
    found = {name: torch.empty(lse.shape, dtype=torch.float32, device=lse.device) for name in names[1:]}
    if names:
        found[names[0]] = lse2
    if largest is not None:
        found["max_score"] = largest.view(torch.float32).reshape(lse.shape)
    if not found:
        return found
    rows = lse.numel()
    results = (found.get(name, lse) for name in ("entropy", "distance", "total", "max_score"))
    tensors = (lse, rest, sums, lse if largest is None else largest, *results)
    numbers = (rows, LN2 * units["entropy"], units["distance"], units["total"])
    places = (names.index(name) if name in names else -1 for name in ("entropy", "distance", "total"))
    settings = (len(names), *places, largest is not None, _BLOCK)
    launch(_finish, (-(-rows // _BLOCK), 1, 1), tensors, numbers, settings)
    return found


def max_scores(lse: Tensor, rest: Tensor, least: Tensor) -> Tensor:
    """The largest score of each row, from the log2 of its largest weight, negated, as bits."""
    score = torch.sub(lse.float(), least.view(torch.float32) - rest, alpha=LN2)
    return score.nan_to_num_(nan=-torch.inf, posinf=torch.inf, neginf=-torch.inf)
