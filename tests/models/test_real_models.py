"""The trained models: the numbers of transformers, and what their heads look at."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from model_cases import minilm, smollm2, their_minilm, their_smollm2

SENTENCES = [
    "The kids were scared of the lions, so they left right away.",
    "Rain.",
    "Attention weights tell which words a word looks at.",
    "In 1991 the lake had 12 islands; today, after years without rain, it has none, and fishermen have moved away.",
    "Où est la bibliothèque?",
]
PROMPTS = [
    "The capital of France is",
    "Once upon a time, in a small village,",
    "Water boils at",
    "The three primary colours are",
    "def add(a, b):\n    return",
    "To make a cup of tea, first",
    "The largest planet in the solar system is",
    "Dear Sir or Madam,",
    "A good friend is someone who",
    "1, 2, 3, 4,",
]
LIONS = SENTENCES[0]


def test_minilm_has_the_hidden_states_of_transformers() -> None:
    encodings = minilm().tokenizer.encode_batch(SENTENCES)
    lengths = [len(encoding.ids) for encoding in encodings]
    ids = torch.zeros(len(lengths), max(lengths), dtype=torch.int64)
    for row, encoding in zip(ids, encodings, strict=True):
        row[: len(encoding.ids)] = torch.tensor(encoding.ids)
    real = torch.arange(max(lengths)) < torch.tensor(lengths)[:, None]
    assert len(set(lengths)) == len(SENTENCES)
    with torch.no_grad():
        expected = their_minilm()(ids, attention_mask=real.long()).last_hidden_state
        got = minilm()(ids, padding=lengths)
    assert (got[real] - expected[real]).abs().max() <= 1e-5

    mean = (expected * real[..., None]).sum(1) / real.sum(1, keepdim=True)
    embeddings = minilm().encode(SENTENCES)
    assert (embeddings - F.normalize(mean, dim=-1)).abs().max() <= 1e-5
    torch.testing.assert_close(embeddings.norm(dim=-1), torch.ones(len(SENTENCES)))


def test_minilm_reads_at_most_256_tokens() -> None:
    assert minilm().pooling.longest == 256
    long = "lion " * 400
    assert torch.equal(minilm().encode(long), minilm().encode("lion " * 254))
    assert not torch.allclose(minilm().encode(long), minilm().encode("lion " * 253), atol=1e-5)


def test_paraphrases_are_closer_than_unrelated_sentences() -> None:
    alike = [
        ("A man is playing a guitar.", "Someone is playing music on a guitar."),
        ("The cat sleeps on the sofa.", "A cat is napping on the couch."),
        ("How do I reset my password?", "I forgot my password, how can I change it?"),
        ("Stocks fell sharply on Monday.", "The share market dropped at the start of the week."),
    ]
    unlike = [(one, other) for (one, _), (_, other) in zip(alike, alike[1:] + alike[:1], strict=True)]

    def similarity(pairs: list[tuple[str, str]]) -> Tensor:
        first, second = (minilm().encode([pair[side] for pair in pairs]) for side in (0, 1))
        return (first * second).sum(-1)

    assert similarity(alike).min() > 0.5
    assert similarity(unlike).max() < 0.2


def test_a_word_has_other_vectors_in_other_company() -> None:
    def vector(text: str, word: str) -> Tensor:
        states, sights = minilm().observe(text, layers=0)
        return states[sights.tokens.index(word)].detach()

    def closeness(a: Tensor, b: Tensor) -> float:
        return F.cosine_similarity(a, b, dim=0).item()

    of_money = vector("He put his money into an account at the bank.", "bank")
    of_river = vector("They sat in the grass on the bank of the river.", "bank")
    money, river = vector("money", "money"), vector("river", "river")
    assert closeness(of_money, of_river) < 0.8  # one word, two vectors
    assert closeness(of_money, money) > closeness(of_money, river) + 0.03
    assert closeness(of_river, river) > closeness(of_river, money) + 0.03


def looks(model: Any, word: str, target: str) -> dict[tuple[int, int], float]:
    """By layer and head, how much of a word's attention goes to another one."""
    _, sights = model.observe(LIONS)
    row, column = sights.tokens.index(word), sights.tokens.index(target)
    weights = [sights[n].tile(slice(row, row + 1), slice(column, column + 1)) for n in range(len(sights))]
    return {(n, h): w.item() for n, layer in enumerate(weights) for h, w in enumerate(layer.flatten())}


