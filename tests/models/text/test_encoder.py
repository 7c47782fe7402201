"""Encoders of text, on small random weights with a real tokenizer."""

from __future__ import annotations

from functools import cache

import pytest
import torch

from model_cases import SMALL, held, minilm_tokenizer, theirs
from sightline.errors import InputError, InputTypeError
from sightline.models.build import build
from sightline.models.text.encoder import TextEncoder
from sightline.models.text.pooling import Pooling

TEXTS = ["A short one.", "Rather a longer sentence, about lions and kids.", "", "Word", "word " * 40]


@cache
def encoder() -> TextEncoder:
    model = build(held(theirs("BertModel", **SMALL, vocab_size=30522, max_position_embeddings=32)))
    model.tokenizer = minilm_tokenizer()
    return model  # type: ignore[return-value]


def test_a_batch_is_its_members_whatever_its_size() -> None:
    model = encoder()
    alone = torch.stack([model.encode(text) for text in TEXTS])
    assert alone.shape == (5, 32)
    for size in (1, 2, 64):
        torch.testing.assert_close(model.encode(TEXTS, batch_size=size), alone, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(model.encode(tuple(reversed(TEXTS))), alone.flip(0), rtol=1e-5, atol=1e-5)


def test_the_mean_of_real_tokens_by_hand() -> None:
    model, text = encoder(), TEXTS[1]
    ids = torch.tensor(minilm_tokenizer().encode(text).ids)
    with torch.no_grad():
        states = model(ids)
    torch.testing.assert_close(model.encode(text), states.mean(0))
    torch.testing.assert_close(model.encode(text, normalize=True), torch.nn.functional.normalize(states.mean(0), dim=0))


def test_long_texts_are_cut_with_their_end_in_place(monkeypatch: pytest.MonkeyPatch) -> None:
    model = encoder()
    ids = minilm_tokenizer().encode("word " * 40).ids
    short = [*ids[:9], ids[-1]]  # [CLS], eight words, [SEP]
    monkeypatch.setattr(model, "pooling", Pooling("mean", False, 10))
    assert model._encode(["word " * 40, "word"], 10) == [short, [ids[0], ids[1], ids[-1]]]
    with torch.no_grad():
        torch.testing.assert_close(model.encode("word " * 40), model(torch.tensor(short)).mean(0))
    assert len(minilm_tokenizer().encode("word " * 40).ids) == 42  # the tokenizer itself cuts nothing


def test_no_texts_and_gradients() -> None:
    model = encoder()
    assert model.encode([]).shape == (0, 32)
    vectors = model.encode(TEXTS[:2])
    assert not vectors.requires_grad
    weights = torch.zeros(32, requires_grad=True)
    (vectors @ weights).sum().backward()  # usable for training what comes after
    assert weights.grad is not None


def test_what_is_no_text_is_refused() -> None:
    model = encoder()
    with pytest.raises(InputTypeError, match="got: int"):
        model.encode(["a", 3])  # type: ignore[list-item]
    with pytest.raises(InputError, match="batch_size is too small"):
        model.encode("a", batch_size=0)
    with pytest.raises(InputError, match="positions 0 to 31"):
        model.observe("word " * 40)


def test_observing_gives_the_states_the_sights_and_the_tokens() -> None:
    model = encoder()
    with torch.no_grad():
        states, sights = model.observe(TEXTS[1], stats="entropy", layers=[0, 1])
        assert torch.equal(states, model(torch.tensor(minilm_tokenizer().encode(TEXTS[1]).ids)))
    assert sights.tokens[:4] == ["[CLS]", "Rather", "a", "longer"]
    assert list(sights) == ["encoder.layers.0.attention", "encoder.layers.1.attention"]
    assert sights[1].shape == (4, len(sights.tokens), len(sights.tokens))
    torch.testing.assert_close(sights[0].received().sum(), torch.tensor(4.0 * len(sights.tokens)))


def test_observing_a_batch_hides_its_padding() -> None:
    model = encoder()
    with torch.no_grad():
        states, sights = model.observe(TEXTS[:2], layers=-1)
        alone, own = model.observe(TEXTS[0], layers=-1)
    short, long = map(len, sights.tokens)
    assert short < long
    assert sights.tokens[0] == own.tokens
    assert sights[1].shape == (2, 4, long, long)
    assert sights[1].received()[0, :, short:].abs().max() == 0
    torch.testing.assert_close(states[0, :short], alone, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(
        sights[1].tile(slice(0, short), slice(0, short))[0], own[1].tile(slice(None), slice(None))
    )


def test_observing_ids_names_the_tokens_too() -> None:
    model = encoder()
    ids = minilm_tokenizer().encode(TEXTS[0]).ids
    _, sights = model.observe(ids)
    assert sights.tokens == ["[CLS]", "a", "short", "one", ".", "[SEP]"]
    _, batch = model.observe(torch.tensor([ids, ids]))
    assert batch.tokens == [sights.tokens] * 2
    assert model.tokens(TEXTS[0])[1] == "A"
    with pytest.raises(InputTypeError, match="neither text nor ids"):
        model.observe([[1, 2], [3]])
