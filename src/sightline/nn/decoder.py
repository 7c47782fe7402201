"""The decoder: every token sees itself and the past, and a memory if there is one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Unpack

from torch import Tensor, nn

from sightline.errors import InputError, InputTypeError
from sightline.masks import Mask, causal
from sightline.nn.cache import KVCache
from sightline.nn.checks import check_sequence
from sightline.nn.decoder_cache import DecoderCache, LayerCache
from sightline.nn.from_torch import build, read_decoder_layer, read_stack
from sightline.nn.intact import TakesCache
from sightline.nn.layer import Layer, LayerOptions
from sightline.nn.multihead import MultiHeadAttention
from sightline.nn.stack import Stack, divide, mask_of_each, norm_at_the_end
from sightline.positions.base import whole

if TYPE_CHECKING:
    from jaxtyping import Float

    from sightline.backends.call import BiasLike, MaskLike
    from sightline.positions import Alibi

CAUSAL = causal()


class DecoderLayer(TakesCache, Layer):
    """Causal self-attention, attention to a memory if `cross`, and a feed-forward network.

    Args:
        width, heads, positions: as in `EncoderLayer`; positions are those of the self-attention.
        cross: whether there is attention to a memory, e.g. to an encoder's output.
        memory_width: channels of the memory's tokens; width if not given.
        mask: the rule of the self-attention: `sl.causal()`, or e.g. `sl.window(4095)` for a sliding window
            (Mistral), `sl.prefix(n)`, or None for no rule. The mask of a call narrows it further.
        options: all others of `EncoderLayer`.

    >>> import torch
    >>> from sightline import nn as slnn
    >>> slnn.DecoderLayer(64, heads=8)(torch.randn(2, 5, 64)).shape
    torch.Size([2, 5, 64])
    >>> slnn.DecoderLayer(64, heads=8, cross=True)(torch.randn(2, 5, 64), torch.randn(2, 7, 64)).shape
    torch.Size([2, 5, 64])
    """

    def __init__(
        self,
        width: int,
        heads: int,
        *,
        cross: bool = False,
        memory_width: int | tuple[int, int] | None = None,
        positions: nn.Module | Alibi | None = None,
        mask: Mask | None = CAUSAL,
        **options: Unpack[LayerOptions],
    ) -> None:
        super().__init__(width, heads, positions=positions, mask=mask, **options)
        self.cross_attention: MultiHeadAttention | None = None
        if cross:
            names = ("kv_heads", "head_dim", "bias", "dropout", "softcap", "sinks", "normalizer", "scale", "backend")
            taken = {name: options[name] for name in names if name in options}  # type: ignore[literal-required]
            self.cross_attention = MultiHeadAttention(width, heads, memory_width=memory_width, **taken)
            self._add_norms(
                "cross_attention", options.get("norm", "layer"), options.get("eps", 1e-5), options.get("bias", True)
            )

    @classmethod
    def from_torch(cls, module: nn.TransformerDecoderLayer, *, mask: Mask | None = None) -> DecoderLayer:
        """The same layer with a copy of the weights of a torch.nn.TransformerDecoderLayer.

        As there, nothing is masked by itself: give `mask=sl.causal()` here or with each call.

        >>> import sightline as sl, torch
        >>> theirs = torch.nn.TransformerDecoderLayer(32, 4, batch_first=True).eval()
        >>> ours = DecoderLayer.from_torch(theirs, mask=sl.causal())
        >>> ours(torch.randn(2, 5, 32), torch.randn(2, 7, 32)).shape
        torch.Size([2, 5, 32])
        """
        return build(cls, read_decoder_layer(module), mask=mask)

    def new_cache(self, capacity: int | None = None) -> LayerCache:
        """Empty caches for this layer."""
        return LayerCache(KVCache(capacity), None if self.cross_attention is None else KVCache())

    def forward(
        self,
        x: Float[Tensor, "*batch time width"],
        memory: Float[Tensor, "*batch keys memory_width"] | None = None,
        *,
        mask: MaskLike = None,
        bias: BiasLike = None,
        memory_mask: MaskLike = None,
        at: int | Float[Tensor, "*batch time"] | None = None,
        cache: LayerCache | None = None,
    ) -> Float[Tensor, "*batch time width"]:
        check_sequence(self, "x", x, self.width)
        self._check_memory(memory, memory_mask)
        own, crossed = (None, None) if cache is None else cache
        mask = self._masked(mask)
        x = self._residual("attention", x, lambda h: self.attention(h, mask=mask, bias=bias, at=at, cache=own))
        if (attend := self.cross_attention) is not None:
            x = self._residual("cross_attention", x, lambda h: attend(h, memory, mask=memory_mask, cache=crossed))
        return self._residual("feed_forward", x, self.feed_forward)

    def _check_memory(self, memory: object, memory_mask: object) -> None:
        if self.cross_attention is not None and memory is None:
            raise InputError(
                "this decoder reads a memory",
                expected="decoder(x, memory)",
                got="no memory",
                hint="the encoder's output; or cross=False for a decoder without",
            )
        if self.cross_attention is None and (memory is not None or memory_mask is not None):
            raise InputError(
                "this decoder reads no memory",
                expected="decoder(x)",
                got="a memory or a memory_mask",
                hint="cross=True for a decoder with attention to a memory",
            )


class Decoder(TakesCache, Stack):
    """Decoder layers in a row: the body of a GPT or a Llama; with `cross`, the right half of the first transformer.

    Args:
        width, heads, cross, memory_width: as in `DecoderLayer`.
        layers: how many.
        positions: a scheme of `sl.positions`, which is added to the input or, for `Rotary` and `sl.alibi(heads)`,
            used in every layer's self-attention.
        mask: the rule of the self-attention, or a list with one for each layer:
            `[sl.window(4095), sl.causal()] * 13` is Gemma-2.
        final_norm: a norm at the end; by default there is one if `norm_first`, whose layers end without.
        options: all others of `EncoderLayer`.

    >>> import sightline as sl, torch
    >>> from sightline import nn as slnn
    >>> llama = dict(kv_heads=2, norm="rms", activation="silu", gated=True, bias=False, hidden=172)
    >>> decoder = slnn.Decoder(64, heads=8, layers=2, positions=sl.positions.Rotary(8), **llama)
    >>> decoder(torch.randn(2, 5, 64)).shape
    torch.Size([2, 5, 64])
    """

    def __init__(
        self,
        width: int,
        heads: int,
        layers: int,
        *,
        cross: bool = False,
        memory_width: int | None = None,
        positions: nn.Module | Alibi | None = None,
        mask: Mask | Sequence[Mask | None] | None = CAUSAL,
        final_norm: bool | None = None,
        **options: Unpack[LayerOptions],
    ) -> None:
        added, inside = divide(positions)
        made = [
            DecoderLayer(width, heads, cross=cross, memory_width=memory_width, positions=inside, mask=rule, **options)
            for rule in mask_of_each(mask, whole("layers", layers))
        ]
        super().__init__(made, norm_at_the_end(made[0], final_norm, options), added)

    @classmethod
    def of(
        cls, layers: Sequence[DecoderLayer], *, norm: nn.Module | None = None, positions: nn.Module | None = None
    ) -> Decoder:
        """A decoder of layers that were made one by one, and may differ.

        >>> Decoder.of([DecoderLayer(8, heads=2), DecoderLayer(8, heads=4)]).width
        8
        """
        new = cls.__new__(cls)
        Stack.__init__(new, layers, norm, positions)
        return new

    @classmethod
    def from_torch(cls, module: nn.TransformerDecoder, *, mask: Mask | None = None) -> Decoder:
        """The same decoder with a copy of the weights of a torch.nn.TransformerDecoder; `mask` as in `DecoderLayer`.

        >>> import torch
        >>> layer = torch.nn.TransformerDecoderLayer(32, 4, batch_first=True)
        >>> decoder = Decoder.from_torch(torch.nn.TransformerDecoder(layer, 2))
        >>> decoder(torch.randn(2, 5, 32), torch.randn(2, 7, 32)).shape
        torch.Size([2, 5, 32])
        """
        layers, norm = read_stack(module, nn.TransformerDecoder)
        new = cls.of([DecoderLayer.from_torch(layer, mask=mask) for layer in layers], norm=norm)
        return new.train(module.training)

    def new_cache(self, capacity: int | None = None) -> DecoderCache:
        """An empty cache for step-by-step decoding, of a fixed capacity if given.

        >>> Decoder(8, heads=2, layers=3).new_cache()
        DecoderCache(layers=3, length=0, bytes=0)
        """
        return DecoderCache([layer.new_cache(capacity) for layer in self.layers])  # type: ignore[operator]

    def forward(
        self,
        x: Float[Tensor, "*batch time width"],
        memory: Float[Tensor, "*batch keys memory_width"] | None = None,
        *,
        mask: MaskLike = None,
        bias: BiasLike = None,
        memory_mask: MaskLike = None,
        at: int | Float[Tensor, "*batch time"] | None = None,
        cache: DecoderCache | None = None,
    ) -> Float[Tensor, "*batch time width"]:
        """Decode x; with a cache, x are the tokens that come next.

        Args:
            x: `[*batch, time, width]`.
            memory: `[*batch, keys, memory_width]`, if the decoder has `cross`.
            mask: narrows the rule of the layers; with a cache its keys are all tokens so far.
            bias: added to the scores of the self-attention.
            memory_mask: which tokens of the memory may be read, e.g. `sl.padding(lengths)`.
            at: where the tokens stand; where the cache ends if not given, or 0, 1, 2, ...
            cache: from `new_cache()`; x is added to it.
        """
        check_sequence(self, "x", x, self.width)
        caches = self._caches(cache)
        if cache is not None:
            memory = cache._recognized(memory)
        x, places = self._place(x, at, 0 if cache is None else cache.length)
        for layer, own in zip(self.layers, caches, strict=True):
            x = layer(x, memory, mask=mask, bias=bias, memory_mask=memory_mask, at=places, cache=own)
        return x if self.norm is None else self.norm(x)

    def _caches(self, cache: object) -> Sequence[LayerCache | None]:
        if cache is None:
            return [None] * len(self.layers)
        if not isinstance(cache, DecoderCache) or len(cache.layers) != len(self.layers):
            raise InputTypeError(
                "this is not a cache of this decoder",
                expected=f"a DecoderCache of {len(self.layers)} layers",
                got=cache if isinstance(cache, DecoderCache) else type(cache).__name__,
                hint="cache=decoder.new_cache()",
            )
        return cache.layers
