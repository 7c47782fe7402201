"""Sentences in which only the verb tells: balanced, and counted as by hand."""

from __future__ import annotations

import re
from collections import Counter
from types import SimpleNamespace

import pytest
import torch

from sightline.lessons.references import LINKS, NOUNS, VERBS, search, sentences, together
from sightline.models import load


def right_and_wrong(text: str, first: bool) -> tuple[str, str]:
    _, a, b = re.match(r"The (\w+) \w+ the (\w+)", text).group(0, 1, 2)
    return (a, b) if first else (b, a)


@pytest.mark.parametrize("link", LINKS)
def test_neither_place_nor_noun_gives_it_away(link: str) -> None:
    given = sentences(link=link)
    assert len(given) == 192
    assert len({one.text for one in given}) == 192
    assert sum(one.first for one in given) == 96
    named = [right_and_wrong(one.text, one.first) for one in given]
    assert Counter(a for a, _ in named) == Counter(b for _, b in named)
    for one, other in zip(given[::2], given[1::2]):
        words = zip(one.text.split(), other.text.split(), strict=True)
        assert [i for i, (a, b) in enumerate(words) if a != b] == [2]  # the verb alone
        assert one.first != other.first


def test_because_turns_the_reference_round_and_leaves_who_feels() -> None:
    for so, because in zip(sentences(), sentences(link="because"), strict=True):
        assert so.text.split(",")[0] == because.text.split(",")[0]
        assert so.first != because.first


@pytest.mark.parametrize("name", ["minilm", "smollm2"])
def test_every_noun_and_verb_is_one_token(name: str) -> None:
    _, tokenizer = load(name)
    for word in {word for verbs in VERBS for word in verbs[:2]} | {noun for nouns in NOUNS for noun in nouns}:
        assert len(tokenizer.encode(f"The {word}", add_special_tokens=False).ids) == 2, word


class Model:
    """Five heads: the first noun, the second, the later one in the alphabet, whom `they` stands for, and who feels."""

    def observe(self, texts: list[str]) -> tuple[None, object]:
        tokens = [re.findall(r"\w+|[,.]", text) for text in texts]
        weights = torch.zeros(len(texts), 5, 1, 5)
        for row, (words, text) in enumerate(zip(tokens, texts)):
            first = next(one.first for link in LINKS for one in sentences(link=link) if one.text == text)
            feels = first == ("so" in words)
            for head, is_first in enumerate((True, False, words[1] > words[4], first, feels)):
                weights[row, head, 0, 1 if is_first else 4] = 0.5
        sight = SimpleNamespace(tile=lambda query, keys: weights[..., keys])
        sights = SimpleNamespace(tokens=tokens, values=lambda: [sight])
        return None, sights


def test_hits_of_heads_that_are_known() -> None:
    found = search(Model())
    assert found.rates.tolist() == [[0.5, 0.5, 0.5, 1.0, 1.0]]
    assert found.first.tolist() == [[1.0, 0.0, 0.5, 0.5, 0.5]]
    assert found.best() == [(0, 3)]
    assert found.weights[:, 0, 3].tolist() == [0.5, 0.0]
    assert found.held_out() == [(0, 3, 1.0), (0, 3, 1.0)]
    turned = search(Model(), link="because")
    assert turned.rates.tolist() == [[0.5, 0.5, 0.5, 1.0, 0.0]]
    both = together(found, turned)
    assert both.rates.tolist() == [[0.5, 0.5, 0.5, 1.0, 0.5]]
    assert both.count == 384
