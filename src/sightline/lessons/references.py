"""Which heads follow a reference? Sentences that differ in one verb, and with it in whom `they` are (S2.1).

Somebody who fears acts, and somebody who is scared acts: in `The kids feared the lions, so they ran away.` the first
noun ran, in `The kids scared the lions, so they ran away.` the second. Both sentences have the same words at the same
places but for the verb, and every two nouns come in both orders. A head that always looks at the first noun, at the
nearer one, or at lions, is right in exactly half of the sentences: only the verb tells.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from sightline.lessons.counts import Hits, counted

WORD = "they"
# Who does the first acts; to whom the second is done acts. Each verb and noun is one token to both models.
VERBS = (
    ("feared", "scared", "ran away"),
    ("admired", "impressed", "clapped"),
    ("hated", "annoyed", "left"),
    ("loved", "delighted", "smiled"),
    ("believed", "convinced", "agreed"),
    ("liked", "pleased", "stayed"),
    ("noticed", "surprised", "stared"),
    ("heard", "woke", "got up"),
    ("enjoyed", "entertained", "laughed"),
    ("trusted", "persuaded", "paid"),
    ("respected", "inspired", "listened"),
    ("misunderstood", "confused", "asked again"),
)
NOUNS = (("kids", "lions"), ("teachers", "pupils"), ("nurses", "soldiers"), ("singers", "dancers"))
TOGETHER = 48  # sentences in one run of a model


class Sentence(NamedTuple):
    """A sentence, the number of its two verbs, and whether `they` are the first noun."""

    text: str
    verbs: int
    first: bool


def sentences(verbs: Sequence[tuple[str, str, str]] = VERBS) -> list[Sentence]:
    """All sentences; each two that follow each other are a pair, which differs in the verb alone.

    >>> [one.text for one in sentences()[:2]]
    ['The kids feared the lions, so they ran away.', 'The kids scared the lions, so they ran away.']
    >>> len(sentences()) // 2  # pairs
    96
    """
    orders = [order for nouns in NOUNS for order in (nouns, nouns[::-1])]
    return [
        Sentence(f"The {a} {verb} the {b}, so {WORD} {act}.", number, first)
        for number, (mine, theirs, act) in enumerate(verbs)
        for a, b in orders
        for verb, first in ((mine, True), (theirs, False))
    ]


@dataclass(frozen=True)
class Found(Hits):
    """What `search` found; a group is two verbs."""

    first: Tensor  # [layers, heads]: the share in which the first noun gets more than the second


def search(model: Any, verbs: Sequence[tuple[str, str, str]] = VERBS) -> Found:
    """In how many sentences each head of a model looks from `they` at whom it stands for, rather than at the other."""
    given = sentences(verbs)
    parts = [_looks(model, given[i : i + TOGETHER]) for i in range(0, len(given), TOGETHER)]
    to_first, to_second = torch.cat(parts).unbind(1)  # each [sentences, layers, heads]
    is_first = torch.tensor([one.first for one in given])[:, None, None]
    right, other = to_first.where(is_first, to_second), to_second.where(is_first, to_first)
    hits = counted(right, other, len(verbs))
    return Found(hits.right, hits.weights, hits.count, (to_first > to_second).double().mean(0))


def _looks(model: Any, given: Sequence[Sentence]) -> Tensor:
    """The weights from `they` to the two nouns, `[sentences, 2, layers, heads]`."""
    texts = [one.text for one in given]
    if hasattr(model, "decoder"):  # what follows `they` is not seen from there
        texts = [text[: text.index(WORD) + len(WORD)] for text in texts]
    _, sights = model.observe(texts)
    nouns = {noun for two in NOUNS for noun in two}
    where = {
        (one.index(WORD), *(i for i, token in enumerate(one) if token in nouns)) for one in sights.tokens
    }  # the same in all
    ((they, first, second),) = where
    keys = slice(first, second + 1)
    rows = [sight.tile(they, keys)[..., 0, :] for sight in sights.values()]  # each [sentences, heads, keys]
    return torch.stack(rows, -1)[..., [0, -1], :].permute(0, 2, 3, 1).double()
