"""A reading of the cells of a call, as its kernels take it."""

from __future__ import annotations

from typing import Any

import torch
import triton
from torch import Tensor

from sightline.kernels.layout import Tiling
from sightline.kernels.reading_tile import NUMBER
from sightline.kernels.rules import Rules


class Reading:
    """What kernels are `given` for one reading of a call, and the `constants` that they are compiled for.

    q, k, v and g are aligned (`layout`), v and g of one dtype; `lse`, `rest` (base 2) and `along` (g.o) are contiguous
    `[batch, heads, queries]`, `sizes` `[batch, heads, keys]`. `factors` multiply the weights of each row: what a sink
    has left of them. `rested` says whether any row has a rest.
    """

    def __init__(
        self,
        of: str,
        rules: Rules,
        intervals: tuple[Tensor, Tensor] | None,
        lse: Tensor,
        rest: Tensor,
        rested: bool = True,
        *,
        v: Tensor | None = None,
        grad: Tensor | None = None,
        along: Tensor | None = None,
        sizes: Tensor | None = None,
        factors: Tensor | None = None,
    ) -> None:
        self.of, self.rules, self.intervals, self.factors, self.lse = of, rules, intervals, factors, lse
        self.signed = of in ("influence", "pull")
        q = rules.given["Q"]
        self.grad = grad if self.signed else None
        v = v if self.signed else None
        value_dim = 16 if v is None else v.shape[-1]
        self.exact = torch.float32 in (q.dtype, q.dtype if v is None else v.dtype)
        self.tiling = default_tiling(self.exact)
        self.given: dict[str, Any] = rules.given | {
            "LSE": lse, "REST": rest, "ALONG": along if of == "pull" else None, "FACTORS": factors,
            "SIZES": sizes if of == "norms" else None, "G": self.grad, "V": v,
            **_steps("g", self.grad), **_steps("v", v),
        }  # fmt: skip
        self.constants: dict[str, Any] = rules.constants | {
            "OF": NUMBER[of], "DV": value_dim, "VDIM": max(16, triton.next_power_of_2(value_dim)),
            "V_PRECISION": "tf32x3" if v is None or v.dtype == torch.float32 else "tf32",
            "FACTORED": factors is not None, "RESTED": rested,
        }  # fmt: skip
        # How many halves a number is cut into where it is added up by the matrix unit; the interpreter has no bfloat16.
        self.parts = 0 if not q.is_cuda else 3 if q.dtype == torch.float32 else 2


def default_tiling(exact: bool) -> Tiling:
    """Rows of a tile, half the columns of a program, warps and stages: two programs fit on a multiprocessor.

    Chosen by registers and instructions alone (benchmarks/NOTES.md): none was measured.
    """
    return Tiling(32, 16, 4, 1) if exact else Tiling(64, 64, 4, 2)


def _steps(name: str, x: Tensor | None) -> dict[str, int]:
    batch, head, row, _ = (0, 0, 0, 0) if x is None else x.stride()
    return {f"{name}_batch": batch // 8, f"{name}_head": head // 8, f"{name}_row": row // 8}
