"""Do heads take different aspects? People, activities, rhyme and grammar, in all heads of two models (S3.5)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from sightline.lessons.counts import Hits, counted
from sightline.lessons.page import Page
from sightline.models.loading import load

TITLE = "Aspects: people, activities, rhyme, grammar"
SOURCES = ("S3.5",)
TOGETHER = 48  # sentences in one run of a model


class Case(NamedTuple):
    """Two sentences, or one: where a word looks should be more at `right` than, in the other, at `other`."""

    right: tuple[str, str, str]  # the sentence, the word that looks, the word that is looked at
    other: tuple[str, str, str]


# Twelve pairs of words for each aspect, and frames for them. Every word is one token to both models.
PEOPLE = (
    ("teacher", "table"), ("doctor", "bottle"), ("woman", "window"), ("soldier", "wagon"), ("farmer", "basket"),
    ("boy", "box"), ("king", "coin"), ("lawyer", "lamp"), ("child", "chair"), ("nurse", "knife"),
    ("artist", "carpet"), ("guest", "gate"),
)  # fmt: skip
ACTIVITIES = (
    ("race", "rock"), ("dance", "desk"), ("hunt", "hat"), ("fight", "fence"), ("march", "mirror"),
    ("concert", "candle"), ("game", "garden"), ("wedding", "wagon"), ("lesson", "ladder"), ("trip", "tree"),
    ("battle", "bottle"), ("meeting", "mountain"),
)  # fmt: skip
FRAMES = ("We looked at the {} near the old house that day.", "Behind the wall there was a {} which nobody knew.")
# wait and gate rhyme, rest and chest do; wait and chest do not, nor do rest and gate.
RHYMES = (
    (("wait", "gate"), ("rest", "chest")), (("night", "light"), ("day", "way")), (("moon", "spoon"), ("sun", "gun")),
    (("rain", "train"), ("snow", "crow")), (("tree", "sea"), ("hill", "mill")), (("bread", "bed"), ("meat", "seat")),
    (("boat", "coat"), ("bell", "shell")), (("fall", "wall"), ("stand", "land")),
    (("house", "mouse"), ("door", "floor")),
    (("cold", "gold"), ("dark", "park")), (("cook", "book"), ("sing", "ring")), (("cat", "hat"), ("dog", "log")),
)  # fmt: skip
VERSE = "Oh how I love the {}, and how I love the {}"
# A verb and its subject: the same two nouns, once the first is the subject and once the second, in both orders.
SUBJECTS = (
    ("key", "box"), ("ship", "island"), ("bird", "tree"), ("book", "chair"), ("car", "bridge"), ("ball", "fence"),
    ("cup", "table"), ("horse", "wagon"), ("train", "tower"), ("dog", "gate"), ("lamp", "wall"), ("stone", "window"),
)  # fmt: skip


def people(pairs: Sequence[tuple[str, str]] = PEOPLE) -> list[Case]:
    """A person or a thing at the same place: who of them gets more from the last word?"""
    cases = []
    for one, other in pairs:
        for frame in FRAMES:
            last = frame.split()[-1].rstrip(".")
            cases.append(Case((frame.format(one), last, one), (frame.format(other), last, other)))
    return cases


def activities(pairs: Sequence[tuple[str, str]] = ACTIVITIES) -> list[Case]:
    """The same with what is done in the place of what is there."""
    return people(pairs)


def rhyme(pairs: Sequence[Any] = RHYMES) -> list[Case]:
    """The last word of a verse looks at the end of the line before: more if the two rhyme?"""
    cases = []
    for one, other in pairs:
        for (a, b), (c, d) in ((one, other), (other, one)):  # each word is as often the right one as the other
            cases.append(Case((VERSE.format(a, b), b, a), (VERSE.format(c, b), b, c)))
            cases.append(Case((VERSE.format(b, a), a, b), (VERSE.format(d, a), a, d)))
    return cases


def grammar(pairs: Sequence[tuple[str, str]] = SUBJECTS) -> list[Case]:
    """A verb looks at its subject rather than at another noun, whether the subject comes first or second."""
    cases = []
    for one, other in pairs:
        for a, b in ((one, other), (other, one)):
            for text in (f"The {a} near the {b} disappeared", f"Near the {b} the {a} disappeared"):
                cases.append(Case((text, "disappeared", a), (text, "disappeared", b)))
    return cases


ASPECTS = {
    "people": (people, PEOPLE, "`We looked at the teacher …` beside `We looked at the table …`, from the last word"),
    "activities": (activities, ACTIVITIES, "`… the race …` beside `… the rock …`, in the same sentences"),
    "rhyme": (rhyme, RHYMES, "`… love the wait, … love the gate` beside `… love the rest, … love the gate`"),
    "grammar": (
        grammar,
        SUBJECTS,
        "a verb to its subject: `The key near the box disappeared`, `Near the box the key …`",
    ),
}


def lesson(page: Page) -> None:
    models = {name: load(name)[0] for name in ("minilm", "smollm2")}  # one that is not installed is said first
    page.text(
        """Several heads, so the notes say, take different aspects of a sentence: one looks at people, one at
        activities, one at rhyme, one at grammar. That is easy to believe of any map if one sentence is enough. Here
        each aspect is a question with an answer, asked of every head of two trained models over twelve pairs of words:
        does the head give more weight to the word that has the aspect than to one that has not, in the same place?
        A head that does not care is right in half of the cases."""
    )
    page.table(
        ["aspect", "cases", "for example"],
        [[name, len(make(pairs)), example] for name, (make, pairs, example) in ASPECTS.items()],
    )
    page.text(
        """**Predict** before you read on: which of the four has a head of its own? Of which would you expect it in a
        model that was trained on text alone, and never heard a sound?"""
    )
    for name, model in models.items():
        page.heading(name)
        found = {aspect: search(model, make(pairs), len(pairs)) for aspect, (make, pairs, _) in ASPECTS.items()}
        page.keep(name, found)
        page.table(
            ["aspect", "best head", "others as good", "hits", "best by chance", "held out", "weight", "of the other"],
            [_row(aspect, hits) for aspect, hits in found.items()],
            caption="held out: the best head of one half of the words, tried with the other, and the other way round. "
            "Weight: the mean on the word that has the aspect, and on the one that has not.",
        )
        page.text(in_words(name, found))
        heads = {hits.best()[0]: None for hits in found.values()}
        page.table(
            ["head", *found],
            [
                [f"layer {layer} head {head}", *(f"{float(hits.rates[layer, head]):.0%}" for hits in found.values())]
                for layer, head in heads
            ],
            caption="A head of its own? The same heads, asked all four questions. One that does not care has 50%.",
        )
    page.heading("What this shows, and what not")
    page.text(
        """The head of minilm that takes a verb's subject, layer 3 head 1, is the one that seemed to know who `they`
        were in the lesson `kids-and-lions`, and went to the first noun whoever left. There the first noun is the
        subject too, so those sentences cannot tell which of the two it follows from `they`; from a verb, here, it is
        the subject in both places.""",
        """A head for one aspect would be right in its own question, and not care in the others. Few are like that: the
        last tables show heads that are right in several, and several heads that are right in one. A head that prefers
        one kind of word may also do so for another reason: words of a kind are alike in much else, such as how frequent
        they are. And where the weights are a hundredth or so, a head prefers, but hardly looks. The names that we give
        to heads are ours; the counts say how far such a name carries.""",
    )


def in_words(name: str, found: dict[str, Hits]) -> str:
    """What is there, as strong as the numbers."""
    there = [
        f"{aspect} (layer {layer} head {head}{_as_good(hits)})"
        for aspect, hits in found.items()
        if hits.holds
        for layer, head in hits.best()
    ]
    not_there = [aspect for aspect, hits in found.items() if not hits.holds]
    told = (
        f"In {name} a head that is right in three of four cases, with words that did not choose it too, is there for "
    )
    told += f"{_list(there)}." if there else "none of them."
    return told + (f" For {_list(not_there)} we found none." if not_there and there else "")


def _as_good(hits: Hits) -> str:
    others = hits.equals - 1
    return f", and {others} other{'s' if others > 1 else ''} as good" if others else ""


def _list(words: Sequence[str]) -> str:
    return " and ".join([", ".join(words[:-1]), words[-1]] if len(words) > 1 else words)


def _row(aspect: str, hits: Hits) -> list[Any]:
    layer, head = hits.best()[0]
    rate = float(hits.rates[layer, head])
    return [
        aspect,
        f"layer {layer} head {head}",
        hits.equals - 1,
        f"{round(hits.count * rate)} of {hits.count} ({rate:.0%})",
        f"{hits.by_chance()[0]:.0%}",
        ", ".join(f"{share:.0%}" for *_, share in hits.held_out()),
        *hits.weights[:, layer, head].tolist(),
    ]


def search(model: Any, cases: Sequence[Case], groups: int) -> Hits:
    """In how many cases each head gives more weight to the word with the aspect."""
    weights = _weights(model, [case.right for case in cases] + [case.other for case in cases])
    right, other = weights.chunk(2)
    return counted(right, other, groups)


def _weights(model: Any, looks: Sequence[tuple[str, str, str]]) -> Tensor:
    """The weight from one word to another in each of some sentences, `[sentences, layers, heads]`."""
    unique = list(dict.fromkeys(text for text, _, _ in looks))
    rows: dict[str, tuple[list[str], Tensor]] = {}
    for start in range(0, len(unique), TOGETHER):
        texts = unique[start : start + TOGETHER]
        _, sights = model.observe(texts)
        maps = torch.stack([sight.tile(slice(None), slice(None)) for sight in sights.values()], 1)
        for text, tokens, one in zip(texts, sights.tokens, maps):
            rows[text] = tokens, one  # [layers, heads, queries, keys]
    found = []
    for text, query, key in looks:
        tokens, maps = rows[text]
        found.append(maps[..., tokens.index(query), tokens.index(key)])
    return torch.stack(found).double()
