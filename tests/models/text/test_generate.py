"""Generating: as transformers does it, batches as their members, and memory as computed."""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest
import torch

from model_cases import SMALL, held, ids_of, smollm2_tokenizer, theirs
from sightline.errors import InputError, InputTypeError
from sightline.models.build import build
from sightline.models.checkpoints.base import SpecialTokens
from sightline.models.text.language_model import LanguageModel

LLAMA: dict[str, Any] = {**SMALL, "vocab_size": 50, "num_key_value_heads": 2, "max_position_embeddings": 64}
KINDS: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("LlamaForCausalLM", LLAMA),
    "window": ("MistralForCausalLM", {**LLAMA, "sliding_window": 4}),
    "gpt2": (
        "GPT2LMHeadModel",
        {"n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 64, "vocab_size": 50, "eos_token_id": 2}
        | {"bos_token_id": 1},
    ),
}


@cache
def pair(kind: str) -> tuple[Any, LanguageModel]:
    model = theirs(KINDS[kind][0], **KINDS[kind][1])
    model.generation_config.eos_token_id = None
    return model, build(held(model))  # type: ignore[return-value]


@cache
def talker() -> LanguageModel:
    """A small random model with a real tokenizer: nonsense, but text."""
    model = build(held(theirs("LlamaForCausalLM", **{**LLAMA, "vocab_size": 49152, "max_position_embeddings": 256})))
    model.tokenizer = smollm2_tokenizer()
    return model  # type: ignore[return-value]


@pytest.mark.parametrize("kind", KINDS)
def test_greedy_is_what_transformers_generates(kind: str) -> None:
    model, mine = pair(kind)
    for seed in range(3):
        ids = ids_of(1, 7, seed=seed)
        expected = model.generate(ids, max_new_tokens=12, do_sample=False, pad_token_id=0)[0, 7:]
        assert mine.generate(ids[0].tolist(), max_new_tokens=12, eos=()) == expected.tolist()


@pytest.mark.parametrize("options", [{}, {"temperature": 1.0, "top_k": 20, "top_p": 0.9, "seed": 5}], ids=str)
@pytest.mark.parametrize("kind", KINDS)
def test_a_batch_of_unequal_prompts_is_its_members(kind: str, options: dict[str, Any]) -> None:
    _, mine = pair(kind)
    prompts = [ids_of(1, n, seed=n)[0].tolist() for n in (9, 1, 4, 9)]
    together = mine.generate(prompts, max_new_tokens=10, eos=(), **options)
    for row, prompt in enumerate(prompts):
        alone = {**options, "seed": options["seed"] + row} if options else {}
        assert mine.generate(prompt, max_new_tokens=10, eos=(), **alone) == together[row]


def test_steps_are_the_whole_pass() -> None:
    _, mine = pair("llama")
    prompt = ids_of(1, 6)[0].tolist()
    made = mine.generate(prompt, max_new_tokens=8, eos=())
    with torch.no_grad():
        logits = mine(torch.tensor(prompt + made))
    assert logits[len(prompt) - 1 : -1].argmax(-1).tolist() == made


def test_only_the_last_logits_are_computed_when_asked() -> None:
    _, mine = pair("llama")
    ids = ids_of(2, 6)
    with torch.no_grad():
        torch.testing.assert_close(mine(ids, last=2), mine(ids)[:, -2:])
    shapes = []
    hook = mine.head.register_forward_pre_hook(lambda _, args: shapes.append(tuple(args[0].shape)))
    mine.generate(ids[0].tolist(), max_new_tokens=3, eos=())
    hook.remove()
    assert shapes == [(1, 1, 32)] * 3


def test_the_cache_takes_what_was_computed_and_grows_by_doubling(monkeypatch: pytest.MonkeyPatch) -> None:
    _, mine = pair("llama")
    assert mine.cache_bytes_per_token == 2 * (2 * 8) * 2 * 4  # k and v, kv_heads x head_dim, layers, float32
    caches = []
    new_cache = mine.decoder.new_cache
    monkeypatch.setattr(mine.decoder, "new_cache", lambda: caches.append(new_cache()) or caches[-1])
    sizes, memories = [], []
    prompt = ids_of(1, 5)[0].tolist()
    from sightline.models.text.generate import new_tokens
    from sightline.models.text.sampling import Sampler

    for _ in new_tokens(mine, [prompt], Sampler(1), 40):
        (cache,) = caches
        own = cache.layers[0].attention
        sizes.append((own.length, own.capacity))
        memories.append(own.keys.data_ptr())
        assert cache.bytes == mine.cache_bytes_per_token * own.capacity
    assert [length for length, _ in sizes] == list(range(5, 45))
    assert sorted({capacity for _, capacity in sizes}) == [5, 10, 20, 40, 80]
    assert len(dict.fromkeys(memories)) <= 5  # moved only when it grew


def test_a_text_ends_with_its_end() -> None:
    _, mine = pair("llama")
    prompt = ids_of(1, 6)[0].tolist()
    made = mine.generate(prompt, max_new_tokens=10, eos=())
    end = next(token for token in made[2:] if made.index(token) >= 2)
    place = made.index(end)
    assert mine.generate(prompt, max_new_tokens=10, eos=end) == made[:place]
    assert mine.generate([prompt, prompt[:2]], max_new_tokens=10, eos=[end])[0] == made[:place]
    mine.special = SpecialTokens(eos=(end, 3))
    assert mine.generate(prompt, max_new_tokens=10) == [t for t in made[:place] if t != 3]
    mine.special = SpecialTokens()


