"""The transformer: an encoder reads, a decoder writes and looks at what was read."""

from __future__ import annotations

from typing import TYPE_CHECKING, Unpack

from torch import Tensor, nn

from sightline.errors import InputTypeError
from sightline.nn.decoder import Decoder
from sightline.nn.encoder import Encoder
from sightline.nn.layer import LayerOptions
from sightline.nn.observe import Observable

if TYPE_CHECKING:
    from jaxtyping import Float

    from sightline.backends.call import MaskLike
    from sightline.masks import Mask
    from sightline.positions import Alibi


class Transformer(Observable):
    """An encoder, and a decoder that attends to its output (https://arxiv.org/abs/1706.03762).

    To decode step by step, encode once: `memory = model.encoder(source)`, `cache = model.decoder.new_cache()`, then
    `model.decoder(token, memory, cache=cache)` for every token. The memory's keys and values are made once.

    Args:
        width, heads: as in `EncoderLayer`.
        encoder_layers, decoder_layers: how many of each.
        positions: a scheme for both sides, as in `Encoder`; one that is learned is shared.
            For two schemes, make two parts and put them together with `Transformer.of(encoder, decoder)`.
        options: all others of `EncoderLayer`.

    >>> import sightline as sl, torch
    >>> from sightline import nn as slnn
    >>> model = slnn.Transformer(
    ...     64, heads=8, encoder_layers=2, decoder_layers=2, positions=sl.positions.Sinusoidal(64)
    ... )
    >>> model(torch.randn(2, 7, 64), torch.randn(2, 5, 64)).shape
    torch.Size([2, 5, 64])
    """

    def __init__(
        self,
        width: int,
        heads: int,
        encoder_layers: int = 6,
        decoder_layers: int = 6,
        *,
        positions: nn.Module | Alibi | None = None,
        final_norm: bool | None = None,
        **options: Unpack[LayerOptions],
    ) -> None:
        super().__init__()
        self.encoder = Encoder(width, heads, encoder_layers, positions=positions, final_norm=final_norm, **options)
        self.decoder = Decoder(
            width, heads, decoder_layers, cross=True, positions=positions, final_norm=final_norm, **options
        )

    @classmethod
    def of(cls, encoder: Encoder, decoder: Decoder) -> Transformer:
        """A transformer of two parts that were made before.

        >>> encoder, decoder = Encoder(8, heads=2, layers=1), Decoder(4, heads=2, layers=1, cross=True, memory_width=8)
        >>> import torch
        >>> Transformer.of(encoder, decoder)(torch.randn(7, 8), torch.randn(5, 4)).shape
        torch.Size([5, 4])
        """
        new = cls.__new__(cls)
        nn.Module.__init__(new)
        new.encoder, new.decoder = encoder, decoder
        return new

    @classmethod
    def from_torch(cls, module: nn.Transformer, *, mask: Mask | None = None) -> Transformer:
        """The same transformer with a copy of the weights of a torch.nn.Transformer.

        As there, the decoder is not causal by itself: give `mask=sl.causal()` here, or target_mask with each call.

        >>> import torch
        >>> theirs = torch.nn.Transformer(32, 4, 2, 2, 64, batch_first=True).eval()
        >>> Transformer.from_torch(theirs)(torch.randn(2, 7, 32), torch.randn(2, 5, 32)).shape
        torch.Size([2, 5, 32])
        """
        if not isinstance(module, nn.Transformer):
            raise InputTypeError(
                "this cannot be taken over",
                expected="torch.nn.Transformer",
                got=type(module).__name__,
                hint="Encoder.from_torch or Decoder.from_torch for one half",
            )
        new = cls.of(Encoder.from_torch(module.encoder), Decoder.from_torch(module.decoder, mask=mask))
        return new.train(module.training)

    def forward(
        self,
        source: Float[Tensor, "*batch source_time width"],
        target: Float[Tensor, "*batch time width"],
        *,
        source_mask: MaskLike = None,
        target_mask: MaskLike = None,
        memory_mask: MaskLike = None,
        source_at: Tensor | None = None,
        target_at: Tensor | None = None,
    ) -> Float[Tensor, "*batch time width"]:
        """Encode the source, and decode the target against it.

        A padded source needs `sl.padding(lengths)` twice: as source_mask and as memory_mask.
        """
        memory = self.encoder(source, mask=source_mask, at=source_at)
        out: Tensor = self.decoder(target, memory, mask=target_mask, memory_mask=memory_mask, at=target_at)
        return out
