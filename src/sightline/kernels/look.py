"""The second pass over the map on a GPU: from q, k and the lse, every statistic in one go, by the kernel in `program`.

Limits: softmax; float32, float16, bfloat16; a head of up to 256; a mask that leaves each row one stretch of keys,
and beside it one table of booleans. Tested on an H200 with Triton 3.6, and in Triton's interpreter with 3.7.
"""

from __future__ import annotations

import torch
import triton
from torch import Tensor

from sightline.kernels.launch import launch, on_its_device
from sightline.kernels.layout import Slots, Tiling, chunks, cut, default_tiling, descriptor, tiles_seen
from sightline.kernels.measure import Measured
from sightline.kernels.program import program
from sightline.kernels.rows import NOTHING, finish, prepare

LOG2E = 1.4426950408889634


@on_its_device
def look(
    q: Tensor,
    k: Tensor,
    lse: Tensor,
    measured: Measured,
    *,
    scale: float,
    rows: Slots,
    columns: Slots,
    want: frozenset[str],
    intervals: tuple[Tensor, Tensor] | None = None,
    table: Tensor | None = None,
    bias: Tensor | None = None,
    slopes: Tensor | None = None,
    softcap: float | None = None,
    weights: Tensor | None = None,
    factors: Tensor | None = None,
    tiling: Tiling | None = None,
    seen: Tensor | None = None,
    starts: bool = True,
    bins: int = 1,
    pixel_unit: float = 1.0,
) -> dict[str, Tensor]:
    """One pass over a rectangle of the maps of q `[batch, heads, queries, dim]` and k `[batch, kv_heads, keys, dim]`.

    `lse` is `[batch, heads, queries]`, natural logarithm, of the keys alone; `measured` what `measure` found of it.
    `factors`, one for each row, are what sinks leave of sums, maxima and what was received; `weights` count for what
    was received alone. Row statistics are of the keys among each other.

    `intervals` are the first visible key of each row and the end, `[batch or 1, queries]` int32, both never falling
    from row to row. `table` (booleans) and `bias` have four axes, expanded with stride 0 where they repeat. `starts`
    says whether any row's first key is not key 0. `seen` is what `tiles_seen` gives for these arguments, if known.

    `want` names out of entropy, max_score, distance, total, received, sums, maxima. Sums of pixels are multiplied by
    `pixel_unit`.

    With more than one of `bins`, max_score gives `largest` `[batch, heads, bins, queries]` instead: the largest log2 of
    a weight, negated, in each of so many stretches of columns; and `bin_edges` `[bins + 1]`, where these begin and end.
    Of stretches that a row does not see it may hold anything.
    """
    batch, heads, queries, dim = q.shape
    keys, device = k.shape[2], q.device
    tiling = tiling or default_tiling(dim, q.dtype, want)
    grid = (batch * heads, triton.cdiv(columns.slots, 2 * tiling.columns))
    bin_parts = -(-2 * grid[1] // bins)
    one_bin = bins > 1 and bin_parts == 1
    group = min(columns.group, tiling.columns)
    # A pixel as wide as what a thread sums at once, or as a block or both, belongs to one program, and there to the
    # threads that have its rows.
    blocks = {group: 0, tiling.columns: 1, 2 * tiling.columns: 2}.get(columns.pixel)
    two_sums = blocks is not None and rows.apart > 1 and tiling.rows // rows.apart <= 4

    def new(*size: int, dtype: torch.dtype = torch.float32, fill: int | None = None) -> Tensor:
        if fill == 0:
            return torch.zeros(size, dtype=dtype, device=device)
        empty = torch.empty(size, dtype=dtype, device=device)
        return empty if fill is None else empty.fill_(fill)

    largest = None
    if "max_score" in want:
        fill = NOTHING if bins > 1 and not one_bin else None
        largest = new(batch, heads, bins, queries, dtype=torch.int32, fill=fill)
    of_rows = None if bins > 1 else largest
    added: list[str] = [name for name in ("entropy", "distance", "total") if name in want]
    lse = lse.contiguous()
    lse2, sums_of_rows = prepare(lse, len(added), of_rows)
    found: dict[str, Tensor] = {}
    if "received" in want:
        found["received"] = new(batch, heads, keys)
    for name in want & {"sums", "maxima"}:
        dtype = torch.int32 if name == "maxima" else torch.float32 if two_sums else torch.int64
        found[name] = new(batch, heads, rows.bins, columns.bins, dtype=dtype, fill=0)
    # As many bits behind the point as 62 leave for the largest sum there can be.
    fixed = 2.0 ** (61 - max(queries, 2).bit_length())
    fixed_entropy, fixed_distance = 2.0**52, 2.0 ** (61 - max(keys, queries, 2).bit_length())
    first, stop = intervals if intervals is not None else (lse2, lse2)
    pictured = bool(want & {"sums", "maxima"})
    chunk, per_chunk = chunks(rows, tiling, pictured)
    if seen is None:
        sides = "distance" in want
        seen = tiles_seen(intervals, rows, columns, tiling, chunk, per_chunk, keys - queries, sides, device)
    fetch = descriptor(q, rows, tiling.rows, pictured)
    weights = None if weights is None else weights.float().contiguous()
    if factors is not None and "received" in want:
        weights = factors if weights is None else weights * factors
    if not pictured:
        factors = None

    def given(x: Tensor | None) -> Tensor:
        return lse2 if x is None else x

    def strides(x: Tensor | None) -> tuple[int, ...]:
        return (0, 0, 0, 0) if x is None else x.stride()

    # Without a mask, and with whole tiles, every cell is there.
    even = intervals is None and table is None and rows.edges is None and columns.edges is None
    even = even and rows.length % chunk == 0 and columns.slots % (2 * tiling.columns) == 0
    tensors = (
        q, k, given(None) if fetch is None else fetch, lse2, measured.rest, measured.large, first, stop, seen,
        given(slopes), given(table), given(bias), given(weights), given(factors),
        sums_of_rows if added else lse2, given(largest),
        *(given(found.get(name)) for name in ("received", "sums", "maxima")), given(rows.edges), given(columns.edges),
    )  # fmt: skip
    numbers = (
        *q.stride(), *k.stride(), 0 if first.shape[0] == 1 or intervals is None else first.stride(0),
        0 if seen.shape[0] == 1 else seen.stride(0), *strides(table), *strides(bias),
        heads, heads // k.shape[1], queries, keys,
        scale * LOG2E, 0.0 if softcap is None else softcap * LOG2E, fixed, fixed_entropy, fixed_distance,
        pixel_unit, bin_parts,
        rows.start, rows.length, rows.pixel, rows.bins, per_chunk,
        columns.start, columns.slots, columns.pixel, columns.bins,
    )  # fmt: skip
    settings = (
        dim, max(16, triton.next_power_of_2(dim)), tiling.rows, tiling.columns, fetch is not None,
        rows.edges is not None, columns.edges is not None, group, rows.apart,
        starts and intervals is not None, intervals is not None, table is not None, bias is not None,
        slopes is not None, softcap is not None,
        "entropy" in want, "max_score" in want, "distance" in want, "total" in want,
        "received" in want, weights is not None, "sums" in want, "maxima" in want, factors is not None,
    )  # fmt: skip
    last = (
        bins, one_bin, two_sums, blocks or 0, even, len(added), "tf32x3" if q.dtype == torch.float32 else "tf32",
    )  # fmt: skip
    options = (("num_warps", tiling.warps), ("num_stages", tiling.stages), ("maxnreg", tiling.registers))
    launch(program, (*grid, 1), tensors, numbers, (*settings, False, *last), options)
    if measured.some:
        launch(program, (*grid, 1), tensors, numbers, (*settings, True, *last), options)
    units = {"entropy": 1 / fixed_entropy, "distance": 1 / fixed_distance, "total": 1 / fixed}
    found |= finish(lse, lse2, measured.rest, sums_of_rows, added, units, of_rows)
    del tensors, sums_of_rows  # before more is made
    if "sums" in found and not two_sums:
        found["sums"] = found["sums"] * (pixel_unit / fixed)  # a float32, in one go
    if "maxima" in found:
        found["maxima"] = found["maxima"].view(torch.float32)
    if bins > 1 and largest is not None:
        found["largest"] = largest
        found["bin_edges"] = cut(columns, bin_parts * tiling.columns, bins, device).to(torch.int32)
    return found
