"""Keys and values of the past, kept so that the next token costs one token.

A cache of n tokens holds 2 * kv_heads * head_dim numbers per token and sequence: keys and values.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

from sightline.errors import InputError, InputTypeError, explain
from sightline.positions.base import whole

if TYPE_CHECKING:
    from jaxtyping import Float, Int


class KVCache:
    """The keys and values of one attention layer, growing at the end.

    Memory is taken at the first `append`, and doubled (at least) when it is full, so that n steps copy at most
    2 n tokens and at most half of the memory is empty; with `capacity` it is taken once, and more is refused.

    What `append` returns are views: a later `append` leaves them as they are, `reset` and then `append` writes over
    them. Meant for `torch.no_grad()` or `torch.inference_mode()`. Keys and values that carry a gradient are
    concatenated instead, which copies all of them at every step but keeps the gradient of every step right.

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
        return self._held(self._keys)

    @property
    def values(self) -> Float[Tensor, "*batch kv_heads length value_dim"]:
        """All values so far."""
        return self._held(self._values)

    def append(
        self, k: Float[Tensor, "*batch kv_heads time head_dim"], v: Float[Tensor, "*batch kv_heads time value_dim"]
    ) -> tuple[Tensor, Tensor]:
        """Add the newest keys and values; returns all of them so far."""
        self._check_new(k, v)
        for new, held in ((k, self._keys), (v, self._values)):
            if held is not None and not _alike(new, held):
                if self._length:
                    raise _unlike(new, held)
                self._keys = self._values = None  # after a reset other sequences may come
                break
        length = self._length + k.shape[-2]
        if self._fixed is not None and length > self._fixed:
            raise InputError(
                explain(
                    "the cache is full",
                    expected=f"at most {self._fixed} tokens, its capacity",
                    got=f"{self._length} held and {k.shape[-2]} more",
                    hint="a larger capacity, or KVCache() which grows",
                )
            )
        self._keys, self._values = self._extend(self._keys, k, length), self._extend(self._values, v, length)
        self._length = length
        return self.keys, self.values

    def reset(self) -> None:
        """Forget all tokens. The memory stays, for the next sequences if they have the same sizes."""
        self._length = 0

    def reorder(self, indices: Int[Tensor, " batch"] | Sequence[int]) -> None:
        """Choose sequences anew along the first batch axis: the beams that survive, one more than once if need be.

        >>> cache = KVCache()
        >>> _ = cache.append(torch.zeros(2, 1, 3, 4), torch.zeros(2, 1, 3, 4))
        >>> cache.reorder([1, 1, 0])
        >>> cache.keys.shape
        torch.Size([3, 1, 3, 4])
        """
        if self._keys is None or self._values is None:
            return
        if self._keys.dim() < 4:
            raise InputError(
                explain(
                    "a cache without a batch has no order",
                    expected="keys of [batch, kv_heads, time, head_dim]",
                    got=f"keys of {tuple(self._keys.shape)}",
                    hint="decode x[None], a batch of one",
                )
            )
        chosen = torch.as_tensor(indices, device=self._keys.device)
        if chosen.dtype.is_floating_point or chosen.dtype == torch.bool or chosen.dim() != 1:
            raise InputTypeError(
                explain(
                    "indices must be a list of whole numbers",
                    expected="[batch] integers",
                    got=f"{chosen.dtype} {tuple(chosen.shape)}",
                    hint="indices.long()",
                )
            )
        self._keys, self._values = self._keys.index_select(0, chosen), self._values.index_select(0, chosen)

    def _held(self, held: Tensor | None) -> Tensor:
        if held is None:
            raise InputError(
                explain("the cache is empty", expected="something appended", got="nothing", hint="cache.append(k, v)")
            )
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
                    explain(
                        f"{name} cannot be cached",
                        expected="a tensor [*batch, kv_heads, time, head_dim]",
                        got=tuple(new.shape) if isinstance(new, Tensor) else type(new).__name__,
                        hint=f"{name}[None], if the heads are missing",
                    )
                )
        if k.shape[:-1] != v.shape[:-1]:
            raise InputError(
                explain(
                    "k and v must have the same length, heads and batch",
                    expected="one value for each key",
                    got=f"k {tuple(k.shape)}, v {tuple(v.shape)}",
                    hint="append both of the same tokens",
                )
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
        explain(
            "these keys and values do not fit what the cache holds",
            expected=f"[{', '.join(map(str, front))}, time, {dim}], {held.dtype} on {held.device}",
            got=f"{list(new.shape)}, {new.dtype} on {new.device}",
            hint="a new cache, or cache.reset(), for other sequences; one precision for all steps",
        )
    )


class LayerCache(NamedTuple):
    """What one decoder layer keeps: its own past, and the memory's keys and values, which are made once."""

    attention: KVCache
    cross_attention: KVCache | None = None


class DecoderCache:
    """One cache for a whole decoder; `decoder.new_cache()` makes it.

    >>> from sightline import nn as slnn
    >>> decoder = slnn.Decoder(32, heads=4, layers=2)
    >>> cache = decoder.new_cache()
    >>> with torch.no_grad():
    ...     prompt = decoder(torch.randn(1, 5, 32), cache=cache)
    ...     step = decoder(torch.randn(1, 1, 32), cache=cache)
    >>> step.shape, cache.length
    (torch.Size([1, 1, 32]), 6)
    """

    def __init__(self, layers: Sequence[LayerCache]) -> None:
        self.layers = list(layers)

    @property
    def length(self) -> int:
        """How many tokens were decoded, and so where the next one stands."""
        return self.layers[0].attention.length

    @property
    def bytes(self) -> int:
        """The memory of all layers."""
        return sum(cache.bytes for cache in self)

    def reset(self) -> None:
        """Forget everything, also the memory's keys and values; what was allocated stays."""
        for cache in self:
            cache.reset()

    def reorder(self, indices: Int[Tensor, " batch"] | Sequence[int]) -> None:
        """Choose sequences anew along the first batch axis, in all layers."""
        for cache in self:
            cache.reorder(indices)

    def __iter__(self) -> Iterator[KVCache]:
        for layer in self.layers:
            yield from (cache for cache in layer if cache is not None)

    def __repr__(self) -> str:
        return f"DecoderCache(layers={len(self.layers)}, length={self.length}, bytes={self.bytes})"
