"""One token of each sequence through a decoder, with as little around the arithmetic as there can be.

At one token a layer is some twenty small operations; checks, module calls and copies around them would cost as much
as they do. A `Step` reads the weights out of a decoder's modules once and then computes what they compute, operation by
operation. It is made only for decoders of plain modules, and used only while nobody looks: with hooks, observers or
modules of another kind the decoder itself is called.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sightline.backends.grouped_rows import packed, unpacked
from sightline.nn import Decoder, DecoderCache, DecoderLayer, FeedForward, MultiHeadAttention
from sightline.nn.fast.encoder_layer import hooks_for_all
from sightline.nn.fast.side_by_side import Affine, side_by_side
from sightline.nn.feedforward import ACTIVATIONS
from sightline.nn.intact import put_back, state_of
from sightline.positions import Learned, Rotary
from sightline.positions.rotary import Turns


class _Layer(NamedTuple):
    """What a step needs to know of one layer."""

    attention_norm: Callable[[Tensor], Tensor]
    qkv: tuple[Affine, ...]  # one for all three, or three
    output: Affine
    feed_forward_norm: Callable[[Tensor], Tensor]
    up: tuple[Affine, ...]  # gate and up in one, or both, or up alone
    down: Affine
    gated: bool
    activation: Callable[[Tensor], Tensor]
    window: int | None  # how many keys are seen
    heads: int
    kv_heads: int
    dim: int
    scale: float | None


class Step:
    """One token of each sequence, for a decoder whose modules are plain; `Step.of` says whether they are."""

    def __init__(self, decoder: Decoder, layers: list[_Layer]) -> None:
        self.decoder, self.layers = decoder, layers
        self.norm = _norm(decoder.norm)

    @staticmethod
    def of(decoder: Decoder) -> Step | None:
        """A step for this decoder, or None if some part of it would have to be asked itself."""
        if decoder.training or _hooked(decoder) or type(decoder) is not Decoder or not _known_norm(decoder.norm):
            return None
        if type(decoder.positions) not in (type(None), Learned):
            return None
        layers = [layer for layer in map(_read, decoder.layers) if layer is not None]
        schemes = {id(part.positions) for part in decoder.modules() if isinstance(part, MultiHeadAttention)}
        return Step(decoder, layers) if len(layers) == len(decoder.layers) and len(schemes) == 1 else None

    def __call__(self, x: Tensor, cache: DecoderCache, at: Tensor | None = None, real: Tensor | None = None) -> Tensor:
        """Decode x `[batch, 1, width]`, as the decoder would.

        Args:
            x: the vectors of one token of each sequence.
            cache: what came before, with room or not; x is added to it.
            at: where the tokens stand, `[batch, 1]`; where the cache ends if not given.
            real: which keys are real, `[batch, keys]`, those of x included; all if not given.
        """
        before = state_of(cache)
        try:
            return self._through_layers(x, cache, at, real)
        except BaseException:
            put_back(before)
            raise

    def _through_layers(self, x: Tensor, cache: DecoderCache, at: Tensor | None, real: Tensor | None) -> Tensor:
        batch, width = x.shape[0], x.shape[-1]
        x, places = self.decoder._place(x, at, cache.length)
        turns = places if isinstance(places, Turns) else None
        x = x.view(batch, width)
        mask = None if real is None else real[:, None, None]
        linear, attend = F.linear, F.scaled_dot_product_attention
        for layer, own in zip(self.layers, cache.layers, strict=True):
            heads, kv_heads, dim = layer.heads, layer.kv_heads, layer.dim
            flat = _apply(layer.qkv, layer.attention_norm(x))
            turned, value = flat.view(batch, -1, 1, dim).split((heads + kv_heads, kv_heads), 1)
            if turns is not None:
                # Queries and keys together, as `Rotary` does it.
                turned = torch.addcmul(turned * turns.cos, turned.roll(dim // 2, -1), turns.sin).to(x.dtype)
            query, key = turned.split((heads, kv_heads), 1)
            keys, values = own.attention.append(key, value)
            seen = mask
            if layer.window is not None and keys.shape[-2] > layer.window:
                keys, values = keys[:, :, -layer.window :], values[:, :, -layer.window :]
                seen = None if mask is None else mask[..., -layer.window :]
            # One query sees all keys, so the heads of a group can stand where a sequence of queries would.
            rows = packed(query, kv_heads) if x.is_cpu else query.reshape(batch, kv_heads, -1, dim)
            z = attend(rows, keys, values, seen, scale=layer.scale, enable_gqa=rows.shape[1] != kv_heads)
            x = x + linear(unpacked(z, query.shape).reshape(batch, heads * dim), *layer.output)
            hidden = _apply(layer.up, layer.feed_forward_norm(x))
            if layer.gated:
                gate, up = hidden.chunk(2, -1)
                hidden = layer.activation(gate) * up
            else:
                hidden = layer.activation(hidden)
            x = x + linear(hidden, *layer.down)
        return self.norm(x)[:, None]


def _apply(affines: tuple[Affine, ...], x: Tensor) -> Tensor:
    """Linear layers with the same input, their outputs side by side."""
    return F.linear(x, *affines[0]) if len(affines) == 1 else torch.cat([F.linear(x, *one) for one in affines], -1)


def _read(layer: nn.Module) -> _Layer | None:
    """What a step needs of a layer, or None if the layer does something that a step does not."""
    if (
        type(layer) is not DecoderLayer
        or not layer.norm_first
        or layer.norm_output
        or layer.cross_attention is not None
    ):
        return None
    attention, forward = layer.attention, layer.feed_forward
    band = getattr(layer.mask, "band", None)
    norms = layer.attention_norm, layer.feed_forward_norm
    plain = (
        type(attention) is MultiHeadAttention
        and type(forward) is FeedForward
        and band is not None
        and (band.right, band.align) == (0, "end")
        and (attention.softcap, attention.sinks, attention.normalizer) == (None, None, "softmax")
        and attention.backend == "auto"
        and attention.head_dim == attention.value_dim
        and all(map(_known_norm, norms))
        and _whole_rotary(attention.positions)
        and all(type(part) is nn.Linear for part in (*attention.children(), *forward.children()) if _has_weights(part))
    )
    if not plain:
        return None
    assert band is not None
    qkv = (attention.query, attention.key, attention.value)
    ups = (forward.up,) if forward.gate is None else (forward.gate, forward.up)
    joined_qkv, joined_ups = side_by_side(*qkv), side_by_side(*ups)
    return _Layer(
        attention_norm=_norm(layer.attention_norm),
        qkv=(joined_qkv,) if joined_qkv is not None else tuple(map(_affine, qkv)),
        output=_affine(attention.output),
        feed_forward_norm=_norm(layer.feed_forward_norm),
        up=(joined_ups,) if joined_ups is not None else tuple(map(_affine, ups)),
        down=_affine(forward.down),
        gated=forward.gate is not None,
        activation=ACTIVATIONS[forward.activation],
        window=None if band.left is None else band.left + 1,
        heads=attention.heads,
        kv_heads=attention.kv_heads,
        dim=attention.head_dim,
        scale=attention.scale,
    )


def _affine(linear: nn.Linear) -> Affine:
    return linear.weight, linear.bias


def _has_weights(module: nn.Module) -> bool:
    return next(module.parameters(), None) is not None


def _whole_rotary(positions: object) -> bool:
    """No positions, or rotary ones that turn all channels, in halves."""
    if positions is None:
        return True
    return type(positions) is Rotary and not positions.interleaved and positions.rotary_dim == positions.dim


def _known_norm(norm: object) -> bool:
    return type(norm) in (nn.RMSNorm, nn.LayerNorm)


def _norm(norm: object) -> Callable[[Tensor], Tensor]:
    """A norm as a function, without the call of a module around it."""
    if isinstance(norm, nn.LayerNorm):
        shape, weight, bias, eps = norm.normalized_shape, norm.weight, norm.bias, norm.eps
        return lambda x: F.layer_norm(x, shape, weight, bias, eps)
    assert isinstance(norm, nn.RMSNorm)
    size, scale, small = norm.normalized_shape, norm.weight, norm.eps
    return lambda x: F.rms_norm(x, size, scale, small)


def _hooked(module: nn.Module) -> bool:
    """Whether a call of some module inside would run more than the module itself."""
    return hooks_for_all() or any(part._forward_hooks or part._forward_pre_hooks for part in module.modules())
