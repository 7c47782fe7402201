"""Where trained heads look from `they`: MiniLM beside transformers' own, SmolLM2 from its q and k, in float64."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from lesson_cases import fixed, give, softmax
from sightline.lessons import Page
from sightline.models.checkpoints.builtin import BUILTINS

SENTENCE = "The kids were scared of the lions, so they left right away."


@pytest.fixture(scope="module")
def given() -> tuple[Page, str]:
    return give("kids-and-lions")


def test_minilm_is_what_transformers_computes_in_float64(given: tuple[Page, str]) -> None:
    from tokenizers import Tokenizer
    from transformers import BertModel

    page, _ = given
    folder = BUILTINS["minilm"].require()
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    tokenizer.no_padding()
    ids = torch.tensor([tokenizer.encode(SENTENCE).ids])
    model = BertModel.from_pretrained(folder, attn_implementation="eager", dtype=torch.float64).eval()
    with torch.no_grad():
        maps = model(ids, output_attentions=True).attentions
    they = page.results["minilm tokens"].index("they")
    expected = torch.stack([layer[0, :, they] for layer in maps])
    np.testing.assert_allclose(page.results["minilm rows"], expected, atol=1e-5)


@pytest.mark.parametrize(
    "name, layer, head, weight, shape",
    [("minilm", 3, 1, 0.814, (6, 12, 16)), ("smollm2", 16, 5, 0.600, (30, 9, 14))],
)
def test_the_strongest_head(
    given: tuple[Page, str], name: str, layer: int, head: int, weight: float, shape: tuple[int, ...]
) -> None:
    page, text = given
    assert page.results[f"{name} rows"].shape == shape
    found = page.results[f"{name} best"]
    assert found[:2] == (layer, head)
    assert found[2] == pytest.approx(weight, abs=0.003)
    steps, tokens = page.results[f"{name} steps"], page.results[f"{name} tokens"]
    they, kids = tokens.index("they"), tokens.index("kids")
    key_head = head // (steps.heads // len(steps["k"]))
    q, k = steps["q"][head, they].double().numpy(), steps["k"][key_head].double().numpy()
    scores = k @ q / math.sqrt(len(q))
    if name == "smollm2":
        scores[they + 1 :] = -np.inf
    exact = softmax(scores)
    assert found[2] == pytest.approx(exact[kids], abs=1e-5)
    np.testing.assert_allclose(page.results[f"{name} rows"][layer, head], exact, atol=1e-5)
    assert ["kids", str(layer), str(head), fixed(exact[kids], 3)] in [line.split() for line in text.splitlines()]


def test_others_look_at_the_lions_and_the_lesson_says_so(given: tuple[Page, str]) -> None:
    page, text = given
    for name in ("minilm", "smollm2"):
        tokens, rows = page.results[f"{name} tokens"], page.results[f"{name} rows"]
        to_kids, to_lions = rows[..., tokens.index("kids")], rows[..., tokens.index("lions")]
        assert to_lions.max() > 0.4
        folded = " ".join(text.split())
        assert f"{int((to_kids > to_lions).sum())} of {to_kids.numel()} heads give kids more weight" in folded
        assert f"kids gets {float(to_kids.mean()):.3f}" in folded
    assert "others that look at lions" in folded
