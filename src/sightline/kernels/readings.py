"""A reading of the cells of a call, as its kernels take it."""

from __future__ import annotations

import functools
import math
from typing import Any

import torch
import triton
from torch import Tensor

from sightline.kernels.layout import Tiling
from sightline.kernels.reading_tile import NUMBER
from sightline.kernels.rules import Rules


class NotTaken(Exception):
    """A number of a call is not finite, or so large that sums are not."""


class Numbers:
    """What has to be known of the numbers of a call before its first pass: read when it is first asked for, once.

    A GPU is not waited for until then, so all else that the pass takes can be made while it works. `given` are v, grad,
    along and sizes, as `Reading` has them; `rested`, one number, says whether any row has a rest.
    """

    def __init__(self, given: dict[str, Tensor], lse: Tensor, rested: Tensor) -> None:
        # Whole numbers know no NaN, and a maximum passes it by.
        ends = [torch.maximum(most, -least).float() for least, most in (torch.aminmax(x) for x in given.values())]
        level = torch.where(lse == -torch.inf, 0.0, lse.float()).abs().max()
        self._found = torch.stack([*ends, level, rested.float()])
        self._there = torch.cuda.current_stream(lse.device).record_event() if lse.is_cuda else None
        self._names = list(given)
        self._value_dim = given["v"].shape[-1] if "v" in given else 0

    @property
    def rested(self) -> bool:
        """Whether any row has a rest."""
        return self._read[0]

    def bound(self, of: str) -> float:
        """What the cells of a row sum up to at most by a reading, all taken without their signs."""
        return self._read[1][of]

    @functools.cached_property
    def _read(self) -> tuple[bool, dict[str, float]]:
        *most, some = self._waited()
        if not all(x < math.inf for x in most):  # NaN is below nothing
            raise NotTaken
        largest = dict(zip(self._names, most[:-1], strict=True))
        bounds = {"weights": 1.0, "norms": largest.get("sizes", 0.0)}
        if "v" in largest:
            bounds["influence"] = largest["v"] * largest["grad"] * self._value_dim
            bounds["pull"] = bounds["influence"] + largest.get("along", 0.0)
        if not all(x < 1e38 for x in bounds.values()):
            raise NotTaken
        return some > 0, bounds

    def _waited(self) -> list[float]:
        if self._there is None:
            return self._found.tolist()
        # On a stream of its own, as `Measured.some`: so this does not wait for what was launched since.
        stream = torch.cuda.Stream(self._found.device)
        stream.wait_event(self._there)
        with torch.cuda.stream(stream):
            return self._found.tolist()


class Reading:
    """What kernels are `given` for one reading of a call, and the `constants` that they are compiled for.

    q, k, v and g are aligned (`layout`), v and g of one dtype; `lse`, `rest` (base 2) and `along` (g.o) are contiguous
    `[batch, heads, queries]`, `sizes` `[batch, heads, keys]`. `factors` multiply the weights of each row: what a sink
    has left of them. `constants` and `bound` depend on the call's `numbers`, and may be `NotTaken`.
    """

    def __init__(
        self,
        of: str,
        rules: Rules,
        intervals: tuple[Tensor, Tensor] | None,
        lse: Tensor,
        rest: Tensor,
        numbers: Numbers,
        *,
        v: Tensor | None = None,
        grad: Tensor | None = None,
        along: Tensor | None = None,
        sizes: Tensor | None = None,
        factors: Tensor | None = None,
    ) -> None:
        self.of, self.rules, self.intervals, self.factors, self.lse = of, rules, intervals, factors, lse
        self.signed = of in ("influence", "pull")
        self._numbers = numbers
        self.q = q = rules.given["Q"]
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
        self._constants: dict[str, Any] = rules.constants | {
            "OF": NUMBER[of], "DV": value_dim, "VDIM": max(16, triton.next_power_of_2(value_dim)),
            "V_PRECISION": "tf32x3" if v is None or v.dtype == torch.float32 else "tf32",
            "FACTORED": factors is not None,
        }  # fmt: skip
        # How many halves a number is cut into where it is added up by the matrix unit; the interpreter has no bfloat16.
        self.parts = 0 if not q.is_cuda else 3 if q.dtype == torch.float32 else 2

    @property
    def constants(self) -> dict[str, Any]:
        """What kernels are compiled for."""
        return self._constants | {"RESTED": self._numbers.rested}

    @property
    def bound(self) -> float:
        """What the cells of a row sum up to at most, all taken without their signs."""
        return self._numbers.bound(self.of)


def default_tiling(exact: bool) -> Tiling:
    """Rows of a tile, half the columns of a program, warps and stages: two programs fit on a multiprocessor.

    Wider ones, more warps and more stages were slower (benchmarks/NOTES.md).
    """
    return Tiling(32, 16, 4, 1) if exact else Tiling(64, 64, 4, 2)


def _steps(name: str, x: Tensor | None) -> dict[str, int]:
    batch, head, row, _ = (0, 0, 0, 0) if x is None else x.stride()
    return {f"{name}_batch": batch // 8, f"{name}_head": head // 8, f"{name}_row": row // 8}
