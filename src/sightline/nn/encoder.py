"""The encoder: every token sees every other one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Unpack

from torch import Tensor, nn

from sightline.nn.checks import check_sequence
from sightline.nn.from_torch import build, read_encoder_layer, read_stack
from sightline.nn.layer import Layer, LayerOptions
from sightline.nn.stack import Stack, divide, mask_of_each, norm_at_the_end
from sightline.positions.base import whole

if TYPE_CHECKING:
    from jaxtyping import Float

    from sightline.backends.call import BiasLike, MaskLike
    from sightline.masks import Mask
    from sightline.positions import Alibi


class EncoderLayer(Layer):
    """Self-attention, then a feed-forward network, each added to what came in, each with a norm.

    Args:
        width: channels of a token, in and out.
        heads, kv_heads, head_dim, softcap, sinks, normalizer, scale, backend: as in `MultiHeadAttention`.
        hidden, activation, gated: as in `FeedForward`.
        positions: `sl.positions.Rotary(head_dim)` or `sl.alibi(heads)`, for the attention.
        mask: a rule that always holds, e.g. `sl.window(64, 64)`; the mask of a call narrows it further.
        norm: `"layer"` (BERT, GPT-2) or `"rms"` (Llama), with `eps`.
        norm_first: the norm in front of each part (GPT-2, Llama, ViT), or after its sum (BERT).
        norm_output: one more norm, on what each part adds (Gemma-2).
        bias: whether the linear layers and the layer norms have one.
        dropout: in training, the share dropped of attention weights, hidden channels and what each part adds.

    >>> import torch
    >>> from sightline import nn as slnn
    >>> slnn.EncoderLayer(64, heads=8)(torch.randn(2, 5, 64)).shape
    torch.Size([2, 5, 64])
    """

    @classmethod
    def from_torch(cls, module: nn.TransformerEncoderLayer) -> EncoderLayer:
        """The same layer with a copy of the weights of a torch.nn.TransformerEncoderLayer.

        >>> import torch
        >>> theirs = torch.nn.TransformerEncoderLayer(32, 4, batch_first=True).eval()
        >>> ours, x = EncoderLayer.from_torch(theirs), torch.randn(2, 5, 32)
        >>> torch.allclose(ours(x), theirs(x), atol=1e-5)
        True
        """
        return build(cls, read_encoder_layer(module))

    def forward(
        self,
        x: Float[Tensor, "*batch time width"],
        *,
        mask: MaskLike = None,
        bias: BiasLike = None,
        at: int | Float[Tensor, "*batch time"] | None = None,
    ) -> Float[Tensor, "*batch time width"]:
        check_sequence(self, "x", x, self.width)
        mask = self._masked(mask)
        if bias is None and at is None:
            lean = self._lean.encode(self, x, mask)
            if lean is not None:
                return lean
        x = self._residual("attention", x, lambda h: self.attention(h, mask=mask, bias=bias, at=at))
        return self._residual("feed_forward", x, self.feed_forward)


class Encoder(Stack):
    """Encoder layers in a row: words as in BERT, patches of an image as in ViT, stations, anything.

    Without positions it cannot tell order: shuffle the input, and the output is shuffled the same way.

    Args:
        width, heads: as in `EncoderLayer`.
        layers: how many.
        positions: a scheme of `sl.positions`, which is added to the input or, for `Rotary` and `sl.alibi(heads)`,
            used in every layer.
        mask: a rule that always holds, or a list with one for each layer.
        final_norm: a norm at the end; by default there is one if `norm_first`, whose layers end without.
        options: all others of `EncoderLayer`.

    >>> import sightline as sl, torch
    >>> from sightline import nn as slnn
    >>> encoder = slnn.Encoder(64, heads=8, layers=2, positions=sl.positions.Grid(64, rows=4, columns=6))
    >>> encoder(torch.randn(2, 24, 64)).shape  # fields of 4 x 6 cells, 64 channels each
    torch.Size([2, 24, 64])
    """

    def __init__(
        self,
        width: int,
        heads: int,
        layers: int,
        *,
        positions: nn.Module | Alibi | None = None,
        mask: Mask | Sequence[Mask | None] | None = None,
        final_norm: bool | None = None,
        **options: Unpack[LayerOptions],
    ) -> None:
        added, inside = divide(positions)
        made = [
            EncoderLayer(width, heads, positions=inside, mask=rule, **options)
            for rule in mask_of_each(mask, whole("layers", layers))
        ]
        super().__init__(made, norm_at_the_end(made[0], final_norm, options), added)

    @classmethod
    def of(
        cls, layers: Sequence[EncoderLayer], *, norm: nn.Module | None = None, positions: nn.Module | None = None
    ) -> Encoder:
        """An encoder of layers that were made one by one, and may differ.

        >>> Encoder.of([EncoderLayer(8, heads=2), EncoderLayer(8, heads=4)]).width
        8
        """
        new = cls.__new__(cls)
        Stack.__init__(new, layers, norm, positions)
        return new

    @classmethod
    def from_torch(cls, module: nn.TransformerEncoder) -> Encoder:
        """The same encoder with a copy of the weights of a torch.nn.TransformerEncoder.

        >>> import torch
        >>> layer = torch.nn.TransformerEncoderLayer(32, 4, batch_first=True)
        >>> Encoder.from_torch(torch.nn.TransformerEncoder(layer, 2))(torch.randn(2, 5, 32)).shape
        torch.Size([2, 5, 32])
        """
        layers, norm = read_stack(module, nn.TransformerEncoder)
        new = cls.of([EncoderLayer.from_torch(layer) for layer in layers], norm=norm)
        return new.train(module.training)

    def forward(
        self,
        x: Float[Tensor, "*batch time width"],
        *,
        mask: MaskLike = None,
        bias: BiasLike = None,
        at: int | Float[Tensor, "*batch time ..."] | None = None,
    ) -> Float[Tensor, "*batch time width"]:
        """`at` says where the tokens stand, as the position scheme takes it; 0, 1, 2, ... if not given."""
        check_sequence(self, "x", x, self.width)
        x, places = self._place(x, at)
        for layer in self.layers:
            x = layer(x, mask=mask, bias=bias, at=places)
        return x if self.norm is None else self.norm(x)
