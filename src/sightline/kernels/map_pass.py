"""The second pass over the map on a GPU: from q, k and the lse, every statistic in one go, by `map_program`.

Limits: softmax; float32, float16, bfloat16; a head of up to 256; a mask that leaves each row one stretch of keys,
and beside it one table of booleans. Tested in Triton's interpreter (3.7); an earlier state of it ran on an H200 with
Triton 3.6. On each machine it is tried before it is used (`lens/gpu/trial.py`).
"""

from __future__ import annotations

import torch
import triton
from torch import Tensor

from sightline.kernels.launch import launch, on_its_device
from sightline.kernels.layout import TAKEN, Columns, Rows, Tiling, at_once, descriptor, in_slots, one_axis, tiles_seen
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

    With more than one of `bins`, max_score gives `largest` `[batch, heads, bins, slots]` instead: the largest log2 of a
    weight, negated, in each of so many stretches of columns, in the order of `rows`. Of stretches that a row does not
    see it may hold anything. How wide they are says `bin_width`.
    """
    batch, heads, queries, _ = q.shape
    keys, device = k.shape[2], q.device
    programs = triton.cdiv(columns.length, 2 * tiling.columns)
    bin_parts = -(-2 * programs // bins)
    largest = None
    if "max_score" in want:
        largest = torch.empty(batch, heads, bins, rows.total, dtype=torch.int32, device=device)
        if bins > 1 and bin_parts > 1:
            largest.fill_(NOTHING)
    of_rows = None if bins > 1 else largest
    added: list[str] = [name for name in ("entropy", "distance", "total") if name in want]
    lse = lse.contiguous()
    lse2, sums_of_rows = prepare(lse, rows, len(added), of_rows)
    found: dict[str, Tensor] = {}
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
        "L": lse2, "REST": measured.rest, "LARGE": measured.large, "SEEN": seen,
        "WEIGHTS": None if weights is None else weights.float().contiguous(),
        "ROW_SUMS": sums_of_rows if added else None, "LARGEST": largest, "RECEIVED": found.get("received"),
        "PIXELS": found.get("sums", found.get("maxima")), "ORDER": rows.order, "COLUMN_PIXELS": columns.pixels,
        "seen_batch": 0 if seen.shape[0] == 1 else seen.stride(0),
        "fixed": fixed, "fixed_entropy": fixed_entropy, "fixed_distance": fixed_distance, "pixel_unit": pixel_unit,
        "bins": bins, "bin_parts": bin_parts, "slots": rows.total, "row_start": rows.start, "row_length": rows.length,
        "row_slots": rows.slots, "row_bins": rows.bins, "tiles_per_chunk": rows.chunk(tiling.rows)[1],
        "column_start": columns.start, "column_length": columns.length, "column_bins": columns.bins,
    }  # fmt: skip
    constants = rules.constants | {
        "BM": tiling.rows, "BN": tiling.columns, "TAKEN": TAKEN,
        "WANT_ENTROPY": "entropy" in want, "WANT_LARGEST": "max_score" in want, "WANT_DISTANCE": "distance" in want,
        "WANT_TOTAL": "total" in want, "WANT_RECEIVED": "received" in want, "WEIGHTED": weights is not None,
        "WANT_SUMS": "sums" in want, "WANT_MAXIMA": "maxima" in want, "AS_FLOATS": as_floats, "BINNED": bins > 1,
        "PER_ROW": len(added),
    }  # fmt: skip
    options = {"num_warps": tiling.warps, "num_stages": tiling.stages, "maxnreg": tiling.registers}
    maps, flat = batch * heads, one_axis(q)
    for first_map in range(0, maps, at_once(flat, rows)):
        part = in_slots(flat, rows, first_map)
        fetch = descriptor(part, rows, tiling.rows)
        given |= {"Q": part, "Q_TMA": fetch, "first_map": first_map}
        given |= {"q_map": part.stride(0) // 8, "q_row": part.stride(1) // 8}
        constants["TMA"] = fetch is not None
        grid = (part.shape[0], programs)
        launch(program, grid, given, constants | {"RESTED": False}, **options)
        # Maps with measured rows have a launch of their own, which ends at once in all others. Asking waits, so last.
        if measured.some:
            launch(program, grid, given, constants | {"RESTED": True}, **options)
    units = {"entropy": 1 / fixed_entropy, "distance": 1 / fixed_distance, "total": 1 / fixed}
    found |= finish(lse, measured.rest, rows, sums_of_rows, added, units, of_rows)
    del given, sums_of_rows  # before more is made
    if "sums" in found and not as_floats:
        # In one go; by a number of its own the dtype would be torch's default one, which may be a half.
        unit = torch.tensor(pixel_unit / fixed, dtype=torch.float32, device="cpu")
        found["sums"] = found["sums"] * unit
    if "maxima" in found:
        found["maxima"] = found["maxima"].view(torch.float32)
    if bins > 1 and largest is not None:
        found["largest"] = largest
    return found


def bin_width(columns: Columns, tiling: Tiling, bins: int) -> int:
    """How many columns each of so many stretches has, but perhaps the last ones."""
    return -(-2 * triton.cdiv(columns.length, 2 * tiling.columns) // bins) * tiling.columns
