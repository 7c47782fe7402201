"""What the scores of a call are made of, as kernels take it: by the names that their arguments have everywhere."""

from __future__ import annotations

from typing import Any

import torch
import triton
from torch import Tensor

LOG2E = 1.4426950408889634


class Rules:
    """Queries, keys, mask and bias of a call: `given` to a kernel, and the `constants` that it is compiled for.

    q `[batch, heads, queries, dim]` and k are aligned: their steps in memory are counted in eights.
    """

    def __init__(
        self,
        q: Tensor,
        k: Tensor,
        scale: float,
        intervals: tuple[Tensor, Tensor] | None,
        starts: bool,
        table: Tensor | None,
        bias: Tensor | None,
        slopes: Tensor | None,
        softcap: float | None,
    ) -> None:
        dim = q.shape[-1]
        first, stop = intervals if intervals is not None else (None, None)
        self.given: dict[str, Any] = {
            "Q": q, "K": k, "FIRST": first, "STOP": stop, "SLOPES": slopes, "TABLE_PTR": table, "BIAS_PTR": bias,
            "interval_batch": 0 if first is None or first.shape[0] == 1 else first.stride(0),
            **_steps("q", q), **_steps("k", k), **_all_steps("table", table), **_all_steps("bias", bias),
            "heads": q.shape[1], "groups": q.shape[1] // k.shape[1], "queries": q.shape[2], "keys": k.shape[2],
            "scale2": scale * LOG2E, "cap2": 0.0 if softcap is None else softcap * LOG2E,
        }  # fmt: skip
        self.constants: dict[str, Any] = {
            "D": dim, "DIM": max(16, triton.next_power_of_2(dim)),
            "STARTS": starts and intervals is not None, "INTERVALS": intervals is not None,
            "TABLE": table is not None, "BIAS": bias is not None, "ALIBI": slopes is not None,
            "SOFTCAP": softcap is not None, "PRECISION": "tf32x3" if q.dtype == torch.float32 else "tf32",
        }  # fmt: skip


def _steps(name: str, x: Tensor) -> dict[str, int]:
    batch, head, row, _ = x.stride()
    return {f"{name}_batch": batch // 8, f"{name}_head": head // 8, f"{name}_row": row // 8}


def _all_steps(name: str, x: Tensor | None) -> dict[str, int]:
    steps = (0, 0, 0, 0) if x is None else x.stride()
    return dict(zip((f"{name}_batch", f"{name}_head", f"{name}_row", f"{name}_column"), steps, strict=True))
