"""What is asked about a text, in words: how likely a token is after a place, or how much likelier than another."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from sightline.errors import InputError
from sightline.explore.writing import text_of
from sightline.targets import Target, logit

LONGEST = 200


@dataclass(frozen=True)
class Aim:
    """The logit of `token`, less that of `than`, after position `after`; empty: the likeliest, none, the last."""

    token: str = ""
    than: str = ""
    after: int | None = None


@dataclass(frozen=True)
class Aimed:
    """The same in ids."""

    token: int
    than: int | None
    after: int

    @property
    def target(self) -> Target:
        """As a function of logits."""
        return logit(self.token, than=self.than, at=self.after)


def aimed(aim: Aim, tokenizer: Any, ids: Sequence[int], row: Tensor) -> Aimed:
    """An aim as ids, where `row` are the logits after its place."""
    token = int(row.argmax()) if not aim.token else token_id(tokenizer, aim.token, row)
    than = None if not aim.than else token_id(tokenizer, aim.than, row)
    if than == token:
        raise InputError(
            "a token cannot be likelier than itself",
            expected="two tokens",
            got=repr(aim.than),
            hint="another one to compare with, or none",
        )
    return Aimed(token, than, place(aim, len(ids)))


def place(aim: Aim, length: int) -> int:
    """The position whose logits are read."""
    after = length - 1 if aim.after is None else aim.after
    if not 0 <= after < length:
        raise InputError("there is no such position", expected=f"0 to {length - 1}", got=after, hint="positions from 0")
    return after


def token_id(tokenizer: Any, text: str, row: Tensor) -> int:
    """The id of a text that is one token, as it is written or after a space: whichever is likelier here."""
    written = (text,) if text[:1].isspace() else (text, f" {text}")
    found = [tokenizer.encode(one, add_special_tokens=False).ids for one in written]
    single = [int(ids[0]) for ids in found if len(ids) == 1]
    if single:
        return max(single, key=lambda id: float(row[id]))
    ids = tokenizer.encode(text, add_special_tokens=False).ids
    parts = [text_of(tokenizer, ids[:i], id) for i, id in enumerate(ids)]
    raise InputError(
        "this is not one token",
        expected="a word or a piece of one that the model has as one token",
        got=f"{len(ids)}: {' | '.join(parts)}"[:LONGEST],
        hint=repr(parts[0]) if parts else "a word",
    )


def told(row: Tensor, tokenizer: Any, before: Sequence[int], id: int) -> dict[str, Any]:
    """A token of a row of logits: id, text, probability and logit."""
    row = row.float()
    p = float(row.softmax(-1)[id])
    return {"id": id, "text": text_of(tokenizer, before, id), "p": p, "logit": float(row[id])}


def logits_after(model: Any, ids: Sequence[int], after: int, whole: bool) -> Tensor:
    """The logits after a position: what comes later is not seen by it, and need not be there unless edits name it."""
    given = list(ids if whole else ids[: after + 1])
    with torch.no_grad():
        found: Tensor = model(torch.tensor([given], device=model.device), last=len(given) - after)
    return found[0, 0].float().cpu()
