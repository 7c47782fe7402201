"""`bank` in four sentences: MiniLM beside transformers' own in float64, and what the lesson says of both models."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from lesson_cases import fixed, give
from sightline.lessons import Page
from sightline.lessons.homonyms import SENTENCES
from sightline.models.checkpoints.builtin import BUILTINS


@pytest.fixture(scope="module")
def given() -> tuple[Page, str]:
    return give("homonyms")


def cosines(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    return (x / np.linalg.norm(x, axis=-1, keepdims=True)) @ (y / np.linalg.norm(y, axis=-1, keepdims=True)).T


def test_minilm_is_what_transformers_computes_in_float64(given: tuple[Page, str]) -> None:
    from tokenizers import Tokenizer
    from transformers import BertModel

    page, text = given
    folder = BUILTINS["minilm"].require()
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    tokenizer.no_padding()
    model = BertModel.from_pretrained(folder, dtype=torch.float64).eval()

    def states(sentence: str, word: str) -> np.ndarray:
        encoded = tokenizer.encode(sentence)
        with torch.no_grad():
            hidden = model(torch.tensor([encoded.ids]), output_hidden_states=True).hidden_states
        return np.stack([layer[0, encoded.tokens.index(word)].numpy() for layer in hidden])

    bank = np.stack([states(sentence, "bank") for sentence in SENTENCES])
    alone = {word: states(word, word) for word in ("money", "river")}
    np.testing.assert_allclose(page.results["minilm states"], bank, atol=2e-5)
    for at in range(7):
        lead = cosines(bank[:, at], alone["money"][at, None]) - cosines(bank[:, at], alone["river"][at, None])
        np.testing.assert_allclose(page.results[f"minilm lead {at}"], lead[:, 0], atol=2e-5)
        row = [str(at), *(fixed(x, 3) for x in lead[:, 0])]
        assert row in [line.split()[:5] for line in text.splitlines()]


@pytest.mark.parametrize("name, layers", [("minilm", 6), ("smollm2", 30)])
def test_one_word_becomes_two(given: tuple[Page, str], name: str, layers: int) -> None:
    page, text = given
    states = page.results[f"{name} states"].numpy()
    first, last = (cosines(states[:, at], states[:, at]) for at in (0, layers))
    assert first.min() > 0.94
    np.testing.assert_allclose(page.results[f"{name} alike {layers}"], last, atol=1e-9)
    same, other = (last[0, 1] + last[2, 3]) / 2, last[:2, 2:].mean()
    assert same > other + 0.05
    folded = " ".join(text.split())
    assert f"have a cosine of {same:.2f}, two of different meaning of {other:.2f}" in folded


def test_closer_to_money_in_one_and_to_the_river_in_the_other(given: tuple[Page, str]) -> None:
    page, _ = given
    for name, at in (("minilm", 5), ("smollm2", 30)):
        lead = page.results[f"{name} lead {at}"]
        assert (lead[:2] > 0).all()
        assert (lead[2:] < 0).all()
