"""What the lse of a row lacks on a GPU: the logarithm of the sum of exp(score - lse), where the lse is a large number.

A large number is rounded coarsely (`lens/levels.py`). Rows of ordinary numbers are only looked at, without waiting for
what is found: a program whose rows are all ordinary ends at once.

Limits: as `look`.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from sightline.kernels.launch import kernel, launch, on_its_device
from sightline.kernels.map_tile import HIDDEN, keys_of_block, logs
from sightline.kernels.rules import Rules


@kernel(unaligned=("SLOPES", "TABLE_PTR", "BIAS_PTR"))
def _measure(
    Q, K, LSE, REST, LARGE, FIRST, STOP, SLOPES, TABLE_PTR, BIAS_PTR,
    q_batch: tl.int64, q_head: tl.int64, q_row: tl.int64, k_batch: tl.int64, k_head: tl.int64, k_row: tl.int64,
    interval_batch: tl.int64,
    table_batch: tl.int64, table_head: tl.int64, table_row: tl.int64, table_column: tl.int64,
    bias_batch: tl.int64, bias_head: tl.int64, bias_row: tl.int64, bias_column: tl.int64,
    maps: tl.int32, heads: tl.int32, groups: tl.int32, queries: tl.int32, keys: tl.int32,
    scale2: tl.float32, cap2: tl.float32, limit: tl.float32,
    D: tl.constexpr, DIM: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, STARTS: tl.constexpr,
    INTERVALS: tl.constexpr, TABLE: tl.constexpr, BIAS: tl.constexpr, ALIBI: tl.constexpr, SOFTCAP: tl.constexpr,
    PRECISION: tl.constexpr,
):  # fmt: skip
    map_id = tl.program_id(1).to(tl.int64)
    b, h = map_id // heads, map_id % heads
    row = tl.program_id(0) * BM + tl.arange(0, BM)
    row_ok = row < queries
    at = map_id * queries + row
    lse = tl.load(LSE + at, mask=row_ok, other=0.0).to(tl.float32)
    large = (tl.abs(lse) > limit) & (tl.abs(lse) < float("inf"))
    if tl.max(large.to(tl.int32), 0) > 0:
        tl.atomic_max(LARGE + map_id, 1, sem="relaxed")
        tl.atomic_max(LARGE + maps, 1, sem="relaxed")
        lse2 = tl.where(lse == -float("inf"), 0.0, lse * 1.4426950408889634)
        first, stop = row * 0, row * 0 + keys
        if STARTS:
            first = tl.load(FIRST + b * interval_batch + row, mask=row_ok, other=keys)
        if INTERVALS:
            stop = tl.load(STOP + b * interval_batch + row, mask=row_ok, other=0)
        slope = 0.0
        if ALIBI:
            slope = tl.load(SLOPES + h) * 1.4426950408889634
        dims, real = tl.arange(0, DIM), tl.minimum(row, queries - 1)
        q = tl.load(
            Q + b * (q_batch * 8) + h * (q_head * 8) + row.to(tl.int64)[:, None] * (q_row * 8) + dims[None, :],
            mask=row_ok[:, None] & (dims[None, :] < D), other=0.0,
        )  # fmt: skip
        keys_of = K + b * (k_batch * 8) + (h // groups) * (k_head * 8)
        table = TABLE_PTR + b * table_batch + h * table_head
        bias = BIAS_PTR + b * bias_batch + h * bias_head
        largest = tl.full([BM], HIDDEN, tl.float32)
        total = tl.zeros([BM], tl.float32)
        end = tl.max(stop, 0)
        for begin in tl.range(tl.min(first, 0), end, BN):
            column = begin + tl.arange(0, BN)
            column_ok = column < end
            k = keys_of_block(keys_of, column, column_ok, k_row, D, DIM)
            t = logs(q, k, lse2, real, row + (keys - queries), begin, column, column_ok, first, stop, slope,
                     table, bias, scale2, cap2, table_row, table_column, bias_row, bias_column,
                     True, STARTS, TABLE, BIAS, ALIBI, SOFTCAP, PRECISION)  # fmt: skip
            now = tl.maximum(largest, tl.max(t, 1))
            total = total * tl.exp2(largest - now) + tl.sum(tl.exp2(t - now[:, None]), 1)
            largest = now
        rest = tl.where(large & (largest > HIDDEN / 2), largest + tl.log2(total), 0.0)
        tl.store(REST + at, rest, mask=row_ok)
    else:
        tl.store(REST + at, tl.zeros([BM], tl.float32), mask=row_ok)


class Measured:
    """What was found beside the lse of each row: `rest` (base 2), and which maps have such rows, `large`."""

    def __init__(self, rest: Tensor, large: Tensor) -> None:
        self.rest, self.large = rest, large
        self._there = torch.cuda.current_stream(large.device).record_event() if large.is_cuda else None
        self._some: bool | None = None

    @property
    def some(self) -> bool:
        """Whether there are any. This waits until they have been looked at, not for what was launched after that."""
        if self._some is None and self._there is not None:
            # On a stream of its own: memory that the GPU writes to by itself would have to be made first, and making it
            # waits for all.
            stream = torch.cuda.Stream(self.large.device)
            stream.wait_event(self._there)
            with torch.cuda.stream(stream):
                self._some = bool(self.large[-1])
        elif self._some is None:
            self._some = bool(self.large[-1])
        return self._some


@on_its_device
def measure(
    q: Tensor,
    k: Tensor,
    lse: Tensor,
    limit: float,
    *,
    scale: float,
    intervals: tuple[Tensor, Tensor] | None = None,
    table: Tensor | None = None,
    bias: Tensor | None = None,
    slopes: Tensor | None = None,
    softcap: float | None = None,
    starts: bool = True,
) -> Measured:
    """What each lse beyond the limit lacks (base 2, `[batch, heads, queries]`), and which maps have such rows.

    Arguments as in `look`; q and k are aligned, `lse` is contiguous.
    """
    batch, heads, queries, dim = q.shape
    rest = torch.empty(lse.shape, dtype=torch.float32, device=q.device)
    large = torch.zeros(batch * heads + 1, dtype=torch.int32, device=q.device)  # the last one is of all maps
    side = 64 if q.dtype != torch.float32 or dim <= 64 else 32
    rules = Rules(q, k, scale, intervals, starts, table, bias, slopes, softcap)
    launch(
        _measure,
        (triton.cdiv(queries, side), batch * heads),
        rules.given | {"LSE": lse, "REST": rest, "LARGE": large, "maps": batch * heads, "limit": limit},
        rules.constants | {"BM": side, "BN": side},
        num_warps=4,
        num_stages=1,
    )
    return Measured(rest, large)
