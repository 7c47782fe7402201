"""The caches of all layers of a decoder, as one."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from torch import Tensor

from sightline.nn.cache import KVCache
from sightline.nn.intact import put_back, state_of
from sightline.nn.memory import Source

if TYPE_CHECKING:
    from jaxtyping import Int


class LayerCache(NamedTuple):
    """What one decoder layer keeps: its own past, and the memory's keys and values, which are made once."""

    attention: KVCache
    cross_attention: KVCache | None = None


class DecoderCache:
    """One cache for a whole decoder; `decoder.new_cache()` makes it.

    A call that fails leaves all layers as they were before it.

    >>> import torch
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
        """Choose sequences anew along the first batch axis, in all layers or, after an error, in none.

        The next call's memory is then that of the chosen sequences: `memory[indices]`.
        """
        before = state_of(self)
        made: dict[Any, Source | None] = {}
        try:
            for cache in self:
                cache._reorder(indices, made)
        except BaseException:
            put_back(before)
            raise

    def _recognized(self, memory: Any) -> Any:
        """The memory that was read before, if this holds the same: all layers then know it at a glance."""
        pair = memory if isinstance(memory, tuple) else (memory, memory)
        cross = self.layers[0].cross_attention
        if cross is None or not all(isinstance(one, Tensor) for one in pair):
            return memory
        source = cross._source if cross._source is not None and cross._source.is_of(*pair) else Source(*pair)
        if source.carried is not None:
            return memory
        return source.tensors if isinstance(memory, tuple) else source.tensors[0]

    def __iter__(self) -> Iterator[KVCache]:
        for layer in self.layers:
            yield from (cache for cache in layer if cache is not None)

    def __repr__(self) -> str:
        return f"DecoderCache(layers={len(self.layers)}, length={self.length}, bytes={self.bytes})"
