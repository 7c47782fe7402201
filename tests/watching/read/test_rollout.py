"""Rollout without a matrix, against the product of whole maps."""

from __future__ import annotations

import pytest
import torch

import watch_cases as tiny
from sightline.errors import InputError
from sightline.watching import watch
from sightline.watching.read import rollout as module


def joined(weights, heads):
    """The heads of [batch, heads, queries, keys] as one map."""
    if heads == "mean":
        return weights.mean(1)
    return weights.amax(1) if heads == "max" else weights[:, heads]


def dense(maps, query, heads, residual):
    """The row of the product of all maps."""
    product = None
    for weights in maps:
        one = joined(weights.double(), heads)
        if residual:
            one = one + torch.eye(one.shape[-1])
        one = one / one.sum(-1, keepdim=True).clamp_min(1e-300)
        product = one if product is None else one @ product
    return product[:, query]


def run(family, padding=None, **options):
    model = tiny.model(family, "eager")
    given = tiny.inputs(family, padding)
    with torch.no_grad(), watch(model, **options) as seen:
        output = model(**given, output_attentions=True)
    return seen, output


@pytest.mark.parametrize("family", ["llama", "mistral", "bert", "gpt-oss"])
@pytest.mark.parametrize("heads", ["mean", "max", 2])
@pytest.mark.parametrize("residual", [True, False])
@pytest.mark.parametrize("keep", [True, False])
def test_against_whole_maps(family, heads, residual, keep):
    seen, output = run(family, keep_qk=keep)
    for query in (-1, 0, 5):
        got = seen.rollout(query, heads=heads, residual=residual)
        want = dense(output.attentions, query, heads, residual)
        torch.testing.assert_close(got.double(), want, atol=1e-5, rtol=0)
        torch.testing.assert_close(got.sum(-1), torch.ones(3), atol=1e-5, rtol=0)


@pytest.mark.parametrize("heads", ["mean", "max"])
def test_with_padding(heads):
    seen, output = run("llama", "left")
    mask = tiny.inputs("llama", "left")["attention_mask"]
    # Rows of padding are uniform in transformers' eager maps; nothing that is real looks at them.
    maps = [weights * mask[:, None, :, None] for weights in output.attentions]
    got = seen.rollout(-1, heads=heads)
    torch.testing.assert_close(got.double(), dense(maps, -1, heads, True), atol=1e-5, rtol=0)
    assert got[mask == 0].abs().max() == 0


def test_the_maximum_is_walked_band_by_band(monkeypatch):
    seen, output = run("bert")
    monkeypatch.setattr(module, "_CELLS", 1)
    want = dense(output.attentions, 3, "max", True)
    torch.testing.assert_close(seen.rollout(3, heads="max").double(), want, atol=1e-5, rtol=0)


@pytest.mark.parametrize("heads", ["mean", "max"])
@pytest.mark.parametrize("residual", [True, False])
def test_encoder_and_decoder(heads, residual):
    seen, output = run("t5")
    tokens, memory = output.decoder_attentions[0].shape[-1], output.encoder_attentions[0].shape[-1]
    extra = 1.0 if residual else 0.0

    def normal(one, eye=True):
        one = one + extra * torch.eye(one.shape[-1]) if eye else one
        return one / (one.sum(-1, keepdim=True) + (0 if eye else extra))

    # One large matrix over decoder positions and memory together.
    product = torch.eye(tokens + memory, dtype=torch.float64)
    for own, cross in zip(output.decoder_attentions, output.cross_attentions):
        own, cross = joined(own.double(), heads), joined(cross.double(), heads)
        step = torch.eye(tokens + memory).double().expand(3, -1, -1).clone()
        step[:, :tokens, :tokens] = normal(own)
        product = step @ product
        step = torch.eye(tokens + memory).double().expand(3, -1, -1).clone()
        stays = extra / (cross.sum(-1) + extra)
        step[:, :tokens, :tokens] = torch.diag_embed(stays)
        step[:, :tokens, tokens:] = normal(cross, eye=False)
        product = step @ product
    encoder = torch.eye(memory).double()
    for own in output.encoder_attentions:
        encoder = normal(joined(own.double(), heads)) @ encoder
    row = product[:, 4]
    got = seen.rollout(4, heads=heads, residual=residual)
    torch.testing.assert_close(got.double(), row[:, :tokens], atol=1e-5, rtol=0)
    back = (row[:, None, tokens:] @ encoder)[:, 0]
    found = seen.rollout(4, heads=heads, residual=residual, memory=True)
    torch.testing.assert_close(found.double(), back, atol=1e-5, rtol=0)
    torch.testing.assert_close(got.sum(-1) + found.sum(-1), torch.ones(3), atol=1e-5, rtol=0)


def test_after_a_generation():
    model, given = tiny.model("llama"), tiny.inputs("llama")
    with torch.no_grad(), watch(model) as seen:
        ids = model.generate(**given, max_new_tokens=4, do_sample=False)
    with torch.no_grad(), watch(model) as whole:
        model(ids[:, :-1])
    torch.testing.assert_close(seen.rollout(), whole.rollout(), atol=1e-5, rtol=0)


def test_what_cannot_be():
    seen, _ = run("llama")
    for ask, what in (
        (lambda: seen.rollout(12), "no such position"),
        (lambda: seen.rollout(True), "no such position"),
        (lambda: seen.rollout(heads="median"), "joined by their mean or maximum"),
        (lambda: seen.rollout(heads=7), "no such head"),
        (lambda: seen.rollout(memory=True), "no memory"),
    ):
        with pytest.raises(InputError, match=what):
            ask()
    cross, _ = run("t5", layers="*EncDecAttention")
    with pytest.raises(InputError, match="follows a sequence"):
        cross.rollout()
