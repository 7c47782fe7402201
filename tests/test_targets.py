"""Targets: one number per example, of tensors and of transformers' outputs, with its gradient."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

import sightline as sl
import watch_cases as tiny
from sightline.errors import InputError, InputTypeError
from sightline.targets import Target


def test_logits_of_one_token_and_of_two():
    logits = torch.randn(2, 5, 7)
    assert torch.equal(sl.targets.logit(3)(logits), logits[:, -1, 3])
    assert torch.equal(sl.targets.logit(3, than=4, at=1)(logits), logits[:, 1, 3] - logits[:, 1, 4])
    each = sl.targets.logit(torch.tensor([3, 6]), than=[0, 1], at=[2, -1])(logits)
    assert torch.equal(each, torch.stack([logits[0, 2, 3] - logits[0, 2, 0], logits[1, 4, 6] - logits[1, 4, 1]]))
    assert torch.equal(sl.targets.logit(3)(SimpleNamespace(logits=logits)), logits[:, -1, 3])
    assert torch.equal(sl.targets.logit(3)({"logits": logits}), logits[:, -1, 3])
    assert torch.equal(sl.targets.logit(3)(logits[:, 0]), logits[:, 0, 3]), "of a classifier"


def test_probabilities_and_losses():
    logits = torch.randn(2, 5, 7)
    told = logits.log_softmax(-1)
    torch.testing.assert_close(sl.targets.logprob(3)(logits), told[:, -1, 3])
    ids = torch.randint(7, (2, 5))
    expected = torch.nn.functional.cross_entropy(logits[:, 2:4].mT, ids[:, 3:], reduction="none").mean(-1)
    torch.testing.assert_close(sl.targets.loss(ids[:, 3:])(logits), expected)
    torch.testing.assert_close(sl.targets.loss(ids[:, 3:], at=3)(logits), expected)
    torch.testing.assert_close(sl.targets.loss(ids[:, 3:], at=-2)(logits), expected)
    torch.testing.assert_close(sl.targets.loss(int(ids[0, -1]))(logits[:1]), -told[:1, -2, ids[0, -1]])


def test_similarity():
    out, vector = torch.randn(2, 5, 8), torch.randn(8)
    expected = torch.cosine_similarity(out[:, 0], vector[None], -1)
    torch.testing.assert_close(sl.targets.similarity(vector)(out[:, 0]), expected)
    torch.testing.assert_close(sl.targets.similarity(vector, at=0)(SimpleNamespace(last_hidden_state=out)), expected)
    both = SimpleNamespace(last_hidden_state=out, pooler_output=out[:, 0])
    torch.testing.assert_close(sl.targets.similarity(vector)(both), expected)


def test_of_a_model_of_transformers_with_its_gradient():
    model, given = tiny.model("llama"), tiny.inputs("llama")
    y = sl.targets.logit(5, than=2)(model(**given))
    assert y.shape == (3,)
    assert y.requires_grad


@pytest.mark.parametrize(
    "make, said",
    [
        (lambda: sl.targets.logit(" Mary"), "tokenizer"),
        (lambda: sl.targets.logit([" Mary", " John"]), "tokenizer"),
        (lambda: sl.targets.logit(3, than="John"), "tokenizer"),
        (lambda: sl.targets.logit(-1), "from 0 on"),
        (lambda: sl.targets.logit(True), "from 0 on"),
        (lambda: sl.targets.logit(torch.tensor([0.5])), "from 0 on"),
        (lambda: sl.targets.logit(3, at="end"), "a whole number"),
        (lambda: sl.targets.loss(slice(3, 5)), "ids of its tokens"),
        (lambda: sl.targets.loss(torch.zeros(2, 0, dtype=torch.int64)), "one for each example|one token or more"),
        (lambda: sl.targets.loss([1], at=0.5), "whole number"),
        (lambda: sl.targets.similarity([1.0]), "float tensor"),
        (lambda: sl.targets.logit(9)(torch.zeros(1, 2, 7)), "ids from 0 to 6"),
        (lambda: sl.targets.logit(1, at=2)(torch.zeros(1, 2, 7)), "-2 to 1"),
        (lambda: sl.targets.logit(1, at=0)(torch.zeros(1, 7)), "axis of time"),
        (lambda: sl.targets.logit([1, 2, 3])(torch.zeros(2, 2, 7)), "2 numbers"),
        (lambda: sl.targets.logit(1)("text"), "this target reads logits"),
        (lambda: sl.targets.loss([1, 2])(torch.zeros(1, 2, 7)), "does not fit"),
        (lambda: sl.targets.loss([[1], [2]])(torch.zeros(3, 4, 7)), "one for each example"),
        (lambda: sl.targets.loss([1])(torch.zeros(3, 7)), "several positions"),
        (lambda: sl.targets.similarity(torch.ones(3))(torch.zeros(1, 2, 3)), "which position"),
        (lambda: sl.targets.similarity(torch.ones(4))(torch.zeros(1, 3)), "do not fit"),
        (lambda: sl.targets.similarity(torch.ones(4))(None), "reads vectors"),
    ],
)
def test_what_is_no_target_says_so(make, said):
    with pytest.raises((InputError, InputTypeError), match=said):
        make()


def test_a_target_is_a_photograph_of_what_it_was_given():
    ids = torch.tensor([3])
    target = sl.targets.logit(ids)
    ids.fill_(0)
    logits = torch.randn(1, 2, 7)
    assert isinstance(target, Target)
    assert torch.equal(target(logits), logits[:, -1, 3])
    assert repr(sl.targets.loss([1, 2], at=4)) == "loss(<2>, at=4)"
