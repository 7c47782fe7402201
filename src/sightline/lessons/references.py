"""Which heads follow a reference? Sentences that differ in one verb, and with it in whom `they` are (S2.1).

Somebody who fears acts, and somebody who is scared acts: in `The kids feared the lions, so they ran away.` the first
noun ran, in `The kids scared the lions, so they ran away.` the second. Both sentences have the same words at the same
places but for the verb, and every two nouns come in both orders. A head that always looks at the first noun, at the
nearer one, or at lions, is right in exactly half of the sentences: only the verb tells.

With `because` the reference turns round, and nothing else does: in `The kids feared the lions, because they shouted.`
the lions shouted. A head that finds who feels, and not who is meant, is right with `so` and wrong with `because`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from sightline.lessons.counts import Hits, counted

WORD = "they"
# Who does the first feels, as does to whom the second is done; that one acts (so), because the other did something.
# Each verb and noun is one token to both models.
VERBS = (
    ("feared", "scared", "ran away", "shouted"),
    ("admired", "impressed", "clapped", "won"),
    ("hated", "annoyed", "left", "cheated"),
    ("loved", "delighted", "smiled", "sang well"),
    ("believed", "convinced", "agreed", "had proof"),
    ("liked", "pleased", "stayed", "helped"),
    ("noticed", "surprised", "stared", "waved"),
    ("heard", "woke", "got up", "screamed"),
    ("enjoyed", "entertained", "laughed", "told jokes"),
    ("trusted", "persuaded", "paid", "were honest"),
    ("respected", "inspired", "listened", "were brave"),
    ("misunderstood", "confused", "asked again", "mumbled"),
)
NOUNS = (("kids", "lions"), ("teachers", "pupils"), ("nurses", "soldiers"), ("singers", "dancers"))
LINKS = ("so", "because")
TOGETHER = 48  # sentences in one run of a model


class Sentence(NamedTuple):
    """A sentence, the number of its two verbs, and whether `they` are the first noun."""

    text: str
    verbs: int
    first: bool


def sentences(verbs: Sequence[tuple[str, str, str, str]] = VERBS, link: str = "so") -> list[Sentence]:
    """All sentences; each two that follow each other are a pair, which differs in the verb alone.

    >>> [one.text for one in sentences()[:2]]
    ['The kids feared the lions, so they ran away.', 'The kids scared the lions, so they ran away.']
    >>> len(sentences()) // 2  # pairs
    96
    >>> sentences(link="because")[0]
    Sentence(text='The kids feared the lions, because they shouted.', verbs=0, first=False)
    """
    orders = [order for nouns in NOUNS for order in (nouns, nouns[::-1])]
    return [
        Sentence(f"The {a} {verb} the {b}, {link} {WORD} {acts[LINKS.index(link)]}.", number, first == (link == "so"))
        for number, (mine, theirs, *acts) in enumerate(verbs)
        for a, b in orders
        for verb, first in ((mine, True), (theirs, False))
    ]


@dataclass(frozen=True)
class Found(Hits):
    """What `search` found; a group is two verbs."""

    first: Tensor  # [layers, heads]: the share in which the first noun gets more than the second


def search(model: Any, verbs: Sequence[tuple[str, str, str, str]] = VERBS, link: str = "so") -> Found:
    """In how many sentences each head of a model looks from `they` at whom it stands for, rather than at the other."""
    given = sentences(verbs, link)
    parts = [_looks(model, given[i : i + TOGETHER]) for i in range(0, len(given), TOGETHER)]
    to_first, to_second = torch.cat(parts).unbind(1)  # each [sentences, layers, heads]
    is_first = torch.tensor([one.first for one in given])[:, None, None]
    right, other = to_first.where(is_first, to_second), to_second.where(is_first, to_first)
    hits = counted(right, other, len(verbs))
    return Found(hits.right, hits.weights, hits.count, (to_first > to_second).double().mean(0))


def together(one: Found, other: Found) -> Found:
    """What was found in as many other sentences of the same verbs, and before, as one."""
    right, weights, first = ((getattr(one, name) + getattr(other, name)) / 2 for name in ("right", "weights", "first"))
    return Found(right, weights, one.count + other.count, first)


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
