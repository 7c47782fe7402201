"""A reading of the cells of a call, as its kernels take it."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
import triton
from torch import Tensor

from sightline.kernels.reading_tile import NUMBER
from sightline.kernels.rules import Rules


class Tile(NamedTuple):
    """Rows and columns of a tile, and how the compiler lays out the work."""

    rows: int
    columns: int
    warps: int
    stages: int


class Reading:
    """What kernels are `given` for one reading of a call, and the `constants` that they are compiled for.

    q, k, v and g are aligned (`layout`), v and g of one dtype; `lse`, `rest` (base 2) and `along` (g.o) are contiguous
    `[batch, heads, queries]`, `sizes` `[batch, heads, keys]`. `factors` multiply the weights of each row: what a sink
    has left of them.
    """

    def __init__(
        self,
        of: str,
        rules: Rules,
        intervals: tuple[Tensor, Tensor] | None,
        lse: Tensor,
        rest: Tensor,
        *,
        v: Tensor | None = None,
        grad: Tensor | None = None,
        along: Tensor | None = None,
        sizes: Tensor | None = None,
        factors: Tensor | None = None,
    ) -> None:
        self.of, self.rules, self.intervals, self.factors = of, rules, intervals, factors
        self.signed = of in ("influence", "pull")
        q = rules.given["Q"]
        value_dim = 16 if v is None or not self.signed else v.shape[-1]
        self.tile = default_tile(max(q.shape[-1], value_dim), q.dtype, torch.float32 if v is None else v.dtype)
        self.given: dict[str, Any] = rules.given | {
            "LSE": lse, "REST": rest, "ALONG": along if of == "pull" else None, "FACTORS": factors,
            "SIZES": sizes if of == "norms" else None,
            "G": grad if self.signed else None, "V": v if self.signed else None,
            **_steps("g", grad if self.signed else None), **_steps("v", v if self.signed else None),
        }  # fmt: skip
        exact = v is None or v.dtype == torch.float32
        self.constants: dict[str, Any] = rules.constants | {
            "OF": NUMBER[of], "DV": value_dim, "VDIM": max(16, triton.next_power_of_2(value_dim)),
            "V_PRECISION": "tf32x3" if exact else "tf32", "BM": self.tile.rows, "BN": self.tile.columns,
            "FACTORED": factors is not None,
        }  # fmt: skip
        # How many halves a number is cut into where it is added up by the matrix unit; the interpreter has no bfloat16.
        self.parts = 0 if not q.is_cuda else 3 if q.dtype == torch.float32 else 2


def default_tile(dim: int, *dtypes: torch.dtype) -> Tile:
    """A tile whose q, k, g and v fit into shared memory, twice where they are small; none was measured."""
    if torch.float32 in dtypes:
        return Tile(32, 32, 4, 1)
    return Tile(64, 64, 4, 2 if dim <= 128 else 1)


def _steps(name: str, x: Tensor | None) -> dict[str, int]:
    batch, head, row, _ = (0, 0, 0, 0) if x is None else x.stride()
    return {f"{name}_batch": batch // 8, f"{name}_head": head // 8, f"{name}_row": row // 8}