@pytest.mark.parametrize(
    "load, head, share, others",
    [(minilm, (3, 1), 0.814, {(5, 5): 0.572, (5, 11): 0.483}), (smollm2, (16, 5), 0.600, {(16, 3): 0.407})],
)
def test_some_heads_look_from_they_to_kids_and_others_to_lions(
    load: Any, head: tuple[int, int], share: float, others: dict[tuple[int, int], float]
) -> None:
    """A head that finds whom a pronoun means is one of many: others of the same model look at the lions."""
    kids, lions = looks(load(), "they", "kids"), looks(load(), "they", "lions")
    assert max(kids, key=kids.__getitem__) == head
    assert kids[head] == pytest.approx(share, abs=0.01)
    assert kids[head] > 4 * lions[head]
    for other, weight in others.items():
        assert lions[other] == pytest.approx(weight, abs=0.01)
        assert lions[other] > kids[other]
    # Most heads look at neither: one head is not what the model thinks.
    assert sum(kids[h] + lions[h] > 0.5 for h in kids) < len(kids) / 5


def test_smollm2_has_the_logits_of_transformers() -> None:
    ids = torch.tensor(smollm2().tokenizer.encode(" ".join(SENTENCES)).ids)[None]
    with torch.no_grad():
        expected, got = their_smollm2()(ids).logits, smollm2()(ids)
    assert (got - expected).norm() / expected.norm() <= 2e-3
    assert (got - expected).abs().max() <= 2e-3 * expected.abs().max()
    # Far inside of what is asked for: no more than float32 makes of thirty layers.
    assert (got - expected).norm() / expected.norm() <= 2e-5


def test_smollm2_writes_what_transformers_writes() -> None:
    """Greedy text of ten prompts, in one batch; theirs is checked token by token, given ours so far."""
    prompts = [encoding.ids for encoding in smollm2().tokenizer.encode_batch(PROMPTS)]
    made = smollm2().generate(prompts, max_new_tokens=64, eos=())
    differing = []
    for prompt, new in zip(prompts, made, strict=True):
        with torch.no_grad():
            logits = their_smollm2()(torch.tensor([prompt + new])).logits[0, len(prompt) - 1 : -1]
        best = logits.topk(2)
        wrong = (best.indices[:, 0] != torch.tensor(new)).nonzero()
        if len(wrong):
            step = int(wrong[0])
            gap = (best.values[step, 0] - logits[step, new[step]]).item()
            differing.append(f"{smollm2().tokenizer.decode(prompt)!r}, token {step}: logits apart by {gap:.1e}")
            assert gap < 1e-3 * logits[step].abs().max(), differing[-1]
    assert len(differing) <= 1, differing


def test_smollm2_alone_in_a_batch_and_in_pieces() -> None:
    options: dict[str, Any] = {"max_new_tokens": 12, "eos": ()}
    alone = smollm2().generate(PROMPTS[1], **options)
    assert smollm2().generate(PROMPTS[:2], **options)[1] == alone
    assert "".join(smollm2().stream(PROMPTS[1], **options)) == alone
    drawn = smollm2().generate(PROMPTS[1], temperature=0.9, top_k=40, top_p=0.95, seed=1, **options)
    assert drawn != alone
    assert drawn == smollm2().generate(PROMPTS[1], temperature=0.9, top_k=40, top_p=0.95, seed=1, **options)


def test_smollm2_stops_where_its_family_stops() -> None:
    model = smollm2()
    assert model.context == 8192
    assert model.special.eos
    assert model.tokenizer.id_to_token(model.special.eos[0]).startswith("<|")
    assert model.cache_bytes_per_token == 2 * 3 * 64 * 30 * 4


def test_smollm2_can_be_observed_on_chosen_layers_and_heads() -> None:
    logits, sights = smollm2().observe(LIONS, layers=[5, 16], heads=[5, 6], stats="received")
    assert logits.shape == (len(sights.tokens), 49152)
    assert [sight.shape for sight in sights.values()] == [(2, len(sights.tokens), len(sights.tokens))] * 2
    # The first token takes most of what there is to take: the well-known sink.
    assert sights[16].received()[..., 0].mean() > 0.3 * len(sights.tokens)
