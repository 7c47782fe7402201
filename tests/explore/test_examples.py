"""The page's gallery says what is found where: it is."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

import sightline as sl
from model_cases import minilm, minilm_tokenizer, smollm2, smollm2_tokenizer

EXAMPLES = {
    one["name"]: one
    for one in json.loads((Path(__file__).parents[2] / "web" / "src" / "examples.json").read_text(encoding="utf-8"))
}


MODELS = {"minilm": (minilm, minilm_tokenizer), "smollm2": (smollm2, smollm2_tokenizer)}


def head(one: dict[str, Any], number: int | None = None) -> tuple[list[str], torch.Tensor]:
    """The tokens of an example and the map of its head."""
    made, tokenizer = (get() for get in MODELS[one["model"]])
    encoding = tokenizer.encode(one["text"])
    with torch.no_grad(), sl.watch(made, layers=[one["layer"]], keep_qk=True) as seen:
        made(torch.tensor([encoding.ids]))
    return encoding.tokens, seen[0].tile(slice(None), slice(None))[0, one["head"] if number is None else number]


@pytest.mark.parametrize("name", EXAMPLES)
def test_an_example_shows_what_it_says(name: str) -> None:
    one = EXAMPLES[name]
    _, weights = head(one)
    assert weights[one["q"], one["k"]].item() == pytest.approx(one["weight"], abs=2e-3)
    assert one["control"] in EXAMPLES if "control" in one else True
    said = one["found"]
    assert f"layer {one['layer']} head {one['head']}" in said.lower()


def test_the_head_of_the_reference_follows_the_first_noun() -> None:
    """Without its control the first example would claim what is not so."""
    for name, noun in (("Reference", "kids"), ("Reference, swapped", "lions")):
        tokens, weights = head(EXAMPLES[name])
        assert tokens[int(weights[10].argmax())] == noun
        assert tokens[2] == noun


def test_all_six_brackets_find_their_own() -> None:
    tokens, weights = head(EXAMPLES["Brackets"])
    opened, pairs = [], []
    for i, token in enumerate(tokens):
        if token.strip("\u0120") in list("([{"):
            opened.append(i)
        elif token.strip("\u0120") in list(")]}"):
            pairs.append((i, opened.pop()))
    assert len(pairs) == 6
    assert all(int(weights[close, 1:].argmax()) + 1 == own for close, own in pairs)


def test_the_last_word_looks_at_the_needle() -> None:
    tokens, weights = head(EXAMPLES["Needle in a long text"])
    digits = [i for i, token in enumerate(tokens) if token in list("7392")]
    assert len(digits) == 4
    assert weights[-1, digits].sum().item() == pytest.approx(0.95, abs=0.01)
