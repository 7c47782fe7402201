"""What can be read of a cell beside its weight: what was carried from a key, what mattered, and what it would take.

    weights    a_ij                      how much query i looks at key j
    norms      a_ij * |W_h v_j|          how much it carries from there
    influence  a_ij * (g_i . v_j)        how much that raises y, where g_i = dy / d(head output at i)
    pull       a_ij * g_i . (v_j - o_i)  dy / d score_ij

A reading is the weight times something that has one number per key, or one small product: it is made tile by tile, as
the weights are, and never held.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from sightline.portable import one_member, some_heads

# What `of=` names, and which of these have a sign.
READINGS = ("weights", "norms", "influence", "pull")
SIGNED = frozenset(("influence", "pull"))


class Extra(NamedTuple):
    """What a sight knows beside its weights; what is not known is None."""

    v: Tensor | None = None  # [*batch, kv_heads, keys, value_dim]
    grad: Tensor | None = None  # g, [*batch, heads, queries, value_dim]
    along: Tensor | None = None  # g_i . o_i, [*batch, heads, queries]
    sizes: Tensor | None = None  # the size of what key j carries in head h, [*batch, heads, keys]
    norms_of: str | None = None  # what these are the sizes of, in words

    def tensors(self) -> dict[str, Tensor]:
        """Those that are there, by name."""
        return {name: x for name, x in self._asdict().items() if isinstance(x, Tensor)}

    def select(self, groups: int, member: tuple[int, ...] | None, heads: Sequence[int] | None) -> Extra:
        """The same of one member of the batch, and of some heads, each with a key head of its own."""
        key_heads = None if heads is None else [head // groups for head in heads]
        axes = {"v": (key_heads, 2), "grad": (heads, 2), "along": (heads, 1), "sizes": (heads, 1)}
        return self._replace(
            **{
                name: one_member(some_heads(x, axes[name][0], axes[name][1]), member, axes[name][1] + 1)
                for name, x in self.tensors().items()
            }
        )

    def to(self, device: torch.device) -> Extra:
        """The same on another device."""
        return self._replace(**{name: x.to(device) for name, x in self.tensors().items()})
