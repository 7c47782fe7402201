"""The tokens of a run: the ids that went into the model, and their text if a tokenizer is at hand."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from sightline import caches
from sightline.errors import InputTypeError
from sightline.watching.record.image import image_size

_IDS = (torch.int64, torch.int32)


class Reader:
    """Collects the ids of a run as passes begin."""

    def __init__(self, tokenizer: Any = None) -> None:
        self.text = None if tokenizer is None else text_of(tokenizer)
        self.ids: Tensor | None = None  # [batch, tokens]
        self.memory: Tensor | None = None  # of the encoder
        self.one = False  # whether this pass was given one position: it may be a step of a generation
        self.image: tuple[int, int, int] | None = None  # channels, height and width
        self._pending: Tensor | None = None
        self._texts: dict[bool, tuple[Tensor, list[list[str]]]] = {}

    def begins(self, args: tuple, kwargs: dict) -> None:
        """A pass begins: its ids are taken in once it is known whether it goes on with what was there."""
        self._pending = find_ids(args, kwargs)
        self.one = is_one(args, kwargs, self._pending)
        self.image = image_size(args, kwargs) or self.image

    def encodes(self, args: tuple, kwargs: dict) -> None:
        """The encoder begins."""
        self.memory, self.one = find_ids(args, kwargs), False
        self.image = image_size(args, kwargs) or self.image

    def settle(self, continues: bool) -> None:
        if self._pending is not None:
            goes_on = continues and self.ids is not None and self.ids.shape[0] == self._pending.shape[0]
            self.ids = torch.cat([self.ids, self._pending], -1) if goes_on else self._pending  # type: ignore[list-item]
            self._pending = None

    def grows(self) -> bool:
        """Whether the pass repeats all that was there and adds to it: generation without a cache."""
        old, new = self.ids, self._pending
        return (
            old is not None
            and new is not None
            and old.shape[0] == new.shape[0]
            and old.shape[1] < new.shape[1]
            and torch.equal(old, new[:, : old.shape[1]])
        )

    def restart(self) -> None:
        self.ids = None

    def skip(self) -> None:
        """This pass is not followed: its ids are no part of the run."""
        self._pending = None

    def back(self, ids: Tensor | None, tokens: int) -> None:
        """Go back to ids of before, and of them to the first so many."""
        self._pending = None
        self.ids = None if ids is None or not tokens else ids[:, :tokens]

    def arrive(self) -> None:
        """The run is over: ids go to the CPU."""
        self.settle(False) if self.ids is None else None
        self.ids, self.memory = (None if ids is None else ids.cpu() for ids in (self.ids, self.memory))

    def tokens(self, memory: bool = False) -> list[list[str]] | None:
        """The text of every token, or None without ids or a tokenizer."""
        ids = self.memory if memory else self.ids
        if ids is None or self.text is None:
            return None
        if memory not in self._texts or self._texts[memory][0] is not ids:
            self._texts[memory] = (ids, [[self.text(i) for i in row] for row in ids.tolist()])
        return self._texts[memory][1]


def find_ids(args: tuple, kwargs: dict) -> Tensor | None:
    """The token ids among the arguments of a model: `input_ids`, or a first argument of whole numbers.

    They may lie in a dict, as those of sentence-transformers do.

    >>> find_ids(({"input_ids": torch.tensor([[5, 3]]), "attention_mask": torch.ones(1, 2)},), {})
    tensor([[5, 3]])
    """
    ids = kwargs.get("input_ids")
    if isinstance(ids, Tensor) and ids.dim() == 2 and ids.dtype in _IDS:  # as most are given
        return ids.clone()
    inner = [x for x in (*args[:1], *kwargs.values()) if isinstance(x, Mapping)]
    named = [each.get(name) for each in (kwargs, *inner) for name in ("input_ids", "ids", "tokens", "idx", "x")]
    given = named + list(args[:1])
    for ids in given:
        if isinstance(ids, Tensor) and ids.dim() in (1, 2) and ids.dtype in _IDS:
            return ids.detach().clone().reshape(-1, ids.shape[-1])
    return None


def is_one(args: tuple, kwargs: dict, ids: Tensor | None) -> bool:
    """Whether a model is given a single position of each text: one id, or one vector.

    >>> is_one((torch.zeros(2, 1, 16),), {}, None), is_one((torch.zeros(2, 3, 8, 8),), {}, None)
    (True, False)
    """
    if ids is not None:
        return ids.shape[-1] == 1
    given = [kwargs.get("inputs_embeds"), kwargs.get("hidden_states"), *args, *kwargs.values()]
    first = next((x for x in given if isinstance(x, Tensor) and x.is_floating_point()), None)
    return first is not None and first.dim() > 1 and first.shape[-2] == 1


def text_of(tokenizer: Any) -> Any:
    """A function from an id to its text, for a tokenizer of transformers or of the tokenizers library.

    Spaces are spaces, and a piece of a character is written by its bytes, as <0xE2>.
    """
    own = getattr(tokenizer, "tokenizer", None)  # a processor's, or a sentence transformer's
    if callable(getattr(own, "convert_ids_to_tokens", None)):
        tokenizer = own
    backend = getattr(tokenizer, "backend_tokenizer", tokenizer)
    for name in ("convert_ids_to_tokens", "id_to_token"):
        raw = getattr(tokenizer, name, None)
        if callable(raw):
            break
    else:
        raise InputTypeError(
            "this is not a tokenizer that is known",
            expected="one of transformers or of the tokenizers library",
            got=type(tokenizer).__name__,
            hint="leave it out, and set seen.tokens = [[…]] yourself",
        )
    by_bytes = "ByteLevel" in str(getattr(backend, "decoder", ""))

    def text(number: int) -> str:
        token = raw(number)
        if token is None:
            return f"<{number}>"
        token = token if isinstance(token, str) else str(token)
        if by_bytes:
            try:
                content = bytes(_alphabet()[sign] for sign in token)
            except KeyError:
                return token  # a special token
            try:
                return content.decode()
            except UnicodeDecodeError:
                return "".join(f"<0x{byte:02X}>" for byte in content)
        return token.replace("▁", " ")

    return text


@caches.memo("watching.alphabet")
def _alphabet() -> dict[str, int]:
    """The byte behind each sign of a byte-level vocabulary: printable ones are themselves, others come from U+0100."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {chr(0x100 + i): byte for i, byte in enumerate(others)}