def test_text_in_text_out() -> None:
    mine, prompt = talker(), "The kids were"
    text = mine.generate(prompt, max_new_tokens=12)
    ids = mine.generate(smollm2_tokenizer().encode(prompt).ids, max_new_tokens=12)
    assert text == smollm2_tokenizer().decode(ids).rstrip("\ufffd")
    assert mine.generate([prompt, "A"], max_new_tokens=12)[0] == text
    assert mine.generate([prompt], max_new_tokens=12) == [text]


@pytest.mark.parametrize("options", [{}, {"temperature": 0.8, "top_p": 0.95, "seed": 3}, {"stop": "e"}], ids=str)
def test_streaming_gives_the_same_text_in_pieces(options: dict[str, Any]) -> None:
    mine, prompt = talker(), "The kids were"
    pieces = list(mine.stream(prompt, max_new_tokens=12, **options))
    assert "".join(pieces) == mine.generate(prompt, max_new_tokens=12, **options)
    assert all(pieces)
    assert "stop" in options or len(pieces) > 3


def test_streaming_works_as_it_goes_and_leaves_modes_alone() -> None:
    mine = talker()
    steps = []
    hook = mine.head.register_forward_hook(lambda *_: steps.append(1))
    pieces = mine.stream("The kids were", max_new_tokens=100)
    assert not steps
    next(pieces)
    assert len(steps) < 20
    assert not torch.is_inference_mode_enabled()
    pieces.close()
    hook.remove()
    assert not torch.is_inference_mode_enabled()


def test_stop_strings_cut_the_text() -> None:
    mine, prompt = talker(), "The kids were"
    text = mine.generate(prompt, max_new_tokens=12)
    middle = text[len(text) // 2 : len(text) // 2 + 3]
    assert mine.generate(prompt, max_new_tokens=12, stop=middle) == text[: text.find(middle)]
    assert mine.generate(prompt, max_new_tokens=12, stop=["never there", middle]) == text[: text.find(middle)]
    long = mine.generate(["B", prompt], max_new_tokens=12, stop=middle)
    assert long[1] == text[: text.find(middle)]


def test_the_same_seed_draws_the_same_text() -> None:
    mine, prompt = talker(), "The kids were"
    options: dict[str, Any] = {"max_new_tokens": 12, "temperature": 1.0}
    assert mine.generate(prompt, seed=4, **options) == mine.generate(prompt, seed=4, **options)
    assert mine.generate(prompt, seed=4, **options) != mine.generate(prompt, seed=5, **options)
    same = mine.generate([prompt] * 3, seed=4, **options)
    assert len(set(same)) == 3
    assert same[0] == mine.generate(prompt, seed=4, **options)


def test_nothing_is_asked_of_gradients() -> None:
    _, mine = pair("llama")
    assert mine.generate(torch.tensor([3, 4]), max_new_tokens=2, eos=()) == mine.generate(
        [3, 4], max_new_tokens=2, eos=()
    )
    assert all(parameter.grad is None for parameter in mine.parameters())
    mine(ids_of(1, 4)).sum().backward()  # and training still works afterwards
    assert all(parameter.grad is not None for parameter in mine.parameters())
    mine.zero_grad(set_to_none=True)


def test_autocast_and_other_modes_are_respected() -> None:
    _, mine = pair("llama")
    prompt = ids_of(1, 6)[0].tolist()
    made = mine.generate(prompt, max_new_tokens=6, eos=())
    with torch.device("cpu"):
        assert mine.generate(prompt, max_new_tokens=6, eos=()) == made
    with torch.autocast("cpu", torch.bfloat16):
        halves = mine.generate(prompt, max_new_tokens=6, eos=())
    assert len(halves) == 6
    assert halves[0] == made[0]


@pytest.mark.parametrize(
    "prompt, options, text",
    [
        ([], {}, "cannot be continued"),
        ([[]], {}, "cannot be continued"),
        ([50], {}, "ids from 0 to 49"),
        ([-1], {}, "ids from 0 to 49"),
        ([[3], ["a"]], {}, "cannot be continued"),
        ([3, 4], {"max_new_tokens": 63}, "max_new_tokens=62"),
        ([3, 4], {"max_new_tokens": 0}, "max_new_tokens is too small"),
        ([3, 4], {"stop": "."}, "cannot stop a text"),
        ("text", {}, "has no tokenizer"),
    ],
)
def test_impossible_prompts_are_refused(prompt: Any, options: dict[str, Any], text: str) -> None:
    _, mine = pair("llama")
    with pytest.raises(InputError, match=text):
        mine.generate(prompt, **options)


def test_empty_texts_begin_with_the_beginning() -> None:
    mine = talker()
    with pytest.raises(InputError, match="cannot be continued"):
        mine.generate("", max_new_tokens=3)
    mine.special = SpecialTokens(bos=1)
    assert mine.generate("", max_new_tokens=3) == mine.generate(["", "A"], max_new_tokens=3)[0] != ""
    mine.special = SpecialTokens()
    with pytest.raises(InputError, match="cannot stop a text"):
        mine.generate("A", stop=["", "b"])
    with pytest.raises(InputTypeError, match="one text is streamed"):
        mine.stream(["A"])  # type: ignore[arg-type]


def test_ids_are_checked_in_the_forward_pass() -> None:
    _, mine = pair("llama")
    with pytest.raises(InputError, match="0 to 49"):
        mine(torch.tensor([3, 50]))
    with pytest.raises(InputTypeError, match="whole numbers"):
        mine(torch.tensor([3.0]))
    with pytest.raises(InputError, match="no tokens"):
        mine(torch.zeros(1, 0, dtype=torch.int64))
