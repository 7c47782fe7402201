"""Text out of tokens that come one by one: whole characters only, and an end where a stop string begins."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from sightline.models.text.labels import UNFINISHED

if TYPE_CHECKING:
    from tokenizers import Tokenizer

# Tokens of the prompt that are decoded with the new ones: blanks depend on what stands before them.
_BEFORE = 4


class TextStream:
    """The text of a sequence of tokens, in pieces.

    A piece never ends inside a character, and what might be the beginning of a stop string is held back until it is
    known. All pieces together are the text that continues the prompt; an unfinished character at the end is dropped.

    Args:
        tokenizer: turns ids into text.
        prompt: the ids that came before.
        stop: strings at which the text ends, without them.
    """

    def __init__(self, tokenizer: Tokenizer, prompt: Sequence[int], stop: Sequence[str] = ()) -> None:
        self.tokenizer, self.stop = tokenizer, tuple(stop)
        self.ids = list(prompt[-_BEFORE:])
        self.known = len(self.ids)  # ids whose text was given out, or belongs to the prompt
        self.held = ""
        self.stopped = False

    def add(self, token: int) -> str:
        """The piece of text that has become certain with one more token; often a word, sometimes nothing."""
        self.ids.append(token)
        text = self._new()
        if text.endswith(UNFINISHED):
            return ""
        self._advance()
        return self._release(text)

    def end(self) -> str:
        """What was held back, once no more tokens come."""
        if self.stopped:
            return ""
        text = self._release(self._new().rstrip(UNFINISHED))
        text, self.held = text + self.held, ""
        return text

    def _new(self) -> str:
        before = self.tokenizer.decode(self.ids[: self.known])
        text: str = self.tokenizer.decode(self.ids)
        return text[len(before) :]

    def _advance(self) -> None:
        """Forget all but the newest ids, which the next ones are decoded with."""
        self.ids = self.ids[max(0, len(self.ids) - _BEFORE) :]
        self.known = len(self.ids)

    def _release(self, text: str) -> str:
        self.held += text
        found = [place for stop in self.stop if (place := self.held.find(stop)) >= 0]
        if found:
            self.stopped, text, self.held = True, self.held[: min(found)], ""
            return text
        keep = max((_overlap(self.held, stop) for stop in self.stop), default=0)
        cut = len(self.held) - keep
        text, self.held = self.held[:cut], self.held[cut:]
        return text


def _overlap(text: str, stop: str) -> int:
    """How many characters at the end of a text could be the beginning of a stop string.

    >>> _overlap("one\\n", "\\n\\n")
    1
    """
    return next((n for n in range(min(len(text), len(stop) - 1), 0, -1) if text.endswith(stop[:n])), 0)
