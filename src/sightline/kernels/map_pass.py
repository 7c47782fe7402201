"""The second pass over the map on a GPU: from q, k and the lse, every statistic in one go, by `map_program`.

Limits: softmax; float32, float16, bfloat16; a head of up to 256; a mask that leaves each row one stretch of keys,
and beside it one table of booleans. Tested in Triton's interpreter (3.7), and on an H200 with Triton 3.6. On each
machine it is tried before it is used (`lens/gpu/trial.py`).
"""

from __future__ import annotations

import torch
import triton
from torch import Tensor

from sightline.kernels.launch import launch, on_its_device
from sightline.kernels.layout import (
    TAKEN,
    Columns,
    Rows,
    Tiling,
    bands,
    descriptor,
    in_order,
    one_axis,
    tiles_seen,
)
from sightline.kernels.map_program import program
from sightline.kernels.measure import Measured
from sightline.kernels.row_stats import NOTHING, finish, prepare
from sightline.kernels.rules import Rules


@on_its_device
def look(
    q: Tensor,
    k: Tensor,
    lse: Tensor,
    measured: Measured,
    *,
    scale: float,
    rows: Rows,
    columns: Columns,
    want: frozenset[str],
    tiling: Tiling,
    intervals: tuple[Tensor, Tensor] | None = None,
    table: Tensor | None = None,
    bias: Tensor | None = None,
    slopes: Tensor | None = None,
    softcap: float | None = None,
    weights: Tensor | None = None,
    seen: Tensor | None = None,
    starts: bool = True,
    bins: int = 1,
    as_floats: bool = False,
    pixel_unit: float = 1.0,
) -> dict[str, Tensor]:
    """One pass over a rectangle of the maps of q `[batch, heads, queries, dim]` and k `[batch, kv_heads, keys, dim]`.

    q and k are aligned (`layout`). `lse` is `[batch, heads, queries]`, natural logarithm, of the keys alone; `measured`
    what `measure` found of it. `weights`, one for each row, multiply what is received and the pixels; row statistics
    are of the keys among each other.

    `intervals` are the first visible key of each row and the end, `[batch or 1, queries]` int32, both never falling
    from row to row. `table` (booleans) and `bias` have four axes, expanded with stride 0 where they repeat. `starts`
    says whether any row's first key is not key 0. `seen` is what `tiles_seen` gives for these arguments, if known.

    `want` names out of entropy, max_score, distance, total, received, sums, maxima; maxima go with neither of the two
    before them. Sums of pixels are multiplied by `pixel_unit`; `as_floats` says that no pixel is wider than the columns
    of a program: then they need no whole numbers of 64 bits.

    With more than one of `bins`, max_score gives `largest` `[batch, heads, bins, places]` instead: the largest log2 of
    a weight, negated, in each of so many stretches of columns, in the order of the tiles. Of stretches that a row does
    not see it may hold anything. How wide they are says `bin_width`.
    """
    batch, heads, queries, _ = q.shape
    keys, device = k.shape[2], q.device
    programs = triton.cdiv(columns.length, 2 * tiling.columns)
    bin_parts = -(-2 * programs // bins)
    found: dict[str, Tensor] = {}
    binned = None
    if "max_score" in want and bins > 1:
        binned = found["largest"] = torch.empty(batch, heads, bins, rows.total, dtype=torch.int32, device=device)
        if bin_parts > 1:
            binned.fill_(NOTHING)
    of_rows: list[str] = [name for name in ("entropy", "distance", "total") if name in want]
    one_largest = "max_score" in want and binned is None
    for name in (*of_rows, *(["max_score"] if one_largest else [])):
        found[name] = torch.empty(lse.shape, dtype=torch.float32, device=device)
    lse = lse.contiguous()
    if "received" in want:
        found["received"] = torch.zeros(batch, heads, keys, dtype=torch.float32, device=device)
    for name in want & {"sums", "maxima"}:
        dtype = torch.int32 if name == "maxima" else torch.float32 if as_floats else torch.int64
        found[name] = torch.zeros(batch, heads, rows.bins, columns.bins, dtype=dtype, device=device)
    # As many bits behind the point as 62 leave for the largest sum there can be.
    fixed = 2.0 ** (61 - max(queries, 2).bit_length())
    fixed_entropy, fixed_distance = 2.0**52, 2.0 ** (61 - max(keys, queries, 2).bit_length())
    if seen is None:
        seen = tiles_seen(intervals, rows, columns, tiling, keys - queries, "distance" in want, device)
    rules = Rules(q, k, scale, intervals, starts, table, bias, slopes, softcap)
    given = rules.given | {
        "REST": measured.rest, "LARGE": measured.large, "SEEN": seen,
        "WEIGHTS": None if weights is None else weights.float().contiguous(),
        "RECEIVED": found.get("received"), "PIXELS": found.get("sums", found.get("maxima")),
        "COLUMN_PIXELS": columns.pixels,
        "seen_batch": 0 if seen.shape[0] == 1 else seen.stride(0),
        "fixed": fixed, "fixed_entropy": fixed_entropy, "fixed_distance": fixed_distance, "pixel_unit": pixel_unit,
        "bins": bins, "bin_parts": bin_parts, "row_start": rows.start, "row_length": rows.length,
        "row_bins": rows.bins, "tiles_per_chunk": rows.chunk(tiling.rows)[1],
        "column_start": columns.start, "column_length": columns.length, "column_bins": columns.bins,
    }  # fmt: skip
    constants = rules.constants | {
        "BM": tiling.rows, "BN": tiling.columns, "TAKEN": TAKEN,
        "WANT_ENTROPY": "entropy" in want, "WANT_LARGEST": "max_score" in want, "WANT_DISTANCE": "distance" in want,
        "WANT_TOTAL": "total" in want, "WANT_RECEIVED": "received" in want, "WEIGHTED": weights is not None,
        "WANT_SUMS": "sums" in want, "WANT_MAXIMA": "maxima" in want, "AS_FLOATS": as_floats, "BINNED": bins > 1,
        "PER_ROW": len(of_rows),
    }  # fmt: skip
    options = {"num_warps": tiling.warps, "num_stages": tiling.stages, "maxnreg": tiling.registers}
    unit_of: dict[str, float] = {"entropy": 1 / fixed_entropy, "distance": 1 / fixed_distance, "total": 1 / fixed}
    units = {name: unit_of[name] for name in of_rows}
    flat, grid = one_axis(q), (batch * heads, programs)
    for band in bands(flat, rows, tiling):
        part = in_order(flat, rows, band)
        fetch = descriptor(part, rows, tiling.rows)
        largest = torch.empty(batch, heads, band.slots, dtype=torch.int32, device=device) if one_largest else None
        lse2, sums = prepare(lse, rows, band, len(of_rows), largest)
        every = given | {
            "Q": part, "Q_TMA": fetch, "q_map": part.stride(0) // 8, "q_row": part.stride(1) // 8, "L": lse2,
            "ORDER": None if rows.order is None else rows.order[band.first :], "ROW_SUMS": sums if of_rows else None,
            "LARGEST": largest if binned is None else binned, "slots": band.slots, "first_slot": band.first,
            "all_slots": rows.total,
        }  # fmt: skip
        constants["TMA"] = fetch is not None
        # A row's sums lie within four threads, and nowhere else, where the newer matrix unit has a warp for 16 rows.
        constants["DIRECT"] = fetch is not None and q.dtype != torch.float32 and tiling.rows == 16 * tiling.warps
        launch(program, grid, every, constants | {"RESTED": False}, **options)
        # Maps with measured rows have a launch of their own, which ends at once in all others. Asking waits, so last.
        if measured.some:
            launch(program, grid, every, constants | {"RESTED": True}, **options)
        finish(lse, measured.rest, rows, band, sums, units, largest, found)
        del every, part, fetch, largest, lse2, sums  # before the next band's are made
    if "sums" in found and not as_floats:
        # In one go; by a number of its own the dtype would be torch's default one, which may be a half.
        unit = torch.tensor(pixel_unit / fixed, dtype=torch.float32, device="cpu")
        found["sums"] = found["sums"] * unit
    if "maxima" in found:
        found["maxima"] = found["maxima"].view(torch.float32)
    return found


def bin_width(columns: Columns, tiling: Tiling, bins: int) -> int:
    """How many columns each of so many stretches has, but perhaps the last ones."""
    return -(-2 * triton.cdiv(columns.length, 2 * tiling.columns) // bins) * tiling.columns
