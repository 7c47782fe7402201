"""What can be read of a cell beside its weight: what was carried from a key, what mattered, and what it would take.

    weights    a_ij                      how much query i looks at key j
    norms      a_ij * |W_h v_j|          how much it carries from there
    influence  a_ij * (g_i . v_j)        how much that raises y, where g_i = dy / d(head output at i)
    pull       a_ij * g_i . (v_j - o_i)  dy / d score_ij

A reading is the weight times one number of its key, or times one small product: it is made tile by tile, as the weights
are, and never held.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor

from sightline.backends.tiles import fold, unfold
from sightline.errors import InputError, InputTypeError
from sightline.portable import one_member, some_heads

if TYPE_CHECKING:
    from jaxtyping import Float

    from sightline.backends.call import Call
    from sightline.lens.tiles.accumulators import Seen

# What `of=` names, and which of these have a sign.
READINGS = ("weights", "norms", "influence", "pull")
SIGNED = frozenset(("influence", "pull"))
# What `norms` are of where only the call itself is known.
VALUES = "|v|: the values as they enter attention, without an output projection"

_HOW = {
    "norms": "sl.look(q, k, v) or sl.observe(q, k, v)",
    "influence": "sl.look(q, k, v, grad=g), or sl.watch(model, influence=True, keep_qk=True) and seen.backward(y)",
}
_CALLED = "a model that calls F.scaled_dot_product_attention there: of that, output and values are known"


class Extra(NamedTuple):
    """What a sight knows beside its weights; what is not known is None."""

    v: Tensor | None = None  # [*batch, kv_heads, keys, value_dim]
    grad: Tensor | None = None  # g, [*batch, heads, queries, value_dim]
    along: Tensor | None = None  # g_i . o_i, [*batch, heads, queries]
    sizes: Tensor | None = None  # the size of what key j carries in head h, [*batch, heads, keys]
    norms_of: str | None = None  # what these are the sizes of, in words
    lacks: str | None = None  # why nothing of this is known of a watched layer, in words

    def tensors(self) -> dict[str, Tensor]:
        """Those that are there, by name."""
        return {name: x for name, x in self._asdict().items() if isinstance(x, Tensor)}

    def select(self, groups: int, member: tuple[int, ...] | None, heads: Sequence[int] | None) -> Extra:
        """The same of one member of the batch, and of some heads, each with a key head of its own."""
        key_heads = None if heads is None else [head // groups for head in heads]
        axes: dict[str, Any] = {"v": (key_heads, 2), "grad": (heads, 2), "along": (heads, 1), "sizes": (heads, 1)}
        parts: dict[str, Any] = {
            name: one_member(some_heads(x, *axes[name]), member, axes[name][1] + 1)
            for name, x in self.tensors().items()
        }
        return self._replace(**parts)

    def to(self, device: torch.device) -> Extra:
        """The same on another device."""
        moved: dict[str, Any] = {name: x.to(device) for name, x in self.tensors().items()}
        return self._replace(**moved)


def check_of(of: object) -> str:
    """The name of a reading, or an error."""
    if not isinstance(of, str) or of not in READINGS:
        raise InputError(
            "unknown reading", expected=f"one of {', '.join(READINGS)}", got=repr(of), hint='of="influence"'
        )
    return of


def check_known(of: str, call: Call, extra: Extra) -> None:
    """Raise if a reading cannot be made, and say how to get it."""
    if of == "pull" and not call.normalizer.is_softmax:
        raise InputError(
            "pull is the derivative by a score of a softmax",
            expected='normalizer="softmax"',
            got=repr(call.normalizer.name),
            hint='of="influence", which any normaliser has',
        )
    if of == "norms" and extra.sizes is None and extra.v is None:
        raise _unknown(of, "the values v, or the sizes of what keys carry", "neither", extra.lacks)
    if of in SIGNED and (extra.v is None or extra.grad is None):
        names = [name for name in ("v", "grad") if getattr(extra, name) is None]
        raise _unknown(
            of, "v and grad, the gradient of y by the heads' output", f"no {' and no '.join(names)}", extra.lacks
        )


def _unknown(of: str, expected: str, got: str, lacks: str | None) -> InputError:
    return InputError(
        f"{of} of cells is not known here",
        expected=f"a sight with {expected}",
        got=got if lacks is None else lacks,
        hint=_HOW["norms" if of == "norms" else "influence"] if lacks is None else _CALLED,
    )


def no_influence(extra: Extra) -> InputError:
    """What is said where neither g.o nor what it is made of is known."""
    return _unknown("influence", "v and grad, the gradient of y by the heads' output", "none", extra.lacks)


def check_grad(grad: object, call: Call, v: Tensor | None, flat: bool = False) -> Tensor | None:
    """The gradient of a call's output, with the axes of the call; raises if it does not fit."""
    if grad is None:
        return None
    if v is None:
        raise InputError(
            "grad needs the values too", expected="v beside q and k", got="no v", hint="sl.look(q, k, v, grad=g)"
        )
    if call.dropout:
        raise InputError(
            "under dropout there is no influence of the weights that a sight shows",
            expected="dropout=0 with grad",
            got=f"dropout={call.dropout}",
            hint="dropout=0.0, or model.eval()",
        )
    if not isinstance(grad, Tensor) or not grad.is_floating_point():
        raise InputTypeError(
            "grad must be a floating tensor",
            expected="the gradient of y by the output, [*batch, heads, queries, value_dim]",
            got=getattr(grad, "dtype", type(grad).__name__),
            hint="torch.autograd.grad(y, out)[0]",
        )
    s = call.sizes
    wanted = (s.queries, s.value_dim) if flat else (*s.batch, s.heads, s.queries, s.value_dim)
    if grad.shape != wanted:
        raise InputError(
            "grad does not fit the call",
            expected=f"{wanted}, as the output",
            got=tuple(grad.shape),
            hint="torch.autograd.grad(y, out)[0]",
        )
    if grad.device != call.device:
        raise InputError("grad is on another device", expected=call.device, got=grad.device, hint="grad.to(q.device)")
    return grad.detach()[None] if flat else grad.detach()


