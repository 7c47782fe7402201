"""An encoder of text: hidden states of its tokens, and one vector for a whole text."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from sightline.errors import InputTypeError
from sightline.models.text.base import TextModel, as_padding
from sightline.models.text.pooling import Pooling
from sightline.nn import Encoder
from sightline.positions import Learned
from sightline.positions.base import whole

if TYPE_CHECKING:
    from jaxtyping import Float, Int

    from sightline.backends.call import MaskLike

# Tokens, padding included, that are encoded at once: enough for the matrix products, and few enough that texts of
# other lengths, which would be padded, come in another batch. Of 64 sentences 512 took 0.7 of the time of 2048.
_AT_ONCE = {"cpu": 512}
_AT_ONCE_ELSEWHERE = 16384


class TokenEmbedding(nn.Module):
    """The vector of a token: what it is, where it stands, and to which of two texts it belongs; then a norm."""

    def __init__(
        self,
        tokens: nn.Embedding,
        positions: Learned,
        segments: nn.Embedding | None,
        norm: nn.Module,
        first: int = 0,
    ) -> None:
        super().__init__()
        self.tokens, self.positions, self.segments, self.norm = tokens, positions, segments, norm
        self.first = first  # where positions begin

    def forward(self, x: Tensor, segments: Tensor | None = None) -> Tensor:
        if self.segments is not None:
            x = x + (self.segments.weight[0] if segments is None else self.segments(segments))
        out: Tensor = self.norm(self.positions(x, at=self.first))
        return out


class TextEncoder(TextModel):
    """An encoder of text such as BERT: `model(ids)` gives the hidden states, `model.encode(texts)` one vector each.

    Made by `sl.models.load`. `model.observe(text)` gives the hidden states and the sights of all layers.

    >>> from sightline.models import load
    >>> model, tokenizer = load("minilm")
    >>> vectors = model.encode(["A cat is napping.", "The cat sleeps.", "Stocks fell sharply."])
    >>> (vectors @ vectors[0]).argsort(descending=True)
    tensor([0, 1, 2])
    >>> with torch.no_grad():
    ...     model(torch.tensor(tokenizer.encode("The cat sleeps.").ids)).shape
    torch.Size([6, 384])
    """

    def __init__(self, embedding: TokenEmbedding, encoder: Encoder, pooling: Pooling) -> None:
        super().__init__()
        self.embedding, self.encoder, self.pooling = embedding, encoder, pooling
        self.context = embedding.positions.length - embedding.first

    @property
    def table(self) -> nn.Embedding:
        return self.embedding.tokens

    def forward(
        self,
        ids: Int[Tensor, "*batch time"],
        *,
        padding: MaskLike | Sequence = None,
        segments: Int[Tensor, "*batch time"] | None = None,
    ) -> Float[Tensor, "*batch time width"]:
        """The hidden states of the last layer.

        Args:
            ids: `[*batch, time]`.
            padding: which ids are real: their number in each row, booleans (True = real), or a mask.
            segments: 0 or 1, which of two texts each id belongs to; all to the first if not given.
        """
        return self.encoder(self.embedding(self._embed(ids), segments), mask=as_padding(padding))

    @torch.no_grad()
    def encode(
        self, texts: str | Sequence[str], *, normalize: bool | None = None, batch_size: int = 64
    ) -> Float[Tensor, "*texts width"]:
        """One vector for each text: `[width]` for a string, `[texts, width]` for several.

        Pooled, scaled and cut off as the files of the model say (all-MiniLM: the mean of at most 256 tokens, of
        length 1). Texts of similar length are encoded together, so that little is computed for padding.

        Args:
            texts: a string, or any number of them.
            normalize: scale the vectors to length 1; what the model's files say if not given.
            batch_size: at most so many texts at once.
        """
        one = isinstance(texts, str)
        listed = [texts] if isinstance(texts, str) else list(texts)
        if not all(isinstance(text, str) for text in listed):
            raise InputTypeError(
                "only text can be encoded",
                expected="a string, or a list of strings",
                got=next(type(text).__name__ for text in listed if not isinstance(text, str)),
                hint="model(ids) for ids",
            )
        most = whole("batch_size", batch_size)
        rows = self._encode(listed, self.pooling.longest) if listed else []
        out = torch.empty(len(rows), self.encoder.width, device=self.device, dtype=self.table.weight.dtype)
        order = sorted(range(len(rows)), key=lambda i: len(rows[i]))
        room = _AT_ONCE.get(self.device.type, _AT_ONCE_ELSEWHERE)
        while order:
            # Longest first: what does not fit into memory is found out at once.
            take = max(1, min(most, room // max(1, len(rows[order[-1]]))))
            order, chosen = order[:-take], order[-take:]
            ids, mask = self._padded([rows[i] for i in chosen])
            lengths = torch.tensor([len(rows[i]) for i in chosen])
            out[chosen] = self.pooling(self(ids, padding=mask), lengths, normalize)
        return out[0] if one else out
