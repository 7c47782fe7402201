"""Aspects of heads: cases that are balanced, counted with a model whose heads are known and with a trained one."""

from __future__ import annotations

from collections import Counter
from types import SimpleNamespace

import pytest
import torch

from lesson_cases import give
from sightline.lessons import aspects
from sightline.lessons.counts import Hits
from sightline.models import load


@pytest.mark.parametrize("aspect", aspects.ASPECTS)
def test_cases_differ_in_the_aspect_alone(aspect: str) -> None:
    make, pairs, _ = aspects.ASPECTS[aspect]
    cases = make(pairs)
    assert len(pairs) == 12
    for (text, query, key), (other, query_too, key_too) in cases:
        assert query == query_too
        assert len(text.split()) == len(other.split())
        assert (text.index(key) == other.index(key_too)) == (aspect != "grammar")
    if aspect in ("rhyme", "grammar"):  # there is no kind of word to prefer: each is right as often as not
        assert Counter(case.right[2] for case in cases) == Counter(case.other[2] for case in cases)
    if aspect == "grammar":
        first = [text.index(key) < text.index(other) for (text, _, key), (_, _, other) in cases]
        assert sum(first) == len(cases) / 2


@pytest.mark.parametrize("name", ["minilm", "smollm2"])
def test_every_word_is_one_token(name: str) -> None:
    _, tokenizer = load(name)
    words = {
        word for pairs in (aspects.PEOPLE, aspects.ACTIVITIES, aspects.SUBJECTS) for pair in pairs for word in pair
    }
    words |= {word for pair in aspects.RHYMES for two in pair for word in two}
    for word in words:
        assert len(tokenizer.encode(f"the {word}", add_special_tokens=False).ids) == 2, word


class Model:
    """Two heads: one looks at the first letter's place in the alphabet, one at the second word alone."""

    def observe(self, texts: list[str]) -> tuple[None, object]:
        tokens = [text.split() for text in texts]
        maps = torch.zeros(len(texts), 2, 8, 8)
        for row, words in enumerate(tokens):
            for place, word in enumerate(words):
                maps[row, 0, :, place] = (ord(word[0]) - 96) / 26
            maps[row, 1, :, 1] = 1.0
        sight = SimpleNamespace(tile=lambda rows, columns: maps)
        return None, SimpleNamespace(tokens=tokens, values=lambda: [sight])


def test_hits_of_heads_that_are_known() -> None:
    hits = aspects.search(Model(), aspects.grammar(aspects.SUBJECTS[:3]), 3)
    assert hits.rates.tolist() == [[0.5, 0.5]]
    case = aspects.Case(("the zebra ran", "ran", "zebra"), ("the ant ran", "ran", "ant"))
    assert aspects.search(Model(), [case], 1).rates.tolist() == [[1.0, 0.0]]


def test_the_lesson_says_what_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    few = {name: (make, pairs[:2], text) for name, (make, pairs, text) in aspects.ASPECTS.items() if name[1] in "hr"}
    monkeypatch.setattr(aspects, "ASPECTS", few)
    page, text = give("aspects")
    minilm = page.results["minilm"]
    assert minilm["grammar"].right[:, 3, 1].eq(1).all()  # a verb's subject, whichever place it has
    assert "layer 3 head 1" in text
    assert not page.results["smollm2"]["rhyme"].holds


def test_words_follow_the_numbers() -> None:
    there = Hits(torch.ones(4, 1, 1), torch.zeros(2, 1, 1), 8)
    missing = Hits(torch.full((4, 1, 1), 0.5), torch.zeros(2, 1, 1), 8)
    assert "is there for people (layer 0 head 0). For rhyme we found none." in aspects.in_words(
        "toy", {"people": there, "rhyme": missing}
    )
    assert "is there for none of them." in aspects.in_words("toy", {"rhyme": missing})