# Numbers of a strip of queries whose output is widened.
_WIDE = 1 << 22


def extra_of(call: Call, v: Tensor | None, grad: Tensor | None, out: Tensor | None = None) -> Extra | None:
    """What values and gradient make known; `out` is the output, if that was computed.

    Under inference mode changes are not counted: copies are kept there, and of values alone no more than their sizes.
    """
    if v is None:
        return None
    v = v.detach()
    if grad is None:
        if not v.is_inference():
            return Extra(v=v, norms_of=VALUES)
        return Extra(sizes=sizes_of_values(call, v), norms_of=VALUES)
    v, grad = (x.clone() if x.is_inference() else x for x in (v, grad))
    return Extra(v, grad, None if out is None else dot(grad, out.detach()), None, VALUES)


@torch.no_grad()
def sizes_of_values(call: Call, v: Tensor) -> Float[Tensor, "*batch heads keys"]:
    """|v_j| for every head."""
    found = torch.linalg.vector_norm(v, dim=-1, dtype=_dtype(v))
    return found if call.sizes.groups == 1 else found.repeat_interleave(call.sizes.groups, -2)


@torch.no_grad()
def dot(grad: Tensor, out: Tensor) -> Float[Tensor, "*batch heads queries"]:
    """g_i . o_i"""
    dtype = _dtype(out)
    if grad.dtype == out.dtype == dtype:
        return torch.einsum("...d,...d->...", grad, out)
    # A strip of queries at a time: wide copies of both would be the largest there is.
    strip = max(1, _WIDE // max(1, out[..., :1, :].numel()))
    parts = zip(grad.split(strip, -2), out.split(strip, -2), strict=True)
    return torch.cat([torch.einsum("...d,...d->...", g.to(dtype), o.to(dtype)) for g, o in parts], -1)


def times_sizes(received: Tensor, extra: Extra) -> Float[Tensor, "*batch heads keys"]:
    """What keys received of norms, from what they received; 0 where that is nothing, whatever v holds there."""
    assert extra.sizes is not None
    return torch.where(received == 0, 0.0, received * extra.sizes.to(received.dtype))


def _dtype(x: Tensor) -> torch.dtype:
    return torch.float64 if x.dtype == torch.float64 else torch.float32


class Reader:
    """Makes readings of tiles of one call, a band of rows after the other.

    A tile's readings are written over by those of the next one. `together`: of one tile both influence and pull are
    made, from one product. `fine`: that is made in float64, and then rounded.
    """

    def __init__(self, call: Call, extra: Extra, together: bool = True, fine: bool = False) -> None:
        self.call, self.extra, self.together = call, extra, together
        self._dtype = torch.float64 if fine else call.compute_dtype
        self._g: Tensor | None = None
        self._product: tuple[Seen | None, Tensor | None] = (None, None)  # of the last tile
        self._memory: Tensor | None = None

    def band(self, rows: slice) -> None:
        """A new band of rows begins."""
        grad = self.extra.grad
        self._g = None if grad is None else fold(grad[..., rows, :], self.call.sizes).to(self._dtype)

    def tile(self, of: str, seen: Seen) -> Float[Tensor, "*batch heads rows columns"]:
        """A reading of the cells of one tile alone."""
        self.band(seen.rows)
        return self.cells(of, seen)

    def cells(self, of: str, seen: Seen) -> Float[Tensor, "*batch heads rows columns"]:
        """A reading of the cells of one tile; 0 where hidden, whatever v and g hold there."""
        extra, weights = self.extra, seen.weights
        if of == "weights":
            return weights
        if of == "norms":
            assert extra.sizes is not None
            found = weights * extra.sizes[..., None, seen.columns].to(weights.dtype)
        else:
            found = self._times_values(seen)
            if of == "pull":
                assert extra.along is not None
                along = extra.along[..., seen.rows, None].to(found.dtype)
                found = found - along if self.together else found.sub_(along)
                found.mul_(weights)
            else:
                found = found * weights if self.together else found.mul_(weights)
        return found if seen.visible is None else found.masked_fill_(~seen.visible, 0.0)

    def _times_values(self, seen: Seen) -> Tensor:
        """g . v of the cells of a tile."""
        last, found = self._product
        if not self.together or last is not seen or found is None:
            assert self.extra.v is not None
            assert self._g is not None
            g, v = self._g, self.extra.v[..., seen.columns, :].to(self._g.dtype)
            if g.dim() == 3 and g.is_cpu:  # of one map after the other: memory that is in the cache already
                shape = (g.shape[0], g.shape[1], v.shape[-2])
                self._memory, out = memory_for(self._memory, shape, g)
                found = unfold(torch.bmm(g, v.mT, out=out), self.call.sizes)
            else:
                found = unfold(g @ v.mT, self.call.sizes)
            found = found.to(self.call.compute_dtype)
            self._product = seen, found
        return found


def memory_for(memory: Tensor | None, shape: tuple[int, ...], like: Tensor) -> tuple[Tensor, Tensor]:
    """Memory that is used again, at least as large as something, and a part of it with that shape."""
    count = math.prod(shape)
    if memory is None or memory.numel() < count:
        memory = torch.empty(count, dtype=like.dtype, device=like.device)
    return memory, memory[:count].view(shape)
