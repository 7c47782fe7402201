"""The lesson on dates: the examples are right, the model learns, and the alignment is what attention did.

The whole lesson takes most of a minute; here a reduced one is trained, and what the whole one reaches is written in it.
"""

from __future__ import annotations

import datetime
import itertools
import re

import pytest
import torch
from torch import Tensor

from sightline.errors import InputError
from sightline.lessons import Page, dates

PATTERNS = ("%B %d %Y", "%B %d, %Y", "%d %B %Y", "%d of %B %Y", "%b %d %Y", "%d.%m.%Y")


@pytest.fixture(scope="module")
def page() -> Page:
    """The lesson with a sixth of its training."""
    page = Page(dates.TITLE, dates.SOURCES)
    dates.lesson(page, steps=100)
    return page


@pytest.fixture(scope="module")
def model(page: Page) -> dates.Rewriter:
    return page.results["model"]


def test_every_spelling_can_be_read_back() -> None:
    _, held_out = dates.days()
    for date, (spell, pattern) in itertools.product(held_out[:300], zip(dates.SPELLINGS, PATTERNS, strict=True)):
        text = re.sub(r"(?<=\d)(st|nd|rd|th)", "", spell(date))
        assert datetime.datetime.strptime(text, pattern).date() == date
        assert len(spell(date)) <= dates.LONGEST
    pairs = dates.spell(held_out, seed=3)
    assert all(answer == date.isoformat() for (_, answer), date in zip(pairs, held_out, strict=True))


def test_days_held_out_are_not_learnt_from() -> None:
    learnt, held_out = dates.days()
    assert not set(learnt) & set(held_out)
    assert len({*learnt, *held_out}) == 73_049
    assert (len(held_out), min(learnt + held_out), max(learnt + held_out)) == (2000, dates.FIRST, dates.LAST)


def test_numbers_of_texts() -> None:
    ids, lengths = dates.encode(["May 5th 2000", "5.5.2000"])
    assert lengths.tolist() == [12, 8]
    spelled = ["".join(dates.ALPHABET[i - 1] for i in row if i) for row in ids.tolist()]
    assert spelled == ["May 5th 2000", "5.5.2000"]
    assert (ids[1, 8:] == dates.START).all()


@pytest.mark.parametrize("text", ["", "5/5/2000", "May 5th 2000 or so, or later", "Mai 5 €"])
def test_what_it_cannot_read_is_refused(text: str) -> None:
    with pytest.raises(InputError, match="this is not a date the model could read"):
        dates.Rewriter().rewrite([text])


def test_it_learns(page: Page, model: dates.Rewriter) -> None:
    """After a sixth of the training most characters are right; before it, hardly any."""
    assert page.results["curve"][0][1] > 3
    assert page.results["curve"][-1][1] < 0.9
    _, held_out = dates.days()
    pairs = dates.spell(held_out[:200], seed=1)

    def right(model: dates.Rewriter) -> float:
        answers = model.rewrite([text for text, _ in pairs])
        return sum(a == b for answer, (_, wanted) in zip(answers, pairs) for a, b in zip(answer, wanted)) / 2000

    assert right(model) > 0.6
    assert right(dates.Rewriter()) < 0.3


def test_the_same_seed_gives_the_same_model() -> None:
    torch.manual_seed(9)
    before = torch.rand(1)
    torch.manual_seed(9)
    one, two, other = (dates.train(steps=2, seed=seed).state_dict() for seed in (4, 4, 5))
    assert torch.equal(torch.rand(1), before)
    assert all(torch.equal(one[name], two[name]) for name in one)
    assert not torch.equal(one["readout.weight"], other["readout.weight"])


def slowly(model: dates.Rewriter, text: str) -> str:
    """The same without a cache, without padding and without a batch: everything anew for each character."""
    written = ""
    source, _ = dates.encode([text])
    for _ in range(10):
        before = torch.tensor([[0, *(dates.ALPHABET.index(c) + 1 for c in written)]])
        z = model.transformer(model.embed(source), model.embed(before))
        written += dates.ALPHABET[model.readout(z)[0, -1, 1:].argmax().item()]
    return written


def test_writing_with_a_cache_in_a_batch_is_writing_one_by_one(model: dates.Rewriter) -> None:
    texts = [text for text, _ in dates.spell(dates.days()[1][:12], seed=2)]
    assert len({len(text) for text in texts}) > 3
    exact = model.double()
    try:
        assert model.rewrite(texts) == [slowly(exact, text) for text in texts]
    finally:
        model.float()


def test_the_alignment_is_what_cross_attention_did(model: dates.Rewriter) -> None:
    """Against the softmax written out in float64, from what goes into the cross-attention."""
    text = "May 5th 2000"
    model.double()
    try:
        written, weights = model.alignment(text)
        given: list[tuple[Tensor, Tensor]] = []
        cross = model.transformer.decoder.layers[0].cross_attention
        hook = cross.register_forward_pre_hook(lambda _, inputs: given.append(inputs))
        model(*dates.encode([text]), dates.encode([written])[0])
        hook.remove()
        (x, memory) = given[0]
        wq, wk = (linear.weight.view(dates.HEADS, -1, dates.WIDTH) for linear in (cross.query, cross.key))
        bq, bk = (linear.bias.view(dates.HEADS, 1, -1) for linear in (cross.query, cross.key))
        q, k = x[0] @ wq.transpose(1, 2) + bq, memory[0] @ wk.transpose(1, 2) + bk
        expected = (q @ k.transpose(1, 2) / 4).softmax(-1)[:, :10]
        assert weights.shape == (4, 10, 12)
        # A watched map is kept in float32.
        torch.testing.assert_close(weights.double(), expected, atol=1e-6, rtol=0)
        torch.testing.assert_close(weights.sum(-1).double(), torch.ones(4, 10).double(), atol=1e-5, rtol=0)
    finally:
        model.float()


def test_fields_of_every_spelling() -> None:
    date = datetime.date(1987, 12, 3)
    for spell, day in zip(dates.SPELLINGS, ("3rd", "3", "3", "3rd", "3", "3"), strict=True):
        text = spell(date)
        said = {name: text[place.start : place.stop] for name, place in dates.fields(text).items()}
        assert said["year"] == "1987"
        assert said["day"] == day
        assert said["month"] in ("December", "Dec", "12")


def test_shares_add_up(page: Page) -> None:
    shares = page.results["shares"]
    assert shares.shape == (3, 4)
    assert (shares >= -1e-6).all()
    torch.testing.assert_close(shares.sum(1), torch.ones(3), atol=1e-4, rtol=0)


def test_the_page_states_what_was_found(page: Page, model: dates.Rewriter) -> None:
    pairs = dates.spell(dates.days()[1], seed=1)
    answers = model.rewrite([text for text, _ in pairs])
    exact = sum(answer == wanted for answer, (_, wanted) in zip(answers, pairs)) / len(pairs)
    assert page.results["exact"] == pytest.approx(exact)
    text = page.to_html()
    assert f"<strong>{exact:.1%}</strong>" in text
    assert text.count("<img src=") == 3
    for shown in dates.EXAMPLES_SHOWN:
        assert shown in text
    assert f"{page.results['shares'][0, 0].item():.2f}" in text
