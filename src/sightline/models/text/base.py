"""What models of text have in common: a tokenizer, batches of texts, labels for tokens, and sights with labels."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import torch
from torch import Tensor, nn

from sightline.errors import InputError, InputTypeError
from sightline.masks import Mask, padding
from sightline.models.sights import Heads, Sights, observe
from sightline.models.text.labels import labels_of_ids, labels_of_text

if TYPE_CHECKING:
    from tokenizers import Encoding, Tokenizer

    from sightline.backends.call import MaskLike
    from sightline.nn.observe.select import Layers

Text: TypeAlias = str | Sequence[str] | Sequence[int] | Tensor


class Batch(NamedTuple):
    """Texts as a model takes them: ids `[time]` or `[batch, time]`, padded at the end, and what each token is."""

    ids: Tensor
    padding: Mask | None
    tokens: list[Any]  # of strings; of lists of them, one for each text


class TextModel(nn.Module):
    """The base of models of text. `build` gives it the tokenizer and the config of its checkpoint."""

    tokenizer: Tokenizer | None = None
    context: int | None = None  # how many tokens it was made for

    @property
    def table(self) -> nn.Embedding:
        """The vectors of the vocabulary."""
        raise NotImplementedError

    def tokens(self, text: Text) -> list[Any]:
        """What each token of a text, or of ids, stands for: the piece of the text it covers.

        Without the blanks around it; tokens of blanks alone are shown by signs, and a token that stands for nothing in
        the text, such as [CLS], has its own name.

        >>> from sightline.models import load
        >>> load("minilm")[0].tokens("Tokenization!")
        ['[CLS]', 'Token', 'ization', '!', '[SEP]']
        """
        return self.batch(text).tokens

    def observe(
        self, text: Text, *, stats: Any = (), layers: Layers = None, heads: Heads = None, **options: Any
    ) -> tuple[Tensor, Sights]:
        """The output for a text (or several, or ids), and the sights of the attention on the way.

        `stats` and `layers` are those of `sl.nn.observing`; `heads` keeps some of the query heads. `sights.tokens`
        are the labels of rows and columns, `sights[3]` is the sight of layer 3. Other options go to the model. There
        is no gradient: to train while you look, use `sl.nn.observing`.

        >>> from sightline.models import load
        >>> model, _ = load("minilm")
        >>> states, sights = model.observe("The kids were scared of the lions, so they left.", layers=3, heads=1)
        >>> they, kids = sights.tokens.index("they"), sights.tokens.index("kids")
        >>> round(sights[3].tile(they, kids).item(), 1)
        0.8
        """
        batch = self.batch(text)
        if batch.padding is not None:
            options.setdefault("padding", batch.padding)
        out, sights = observe(self, (batch.ids,), options, stats, layers, heads)
        sights.tokens = batch.tokens
        return out, sights

    def batch(self, text: Text) -> Batch:
        """A text, several texts, or ids, as the model takes them."""
        if isinstance(text, str):
            encoding = self._tokenizer.encode(text)
            return Batch(self._tensor(encoding.ids), None, labels_of_text(encoding, text))
        if isinstance(text, Sequence) and text and all(isinstance(one, str) for one in text):
            texts = [str(one) for one in text]
            encodings = self._tokenizer.encode_batch(texts)
            ids, mask = self._padded([encoding.ids for encoding in encodings])
            return Batch(ids, mask, [labels_of_text(*pair) for pair in zip(encodings, texts, strict=True)])
        ids = self._tensor(text)
        self._check_ids(ids)
        named = [self._labels(row) for row in ids.reshape(-1, ids.shape[-1]).tolist()]
        return Batch(ids, None, named[0] if ids.dim() == 1 else named)

    def _encode(self, texts: Sequence[str], longest: int | None) -> list[list[int]]:
        """The ids of texts, each cut to at most so many tokens, those that begin and end a text included."""
        tokenizer = self._tokenizer
        if longest is None:
            return [encoding.ids for encoding in tokenizer.encode_batch(list(texts))]
        room = longest - tokenizer.num_special_tokens_to_add(False)
        return [self._cut(encoding, room) for encoding in tokenizer.encode_batch(list(texts), add_special_tokens=False)]

    def _cut(self, encoding: Encoding, room: int) -> list[int]:
        encoding.truncate(max(0, room))
        ids: list[int] = self._tokenizer.post_process(encoding).ids
        return ids

    def _padded(self, rows: Sequence[Sequence[int]]) -> tuple[Tensor, Mask | None]:
        """Ids of unequal length as one tensor, and a mask that hides the padding at the end."""
        lengths = [len(row) for row in rows]
        longest = max(lengths)
        ids = self._tensor([[*row, *[0] * (longest - len(row))] for row in rows])
        return ids, padding(torch.tensor(lengths)) if min(lengths) < longest else None

    @property
    def device(self) -> torch.device:
        return self.table.weight.device

    @property
    def _tokenizer(self) -> Tokenizer:
        if self.tokenizer is None:
            raise InputError(
                "this model has no tokenizer",
                expected="a checkpoint with tokenizer.json, or ids in the place of text",
                got="text",
                hint="model.tokenizer = tokenizers.Tokenizer.from_file(…)",
            )
        return self.tokenizer

    def _tensor(self, ids: Any) -> Tensor:
        try:
            return torch.as_tensor(ids, device=self.device)
        except (TypeError, ValueError, RuntimeError) as error:
            raise InputTypeError(
                "this is neither text nor ids",
                expected="a string, a list of strings, or ids of one length",
                got=str(error)[:120],
                hint='model.observe("some text")',
            ) from None

    def _labels(self, ids: list[int]) -> list[str]:
        return list(map(str, ids)) if self.tokenizer is None else labels_of_ids(self.tokenizer, ids)

    def _check_ids(self, ids: object) -> None:
        if not isinstance(ids, Tensor) or ids.dtype not in (torch.int64, torch.int32) or ids.dim() < 1:
            raise InputTypeError(
                "ids must be whole numbers",
                expected="[*batch, time] of int64",
                got=f"{ids.dtype} {tuple(ids.shape)}" if isinstance(ids, Tensor) else type(ids).__name__,
                hint="model.batch(text).ids",
            )
        if not ids.shape[-1]:
            raise InputError("there are no tokens", expected="1 or more", got="none", hint="some text")

    def _embed(self, ids: Tensor) -> Tensor:
        """The vectors of tokens; on the CPU the look-up itself notices ids that do not exist."""
        self._check_ids(ids)
        try:
            vectors: Tensor = self.table(ids)
        except IndexError:
            raise InputError(
                "an id is not in the vocabulary",
                expected=f"0 to {self.table.num_embeddings - 1}",
                got=f"{int(ids.min())} to {int(ids.max())}",
                hint="use the tokenizer that came with the model",
            ) from None
        return vectors


def as_padding(mask: MaskLike | Sequence) -> MaskLike:
    """What a call says about padding, as a mask: lengths, booleans (True = real), or a mask as it is.

    >>> as_padding([3, 5])
    padding(<2>)
    """
    return mask if mask is None or isinstance(mask, Mask) else padding(mask)
