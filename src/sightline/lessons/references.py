"""Which heads follow a reference? Sentences that differ in one verb, and with it in whom `they` are (S2.1).

Somebody who fears acts, and somebody who is scared acts: in `The kids feared the lions, so they ran away.` the first
noun ran, in `The kids scared the lions, so they ran away.` the second. Both sentences have the same words at the same
places but for the verb, and every two nouns come in both orders. A head that always looks at the first noun, at the
nearer one, or at lions, is right in exactly half of the sentences: only the verb tells.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

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
class Found:
    """What `search` found: for each head of a model, in how many of the sentences it looks at the right noun."""

    right: Tensor  # [verbs, layers, heads]: the share of sentences in which the right noun gets more than the other
    first: Tensor  # [layers, heads]: the share in which the first noun gets more than the second
    weights: Tensor  # [2, layers, heads]: mean weight on the right noun and on the other
    count: int  # of sentences

    @property
    def rates(self) -> Tensor:
        """Over all verbs, `[layers, heads]`."""
        return self.right.mean(0)

    def best(self, count: int = 1) -> list[tuple[int, int]]:
        """The heads that are right most often, as (layer, head)."""
        return [divmod(i, self.rates.shape[1]) for i in self.rates.flatten().topk(count).indices.tolist()]

    def by_chance(self) -> tuple[float, float]:
        """How often the best of all heads would be right if verbs told nothing, and how probable a best like ours is.

        If a head did not follow the reference, it would be right as often as wrong when the two verbs of a pair change
        places. So we change them in every possible choice of verbs (4,096 for twelve) and take the best head each time.
        Heads that are alike, and nouns that a head prefers, stay as they are.
        """
        lead = self.right.flatten(1) - 0.5  # [verbs, heads]
        signs = torch.tensor(list(itertools.product((1.0, -1.0), repeat=len(lead))), dtype=lead.dtype)
        best = (signs @ lead).amax(1) / len(lead)
        return 0.5 + float(best.mean()), float((best >= best[0] - 1e-9).double().mean())

    def held_out(self) -> list[tuple[int, int, float]]:
        """The best head of one half of the verbs, and how often it is right with the other half; then the other way."""
        found = []
        for part in (0, 1):
            chosen, tested = self.right[part::2].mean(0), self.right[1 - part :: 2].mean(0)
            layer, head = divmod(int(chosen.argmax()), chosen.shape[1])
            found.append((layer, head, float(tested[layer, head])))
        return found


def search(model: Any, verbs: Sequence[tuple[str, str, str]] = VERBS) -> Found:
    """In how many sentences each head of a model looks from `they` at whom it stands for, rather than at the other."""
    given = sentences(verbs)
    parts = [_looks(model, given[i : i + TOGETHER]) for i in range(0, len(given), TOGETHER)]
    to_first, to_second = torch.cat(parts).unbind(1)  # each [sentences, layers, heads]
    is_first = torch.tensor([one.first for one in given])[:, None, None]
    right, other = to_first.where(is_first, to_second), to_second.where(is_first, to_first)
    hits = (right > other).double()
    return Found(
        hits.unflatten(0, (len(verbs), -1)).mean(1),
        (to_first > to_second).double().mean(0),
        torch.stack((right.mean(0), other.mean(0))),
        len(given),
    )


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
