"""Homonyms: MiniLM beside transformers' own in float64, and what the lesson says of both models, by hand."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch

from lesson_cases import give
from sightline.lessons import Page
from sightline.lessons.homonyms import LIKE, SENTENCES, Spread, conclusion, draw, halves_as_good, spread
from sightline.models.checkpoints.builtin import BUILTINS


@pytest.fixture(scope="module")
def given() -> tuple[Page, str]:
    return give("homonyms")


def cosines(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    return (x / np.linalg.norm(x, axis=-1, keepdims=True)) @ (y / np.linalg.norm(y, axis=-1, keepdims=True)).T


def test_minilm_is_what_transformers_computes_in_float64(given: tuple[Page, str]) -> None:
    from tokenizers import Tokenizer
    from transformers import BertModel

    folder = BUILTINS["minilm"].require()
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    tokenizer.no_padding()
    model = BertModel.from_pretrained(folder, dtype=torch.float64).eval()
    found = given[0].results["minilm bank"]
    sentences = [text for texts in SENTENCES["bank"].values() for text in texts]
    for place in (0, 4, 11):
        encoded = tokenizer.encode(sentences[place])
        with torch.no_grad():
            hidden = model(torch.tensor([encoded.ids]), output_hidden_states=True).hidden_states
        expected = np.stack([layer[0, encoded.tokens.index("bank")].numpy() for layer in hidden])
        np.testing.assert_allclose(found[place], expected, atol=2e-5)


@pytest.mark.parametrize("name, layers", [("minilm", 6), ("smollm2", 30)])
def test_the_table_by_hand(given: tuple[Page, str], name: str, layers: int) -> None:
    page, text = given
    lines = [line.split() for line in text.splitlines()]
    for word, at in itertools.product(SENTENCES, (layers // 2, layers)):
        table = cosines(*[page.results[f"{name} {word}"][:, at].numpy()] * 2)
        pairs = list(itertools.combinations(range(12), 2))
        same = [table[i, j] for i, j in pairs if (i < 6) == (j < 6)]
        other = [table[i, j] for i, j in pairs if (i < 6) != (j < 6)]
        nearer = 0
        for i in range(12):
            own = [table[i, j] for j in range(12) if j != i and (i < 6) == (j < 6)]
            nearer += np.mean(own) > np.mean([table[i, j] for j in range(12) if (i < 6) != (j < 6)])
        overlap = np.mean([a > b for a in other for b in same])
        found = page.results[f"{name} spreads"][word][at]
        assert found.overlap == pytest.approx(overlap)
        assert found.own == nearer
        row = [word, str(at), f"{np.mean(same):.2f}", "±", f"{np.std(same, ddof=1):.2f}", f"{np.mean(other):.2f}", "±"]
        assert row in [line[:7] for line in lines]


def test_the_claim_is_as_strong_as_the_numbers(given: tuple[Page, str]) -> None:
    page, text = given
    folded = " ".join(text.split())
    assert "has become two" not in folded
    for name, middle in (("minilm", 3), ("smollm2", 15)):
        spreads = page.results[f"{name} spreads"]
        assert all(one[middle].overlap < 0.4 and one[middle].own >= 9 for one in spreads.values())
        own, overlap = (sum(getattr(one[middle], of) for one in spreads.values()) for of in ("own", "overlap"))
        assert f"{own} of 48 sentences are nearer to their own meaning after layer {middle}" in folded
        assert f"the overlap is {overlap / 4:.2f} on average" in folded
    assert page.results["smollm2 bank"][:, 0].unique(dim=0).shape[0] == 1  # a decoder's embedding knows no place
    assert "all the same" in folded


@pytest.mark.parametrize("name, at", [("minilm", 3), ("smollm2", 30)])
def test_halves_by_hand(given: tuple[Page, str], name: str, at: int) -> None:
    vectors = given[0].results[f"{name} bat"][:, at]

    def overlap(first: tuple[int, ...]) -> float:
        order = [*first, *(i for i in range(12) if i not in first)]
        return spread(vectors[order]).overlap

    ours = overlap((0, 1, 2, 3, 4, 5))
    as_good = sum(overlap((0, *rest)) <= ours + 1e-9 for rest in itertools.combinations(range(1, 12), 5))
    assert given[0].results[f"{name} halves"]["bat", at] == halves_as_good(vectors) == as_good < 462 / 20


def test_a_word_that_was_not_moved_is_not_claimed(given: tuple[Page, str]) -> None:
    results = dict(given[0].results)
    assert "in all four words and in both models" in conclusion(results)
    results["smollm2 halves"] = results["smollm2 halves"] | {("bat", 15): 40}
    assert "So context moves bank, spring, match apart by meaning, and not the others." in conclusion(results)


def test_where_the_riddles_lie(given: tuple[Page, str]) -> None:
    page, text = given
    folded = " ".join(text.split())
    assert "After layer 3 both riddles lie with the comparison." in folded
    assert "After layer 15 Time lies with the comparison, and Fruit between the two." in folded
    known, (how, fond, time, fruit) = page.results["smollm2 like 15"]
    assert (known.own, known.count) == (10, 10)
    assert how < time < 0 < fruit < fond


def test_overlap_of_clouds_that_are_known() -> None:
    assert Spread(torch.tensor([0.9, 0.9]), torch.tensor([0.1, 0.9]), 0, 4).overlap == 0.25
    apart = torch.eye(2).repeat_interleave(3, 0) + 0.01 * torch.arange(12.0).reshape(6, 2)
    found = spread(apart)
    assert (found.overlap, found.own, found.count) == (0.0, 6, 6)
    assert (len(found.same), len(found.other)) == (6, 9)


def test_every_pair_is_drawn(given: tuple[Page, str]) -> None:
    figure = draw(given[0].results["minilm spreads"], (0, 3, 6), "minilm")
    for axes in figure.axes:
        dots = [line for line in axes.lines if line.get_marker() == "."]
        assert [len(line.get_xdata()) for line in dots] == [30, 36] * 4
    assert figure.axes[0].get_xticklabels()[1].get_text() == "bat"


def test_the_riddles_come_last() -> None:
    assert [texts[-1].split()[1] for texts in LIKE.values()] == ["flies", "flies"]
