"""What is done for each row before and after a pass over the map: one small kernel each, instead of a dozen operations.

A pass adds up whole numbers for each row (fixed point).
"""

from __future__ import annotations

from typing import Any

import torch
import triton.language as tl
from torch import Tensor

from sightline.kernels.launch import kernel, launch
from sightline.kernels.layout import Band, Rows
from sightline.kernels.map_tile import HIDDEN

LN2 = 0.6931471805599453
# The largest negated log2 of a weight that a row has seen, before it has seen any: a pattern no float reaches.
NOTHING = 0x7FFFFFFF
# Rows of one program.
_BLOCK = 1024


@kernel()
def _prepare(
    LSE, ORDER, L, SUMS, LARGEST, rows: tl.int32, slots: tl.int32, start: tl.int32, length: tl.int32,
    PER_ROW: tl.constexpr, MAXIMUM: tl.constexpr, ORDERED: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Logarithms to base 2, 0 for rows that see nothing; and what the pass adds to, before it begins.

    In the order of the tiles. Of a place without a row the logarithm is so large that whatever it sees weighs nothing.
    """
    map_id = tl.program_id(1).to(tl.int64)
    slot = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    ok = slot < slots
    row = start + slot
    if ORDERED:
        row = tl.load(ORDER + slot, mask=ok, other=-1)
        real = ok & (row >= 0)
    else:
        real = slot < length
    lse2 = tl.load(LSE + map_id * rows + row, mask=real, other=0.0).to(tl.float32) * 1.4426950408889634
    at = map_id * slots + slot
    tl.store(L + at, tl.where(real, tl.where(lse2 == -float("inf"), 0.0, lse2), -HIDDEN), mask=ok)
    for part in tl.static_range(PER_ROW):
        tl.store(SUMS + (map_id * PER_ROW + part) * slots + slot, tl.zeros([BLOCK], tl.int64), mask=ok)
    if MAXIMUM:
        tl.store(LARGEST + at, tl.full([BLOCK], 0x7FFFFFFF, tl.int32), mask=ok)


@kernel()
def _finish(
    LSE, REST, ORDER, SUMS, LARGEST, ENTROPY, DISTANCE, TOTAL, SCORE,
    rows: tl.int32, slots: tl.int32, start: tl.int32, length: tl.int32,
    unit_entropy: tl.float32, unit_distance: tl.float32, unit_total: tl.float32,
    PER_ROW: tl.constexpr, AT_ENTROPY: tl.constexpr, AT_DISTANCE: tl.constexpr, AT_TOTAL: tl.constexpr,
    MAXIMUM: tl.constexpr, ORDERED: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """From the sums of each row to its statistics; AT_... says where a sum stands in its row, -1 if it does not."""
    map_id = tl.program_id(1).to(tl.int64)
    slot = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    ok, row = slot < length, start + slot
    if ORDERED:
        row = tl.load(ORDER + slot, mask=slot < slots, other=-1)
        ok = row >= 0
    i = map_id * rows + row
    at = map_id * slots + slot
    sums = SUMS + map_id * PER_ROW * slots + slot
    lse = tl.load(LSE + i, mask=ok, other=0.0).to(tl.float32)
    # Whole numbers know no NaN: a row that has one says so by its lse.
    nothing = tl.where(lse == lse, 0.0, float("nan"))
    if AT_TOTAL >= 0:
        total = tl.load(sums + AT_TOTAL * slots, mask=ok, other=0).to(tl.float32) * unit_total
        tl.store(TOTAL + i, total + nothing, mask=ok)
    if AT_ENTROPY >= 0:
        spread = -(tl.load(sums + AT_ENTROPY * slots, mask=ok, other=0).to(tl.float32) * unit_entropy)
        tl.store(ENTROPY + i, tl.maximum(spread, 0.0) + nothing, mask=ok)
    if AT_DISTANCE >= 0:
        far = tl.load(sums + AT_DISTANCE * slots, mask=ok, other=0).to(tl.float32) * unit_distance
        tl.store(DISTANCE + i, far + nothing, mask=ok)
    if MAXIMUM:
        bits = tl.load(LARGEST + at, mask=ok, other=0x7FFFFFFF)
        below = bits.to(tl.float32, bitcast=True) - tl.load(REST + i, mask=ok, other=0.0)
        score = lse - below * 0.6931471805599453
        # Where nothing was seen the bits are NaN as a float.
        tl.store(SCORE + i, tl.where(score == score, score, -float("inf")) + nothing, mask=ok)


def prepare(lse: Tensor, rows: Rows, band: Band, per_row: int, largest: Tensor | None) -> tuple[Tensor, Tensor]:
    """The lse to base 2 of a band, in the order of its tiles, and zeros for so many sums of each of its rows.

    `largest`, of its rows too, is set to NOTHING. `lse` is `[batch, heads, queries]` and contiguous; a row that sees
    nothing gets an lse of 0.
    """
    batch, heads, queries = lse.shape
    lse2 = torch.empty(batch, heads, band.slots, dtype=torch.float32, device=lse.device)
    sums = torch.empty(batch, heads, per_row, band.slots, dtype=torch.int64, device=lse.device)
    launch(
        _prepare,
        (-(-band.slots // _BLOCK), batch * heads),
        _of_band(rows, band)
        | {"LSE": lse, "L": lse2, "SUMS": sums if per_row else None, "LARGEST": largest, "rows": queries},
        {"PER_ROW": per_row, "MAXIMUM": largest is not None, "ORDERED": rows.order is not None, "BLOCK": _BLOCK},
    )
    return lse2, sums


def _of_band(rows: Rows, band: Band) -> dict[str, Any]:
    order = None if rows.order is None else rows.order[band.first :]
    return {"ORDER": order, "slots": band.slots, "start": rows.start, "length": rows.length}


def finish(
    lse: Tensor,
    rest: Tensor,
    rows: Rows,
    band: Band,
    sums: Tensor,
    units: dict[str, float],
    largest: Tensor | None,
    found: dict[str, Tensor],
) -> None:
    """Put the statistics of the rows of a band into what is `found`, `[batch, heads, queries]`, by their names.

    From sums, in the order of their `units`: of w log2 w (entropy), w |i - j| (distance) and w (total); and the largest
    score from `largest`.
    """
    if not units and largest is None:
        return
    batch, heads, queries = lse.shape
    names = list(units)
    every = ("entropy", "distance", "total")
    places = {f"AT_{name.upper()}": names.index(name) if name in names else -1 for name in every}
    launch(
        _finish,
        (-(-band.slots // _BLOCK), batch * heads),
        _of_band(rows, band) | {
            "LSE": lse, "REST": rest, "SUMS": sums if names else None, "LARGEST": largest,
            **{name.upper(): found.get(name) for name in every}, "SCORE": found.get("max_score"), "rows": queries,
            "unit_entropy": LN2 * units.get("entropy", 0.0), "unit_distance": units.get("distance", 0.0),
            "unit_total": units.get("total", 0.0),
        },
        {
            "PER_ROW": len(names), **places, "MAXIMUM": largest is not None, "ORDERED": rows.order is not None,
            "BLOCK": _BLOCK,
        },
    )  # fmt: skip


def max_scores(lse: Tensor, rest: Tensor, least: Tensor) -> Tensor:
    """The largest score of each row, from the log2 of its largest weight, negated, as bits."""
    score = torch.sub(lse.float(), least.view(torch.float32) - rest, alpha=LN2)
    score.nan_to_num_(nan=-torch.inf, posinf=torch.inf, neginf=-torch.inf)
    # A row of which nothing is known says so by its lse, as in `finish`.
    return score.masked_fill_(lse.isnan(), torch.nan)
