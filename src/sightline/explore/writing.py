"""What a model writes, token by token: the probability of each, what it might have written instead, and its pace."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from sightline.errors import InputError

# Beside each written token so many others are listed; of what comes after a text so many.
OTHERS, NEXT = 4, 20
# A pause ends by itself: nobody else's text is run while one waits.
PATIENCE = 300.0
# Ids that are decoded with a token: blanks depend on what stands before it.
_BEFORE = 4


class Writing:
    """Chooses tokens for `new_tokens`: those that are given first, then the likeliest; and notes what it chose among.

    >>> writing = Writing(None, [7], begun=[2])
    >>> writing(torch.tensor([[0.0, 2.0, 1.0]])), writing(torch.tensor([[0.0, 2.0, 1.0]]))
    (tensor([2]), tensor([1]))
    >>> [round(token["p"], 3) for token in writing.tokens]
    [0.245, 0.665]
    """

    def __init__(self, tokenizer: Any, prompt: Sequence[int], begun: Sequence[int] = ()) -> None:
        self.tokenizer, self.ids, self.begun = tokenizer, list(prompt), list(begun)
        self.prompt = len(self.ids)
        self.tokens: list[dict[str, Any]] = []

    def __call__(self, logits: Tensor) -> Tensor:
        """The next token, `[1]`, of logits `[1, vocabulary]`."""
        row = logits[0].float()
        number = len(self.tokens)
        chosen = self.begun[number] if number < len(self.begun) else int(row.argmax())
        listed = likeliest(row, OTHERS + 1, self.tokenizer, self.ids)
        others = [one for one in listed if one["id"] != chosen][:OTHERS]
        own = {"id": chosen, "text": text_of(self.tokenizer, self.ids, chosen), "p": float(row.softmax(-1)[chosen])}
        self.tokens.append({**own, "others": [{name: one[name] for name in ("id", "text", "p")} for one in others]})
        self.ids.append(chosen)
        return torch.tensor([chosen], device=logits.device)

    def about(self) -> dict[str, Any]:
        """How many tokens the prompt has, and those that were written."""
        return {"prompt": self.prompt, "tokens": list(self.tokens)}


def likeliest(row: Tensor, n: int, tokenizer: Any, before: Sequence[int]) -> list[dict[str, Any]]:
    """The likeliest tokens of a row of logits: id, text, probability and logit."""
    row = row.detach().float()
    chances = row.softmax(-1)
    best = torch.topk(row, min(n, row.numel())).indices.tolist()
    return [
        {"id": id, "text": text_of(tokenizer, before, id), "p": float(chances[id]), "logit": float(row[id])}
        for id in best
    ]


def text_of(tokenizer: Any, before: Sequence[int], id: int) -> str:
    """The text that a token adds to those before it; a special token by its name."""
    if tokenizer is None:
        return f"#{id}"
    some = list(before[-_BEFORE:])
    start = tokenizer.decode(some, skip_special_tokens=False)
    text: str = tokenizer.decode([*some, id], skip_special_tokens=False)[len(start) :]
    return text or str(tokenizer.id_to_token(id) or f"#{id}")


class Pace:
    """Lets whoever watches a text being written stop it, step through it, and let it go on."""

    def __init__(self, over: threading.Event | None = None) -> None:
        self._over = threading.Event() if over is None else over
        self._changed = threading.Condition()
        self._steps = 0
        self.paused = self.stopped = False
        self.written: dict[str, Any] | None = None

    def set(self, do: str) -> None:
        """`pause`, `step` (one more token, then pause again), `go`, or `stop`: what is written is all."""
        if do not in ("pause", "step", "go", "stop"):
            raise InputError("no such pace", expected="pause, step, go or stop", got=repr(do)[:40], hint="pause")
        with self._changed:
            self.paused = do in ("pause", "step")
            self.stopped |= do == "stop"
            self._steps = self._steps + 1 if do == "step" else 0
            self._changed.notify_all()

    def wake(self) -> None:
        """Let go of whoever waits, without a step."""
        with self._changed:
            self._changed.notify_all()

    def wait(self, written: dict[str, Any]) -> None:
        """Say what was written; wait while it is paused, at most some minutes, and no longer than it is wanted."""
        self.written = written
        end = time.monotonic() + PATIENCE
        with self._changed:
            while self.paused and not self._steps and not self._over.is_set():
                left = end - time.monotonic()
                if left <= 0 or not self._changed.wait(left):
                    self.paused = False
            self._steps = max(0, self._steps - 1)
