"""Where trained heads look from `they`: MiniLM beside transformers' own, SmolLM2 from its q and k, in float64."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch

from lesson_cases import fixed, give, softmax
from sightline.lessons import Page
from sightline.lessons import kids_and_lions as lesson
from sightline.lessons.references import LINKS, VERBS, Found, search, together
from sightline.models.checkpoints.builtin import BUILTINS

TRIED = 2  # of twelve pairs of verbs
SENTENCE = "The kids were scared of the lions, so they left right away."


@pytest.fixture(scope="module")
def given() -> Iterator[tuple[Page, str]]:
    with pytest.MonkeyPatch.context() as patch:  # a sixth of the sentences; all of them are in the committed results
        patch.setattr(lesson, "search", lambda model, link="so": search(model, VERBS[:TRIED], link))
        yield give("kids-and-lions")


def kept(name: str, link: str) -> tuple[dict, Found]:
    """What is committed of a model, and hits as the lesson has them."""
    file = Path(__file__).parents[2] / "benchmarks/results/references-cpu.json"
    (row,) = (row for row in json.loads(file.read_text())["results"] if row["name"] == name)
    lines = torch.tensor([[int(x) for x in line.split()] for line in row[link]["all"]])
    shape = [int(x) + 1 for x in lines[:, :2].amax(0)]
    right = lines[:, 3:].T.double().unflatten(1, shape) / row["sentences_of_a_verb"]
    count = row[link]["sentences"]
    return row, Found(right, torch.zeros(2, *shape), count, lines[:, 2].unflatten(0, shape) / count)


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


def test_the_control_shows_that_the_head_follows_the_first_noun(given: tuple[Page, str]) -> None:
    page, text = given
    weights = page.results["minilm controls"]
    for sentence, pair in zip(lesson.CONTROLS, ((0.81, 0.04), (0.08, 0.65), (0.52, 0.14), (0.20, 0.43))):
        np.testing.assert_allclose(weights[sentence][3, 1], pair, atol=0.005)
        first = 0 if sentence.split()[1] == "kids" else 1
        assert weights[sentence][3, 1].argmax() == first
        assert f"{pair[0]:.2f} / {pair[1]:.2f}" in text
        assert weights[sentence][5, 2].argmax() == 0  # kids, whatever happens
        assert weights[sentence][5, 5].argmax() == 1  # lions
    # In the head that is best with `so`, all four are right.
    for sentence, who in lesson.CONTROLS.items():
        assert (page.results["smollm2 controls"][sentence][14, 8].argmax() == 0) == (who == "kids")


@pytest.mark.parametrize("link", LINKS)
@pytest.mark.parametrize("name", ["minilm", "smollm2"])
def test_hits_are_those_of_the_committed_results(given: tuple[Page, str], name: str, link: str) -> None:
    """So what the pages say, which is made from the results, is what the lesson finds."""
    row, committed = kept(name, link)
    found = given[0].results[f"{name} {'found' if link == 'so' else link}"]
    assert found.rates.shape == committed.rates.shape
    assert row["verbs"][:TRIED] == [" / ".join(verbs[:2]) for verbs in VERBS[:TRIED]]
    # A tie that another processor breaks is one sentence.
    each = row["sentences_of_a_verb"]
    assert (found.right - committed.right[:TRIED]).abs().max() <= 1 / each
    best = row[link]["best"][0]
    assert committed.best()[0] == (best["layer"], best["head"])
    assert round(committed.count * float(committed.rates.max())) == best["hits"]
    assert committed.by_chance() == pytest.approx((row[link]["best_by_chance"], row[link]["probability"]), abs=1e-4)


def test_the_conclusion_is_as_strong_as_the_numbers() -> None:
    so, because = ({name: kept(name, link)[1] for name in ("minilm", "smollm2")} for link in LINKS)
    both = {name: together(so[name], because[name]) for name in so}
    told = lesson.conclusion(both, so)
    assert told.count("**no head follows the reference**") == 2
    # Layer 14 head 8 of smollm2 is far above chance with `so`, and below one half where the reference is turned round.
    assert so["smollm2"].holds
    assert not both["smollm2"].holds
    assert float(because["smollm2"].rates[14, 8]) < 0.4 < 0.85 < float(so["smollm2"].rates[14, 8])
    assert "layer 14 head 8, right in 87% with `so`" in told
    assert "35% with `because`" in told
    assert so["smollm2"].best() == [(14, 8)]
    assert both["smollm2"].best() == [(14, 4)]
    # A head that is right with both would be said to follow it.
    so["smollm2"].right[:, 0, 0] = because["smollm2"].right[:, 0, 0] = 1.0
    follows = lesson.conclusion({"smollm2": together(so["smollm2"], because["smollm2"])}, so)
    assert "layer 0 head 0 follows the reference" in follows
