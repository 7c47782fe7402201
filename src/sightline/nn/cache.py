"""Keys and values of the past, kept so that the next token costs one token.

A cache of n tokens holds 2 * kv_heads * head_dim numbers per token and sequence: keys and values.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from sightline.errors import InputError, InputTypeError
from sightline.nn.memory import Source
from sightline.positions.base import whole

if TYPE_CHECKING:
    from jaxtyping import Float, Int

# The attributes of a cache that calls change.
STATE = ("_keys", "_values", "_length", "_source")


class KVCache:
    """The keys and values of one attention layer, growing at the end.

    Memory is taken at the first `append`, and doubled (at least) when it is full, so that n steps copy at most
    2 n tokens and at most half of the memory is empty; with `capacity` it is taken once, and more is refused.

    What `append` returns are views: a later `append` leaves them as they are, `reset` and then `append` writes over
    them. Meant for `torch.no_grad()` or `torch.inference_mode()`. Keys and values that carry a gradient are
    concatenated instead, which copies all of them at every step but keeps the gradient of every step right. Modes may
    follow each other in any order; gradients end at tokens that were put in without one.

    A module's call that fails, for whatever reason, leaves its cache as it was.

    The cache of a cross-attention also holds the memory that its keys and values were made of, to notice another one,
    of which they are made anew: without a copy, or with one copy (of `memory`, for all layers of a decoder) if it was
    made in inference mode, where torch does not count changes. Not noticed are changes of weights, and changes of a
    memory that torch does not count: through `.data`, or through numpy.

    >>> from sightline import nn as slnn
    >>> cache = slnn.KVCache()
    >>> keys, values = cache.append(torch.randn(2, 4, 3, 16), torch.randn(2, 4, 3, 16))  # a prompt of three tokens
    >>> keys, values = cache.append(torch.randn(2, 4, 1, 16), torch.randn(2, 4, 1, 16))  # one more
    >>> keys.shape, cache.length, cache.capacity
    (torch.Size([2, 4, 4, 16]), 4, 6)
    >>> cache.bytes == 2 * 4 * 16 * 4 * 2 * cache.capacity  # k and v, heads, dim, float32, batch
    True
    """

    def __init__(self, capacity: int | None = None) -> None:
        self._fixed = None if capacity is None else whole("capacity", capacity)
        self._keys: Tensor | None = None  # [*batch, kv_heads, capacity, head_dim]
        self._values: Tensor | None = None
        self._length = 0
        self._source: Source | None = None  # of a memory's keys and values

    @property
    def length(self) -> int:
        """How many tokens are held."""
        return self._length

    @property
    def capacity(self) -> int:
        """For how many tokens memory is taken."""
        return 0 if self._keys is None else self._keys.shape[-2]

    @property
    def bytes(self) -> int:
        """The memory that is taken, full or not."""
        return sum(t.numel() * t.element_size() for t in (self._keys, self._values) if t is not None)

    @property
    def keys(self) -> Float[Tensor, "*batch kv_heads length head_dim"]:
        """All keys so far."""
        return self._held("_keys")

    @property
    def values(self) -> Float[Tensor, "*batch kv_heads length value_dim"]:
        """All values so far."""
        return self._held("_values")

    def append(
        self, k: Float[Tensor, "*batch kv_heads time head_dim"], v: Float[Tensor, "*batch kv_heads time value_dim"]
    ) -> tuple[Tensor, Tensor]:
        """Add the newest keys and values; returns all of them so far."""
        self._check_new(k, v)
        keys, values = self._keys, self._values
        for new, held in ((k, keys), (v, values)):
            if held is not None and not _alike(new, held):
                if self._length:
                    raise _unlike(new, held)
                keys = values = None  # after a reset other sequences may come
                break
        length = self._length + k.shape[-2]
        if self._fixed is not None and length > self._fixed:
            raise InputError(
                "the cache is full",
                expected=f"at most {self._fixed} tokens, its capacity",
                got=f"{self._length} held and {k.shape[-2]} more",
                hint="a larger capacity, or KVCache() which grows",
            )
        keys, values = self._extend(keys, k, length), self._extend(values, v, length)
        self._keys, self._values, self._length, self._source = keys, values, length, None
        return keys[..., :length, :], values[..., :length, :]

    def _fill(self, k: Tensor, v: Tensor, source: Source) -> tuple[Tensor, Tensor]:
        """Hold the keys and values of a memory, in the place of those of another one; returns them."""
        if self._length:
            # In other memory: what was there may be wanted by a backward pass, or again if this call fails.
            self._keys, self._values, self._length = None, None, 0
        keys, values = self.append(k, v)
        self._source = source
        return keys, values

    def reset(self) -> None:
        """Forget all tokens. The memory stays, for the next sequences if they have the same sizes."""
        self._length, self._source = 0, None

    def reorder(self, indices: Int[Tensor, " batch"] | Sequence[int]) -> None:
        """Choose sequences anew along the first batch axis: the beams that survive, one more than once if need be.

        >>> cache = KVCache()
        >>> _ = cache.append(torch.zeros(2, 1, 3, 4), torch.zeros(2, 1, 3, 4))
        >>> cache.reorder([1, 1, 0])
        >>> cache.keys.shape
        torch.Size([3, 1, 3, 4])
        """
        self._reorder(indices, {})

    def _reorder(self, indices: Int[Tensor, " batch"] | Sequence[int], made: dict[Any, Source | None]) -> None:
        """The same; sources that caches share are chosen once, and found in `made` afterwards."""
        if self._keys is None or self._values is None:
            return
        if self._keys.dim() < 4:
            raise InputError(
                "a cache without a batch has no order",
                expected="keys of [batch, kv_heads, time, head_dim]",
                got=f"keys of {tuple(self._keys.shape)}",
                hint="decode x[None], a batch of one",
            )
        chosen = torch.as_tensor(indices, device=self._keys.device)
        if chosen.dtype.is_floating_point or chosen.dtype == torch.bool or chosen.dim() != 1:
            raise InputTypeError(
                "indices must be a list of whole numbers",
                expected="[batch] integers",
                got=f"{chosen.dtype} {tuple(chosen.shape)}",
                hint="indices.long()",
            )
        keys, values, source = self._keys.index_select(0, chosen), self._values.index_select(0, chosen), self._source
        if source is not None:
            which = *map(id, source.tensors), source.versions
            if which not in made:
                made[which] = source.chosen(chosen)
            source = made[which]
        self._keys, self._values, self._source = keys, values, source

    def _held(self, name: str) -> Tensor:
        held: Tensor | None = getattr(self, name)
        if held is None:
            raise InputError(
                "the cache is empty", expected="something appended", got="nothing", hint="cache.append(k, v)"
            )
        if torch.is_grad_enabled() and held.is_inference():
            # Autograd cannot save what was made in inference mode.
            held = held.clone()
            setattr(self, name, held)
        return held[..., : self._length, :]

    def _extend(self, held: Tensor | None, new: Tensor, length: int) -> Tensor:
        """Memory that holds `new` behind what is held: the same as before if there is room and no gradient."""
        if torch.is_grad_enabled() and (new.requires_grad or (held is not None and held.requires_grad)):
            return new if held is None else torch.cat((held[..., : self._length, :], new), -2)
        room = 0 if held is None else held.shape[-2]
        # Memory that carries a gradient belongs to a graph, and inference memory cannot be written elsewhere.
        locked = held is not None and held.is_inference() and not torch.is_inference_mode_enabled()
        if held is None or length > room or held.requires_grad or locked:
            room = self._fixed or (max(length, 2 * room) if length > room else room)
            memory = new.new_empty(*new.shape[:-2], room, new.shape[-1])
            if held is not None:
                memory[..., : self._length, :] = held[..., : self._length, :].detach()
            held = memory
        held[..., self._length : length, :] = new.detach()
        return held

    def _check_new(self, k: Tensor, v: Tensor) -> None:
        for name, new in (("k", k), ("v", v)):
            if not isinstance(new, Tensor) or new.dim() < 3:
                raise InputTypeError(
                    f"{name} cannot be cached",
                    expected="a tensor [*batch, kv_heads, time, head_dim]",
                    got=tuple(new.shape) if isinstance(new, Tensor) else type(new).__name__,
                    hint=f"{name}[None], if the heads are missing",
                )
        if k.shape[:-1] != v.shape[:-1]:
            raise InputError(
                "k and v must have the same length, heads and batch",
                expected="one value for each key",
                got=f"k {tuple(k.shape)}, v {tuple(v.shape)}",
                hint="append both of the same tokens",
            )

    def __repr__(self) -> str:
        return f"KVCache(length={self.length}, capacity={self.capacity}, bytes={self.bytes})"


def _alike(new: Tensor, held: Tensor) -> bool:
    """Whether they differ in nothing but the length."""
    return (
        new.shape[:-2] == held.shape[:-2]
        and new.shape[-1] == held.shape[-1]
        and new.dtype == held.dtype
        and new.device == held.device
    )


def _unlike(new: Tensor, held: Tensor) -> InputError:
    *front, _, dim = held.shape
    return InputError(
        "these keys and values do not fit what the cache holds",
        expected=f"[{', '.join(map(str, front))}, time, {dim}], {held.dtype} on {held.device}",
        got=f"{list(new.shape)}, {new.dtype} on {new.device}",
        hint="a new cache, or cache.reset(), for other sequences; one precision for all steps",
    )