class Worded:
    """The part of a run that knows its tokens."""

    _reader: Reader | None
    _ids: tuple[list | None, list | None] | None
    _tokens: list[list[str]] | None
    _memory_tokens: list[list[str]] | None

    @property
    def ids(self) -> list[list[int]] | None:
        """The token ids, a list for each sequence of the batch; None if the model was not given ids."""
        if self._ids is None and self._reader is not None:
            return None if self._reader.ids is None else self._reader.ids.tolist()
        return None if self._ids is None else self._ids[0]

    @property
    def memory_ids(self) -> list[list[int]] | None:
        """The encoder's token ids."""
        if self._ids is None and self._reader is not None:
            return None if self._reader.memory is None else self._reader.memory.tolist()
        return None if self._ids is None else self._ids[1]

    @property
    def tokens(self) -> list[list[str]] | None:
        """The text of every token, a list for each sequence of the batch; None without a tokenizer. Can be set."""
        if self._tokens is None and self._reader is not None:
            return self._reader.tokens()
        return self._tokens

    @tokens.setter
    def tokens(self, tokens: list[list[str]] | None) -> None:
        self._tokens = _checked("tokens", tokens)

    @property
    def memory_tokens(self) -> list[list[str]] | None:
        """The text of the encoder's tokens, which cross-attention looks at. Can be set."""
        if self._memory_tokens is None and self._reader is not None:
            return self._reader.tokens(memory=True)
        return self._memory_tokens

    @memory_tokens.setter
    def memory_tokens(self, tokens: list[list[str]] | None) -> None:
        self._memory_tokens = _checked("memory_tokens", tokens)


def _checked(name: str, tokens: Any) -> list[list[str]] | None:
    if tokens is None:
        return None
    if not isinstance(tokens, list) or not all(
        isinstance(row, list) and all(isinstance(token, str) for token in row) for row in tokens
    ):
        raise InputTypeError(
            f"{name} are a list of strings for each sequence of the batch",
            expected="list[list[str]]",
            got=type(tokens).__name__,
            hint=f"seen.{name} = [['the', ' kids', …]]",
        )
    return tokens
