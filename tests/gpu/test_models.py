"""Models in the shapes of MiniLM and SmolLM2 on a real GPU, loaded by Sightline, beside transformers there."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import sightline as sl
from model_cases import theirs

# Weights of this size give scores a spread of about 1: attention that looks somewhere, not all in one place. With
# larger ones a model of many layers makes of float32's roundings whatever it likes.
SPREAD = {"initializer_range": 0.04}
KINDS: dict[str, tuple[str, dict[str, Any]]] = {
    "minilm": (
        "BertModel",
        {"hidden_size": 384, "num_hidden_layers": 6, "num_attention_heads": 12, "intermediate_size": 1536}
        | {"vocab_size": 30522},
    ),
    "smollm2": (
        "LlamaForCausalLM",
        {"hidden_size": 576, "num_hidden_layers": 30, "num_attention_heads": 9, "num_key_value_heads": 3}
        | {"intermediate_size": 1536, "vocab_size": 49152, "tie_word_embeddings": True, "max_position_embeddings": 512},
    ),
}
LENGTHS = [29, 3, 64, 1, 17]
NEW = 32


def saved(kind: str, folder: Path) -> Path:
    """A random model of a shape, as transformers writes it."""
    theirs(KINDS[kind][0], **KINDS[kind][1], **SPREAD).save_pretrained(folder)
    return folder


def loaded(kind: str, folder: Path, device: str, dtype: torch.dtype, attention: str = "sdpa") -> Any:
    """The model by transformers."""
    import transformers

    family = getattr(transformers, KINDS[kind][0])
    model = family.from_pretrained(folder, dtype=dtype, attn_implementation=attention).to(device).eval()
    if kind == "smollm2":
        model.generation_config.eos_token_id = None
    return model


def mine(folder: Path, device: str, dtype: torch.dtype) -> Any:
    model, tokenizer = sl.models.load(folder, device=device, dtype=dtype)
    assert tokenizer is None
    assert all(parameter.device.type == device and parameter.dtype == dtype for parameter in model.parameters())
    return model


def padded(kind: str, device: str) -> tuple[Tensor, Tensor]:
    """Ids of unequal texts, padded at the end, and which of them are real."""
    ids = torch.randint(3, KINDS[kind][1]["vocab_size"], (len(LENGTHS), max(LENGTHS)))
    real = torch.arange(max(LENGTHS)) < torch.tensor(LENGTHS)[:, None]
    return ids.masked_fill(~real, 0).to(device), real.to(device)


def of_transformers(model: Any, ids: Tensor, real: Tensor) -> Tensor:
    """What comes out at the real tokens."""
    out = model(input_ids=ids, attention_mask=real.long())
    return (out.logits if hasattr(out, "logits") else out.last_hidden_state)[real]


def apart(got: Tensor, want: Tensor) -> float:
    assert got.isfinite().all()
    return float((got.double() - want.double()).norm() / want.double().norm())


def check_outputs(kind: str, folder: Path, device: str) -> None:
    """In float32 those of transformers; in bfloat16 as near to float64 as its eager attention, within twice."""
    saved(kind, folder)
    ids, real = padded(kind, device)
    with torch.no_grad():
        want = of_transformers(loaded(kind, folder, device, torch.float32), ids, real)
        model = mine(folder, device, torch.float32)
        assert want.std() > 0.05
        assert apart(model(ids, padding=real)[real], want) <= 1e-5
        alone = model(ids[:1, : LENGTHS[0]])[0]  # without padding, by another kernel
        assert apart(alone, want[: LENGTHS[0]]) <= 1e-5

        half = loaded(kind, folder, device, torch.bfloat16, "eager")
        rough = of_transformers(half, ids, real)
        exact = of_transformers(half.double(), ids, real)
        model = mine(folder, device, torch.bfloat16)
        for padding in (real, torch.tensor(LENGTHS, device=device)):
            assert apart(model(ids, padding=padding)[real], exact) <= 2 * apart(rough, exact)


def prompts_of(count: int) -> list[list[int]]:
    lengths = [40 - 5 * (i % 8) + i for i in range(count)]
    return [torch.randint(3, 49152, (n,)).tolist() for n in lengths]


def generated(model: Any, prompts: list[list[int]], device: str) -> list[list[int]]:
    """The next tokens by transformers, padded at the front."""
    longest = max(map(len, prompts))
    ids = torch.tensor([[0] * (longest - len(one)) + one for one in prompts], device=device)
    real = torch.tensor([[0] * (longest - len(one)) + [1] * len(one) for one in prompts], device=device)
    out = model.generate(ids, attention_mask=real, max_new_tokens=NEW, do_sample=False, pad_token_id=0)
    return out[:, longest:].tolist()


def clear(exact: Any, prompt: list[int], made: list[int], device: str) -> bool:
    """Whether in float64 every token is likelier than the next one by more than rounding in float32 can be."""
    logits = exact(torch.tensor([prompt + made], device=device)).logits[0, len(prompt) - 1 : -1].double()
    best = logits.topk(2).values
    return bool((best[:, 0] - best[:, 1]).min() > 1e-4 * logits.std())


def check_generation(folder: Path, device: str, count: int) -> None:
    saved("smollm2", folder)
    prompts = prompts_of(count)
    reference = loaded("smollm2", folder, device, torch.float32)
    model = mine(folder, device, torch.float32)
    with torch.no_grad():
        want = generated(reference, prompts, device)
        got = model.generate(prompts, max_new_tokens=NEW, eos=())
        exact = reference.double()
        sure = [row for row in range(count) if clear(exact, prompts[row], want[row], device)]
    assert len(sure) >= 0.75 * count
    assert [len(one) for one in got] == [NEW] * count
    assert [got[row] for row in sure] == [want[row] for row in sure]


def check_seen(folder: Path, device: str) -> None:
    """Watched, generation gives the same tokens; its maps and those of `observe` are those of eager attention."""
    saved("smollm2", folder)
    (prompt,) = prompts_of(1)
    model = mine(folder, device, torch.float32)
    plain = model.generate(prompt, max_new_tokens=NEW, eos=())
    with torch.no_grad(), sl.watch(model, layers=[0, 13, 29]) as seen:
        assert model.generate(prompt, max_new_tokens=NEW, eos=()) == plain
    assert not seen.unseen
    assert len(seen) == 3
    ids = torch.tensor([prompt + plain[:-1]], device=device)
    length = ids.shape[1]
    with torch.no_grad():
        want = loaded("smollm2", folder, device, torch.float32, "eager")(ids, output_attentions=True).attentions
        logits = model(ids)
    out, sights = model.observe(ids, layers=[0, 13, 29], stats=("entropy", "received"))
    assert apart(out, logits) <= 1e-5
    for name, layer in zip(seen.layers, (0, 13, 29), strict=True):
        weights = want[layer].double()
        assert 0.05 < float(torch.special.entr(weights).sum(-1).mean()) < 4, "neither in one place nor flat"
        assert seen[name].shape == (1, 9, length, length)
        for sight in (seen[name], sights[layer]):
            tile = sight.tile(slice(0, length), slice(0, length)).to(device)
            assert (tile - weights).abs().max() <= 1e-4
            assert (sight.received().to(device) - weights.sum(-2)).abs().max() <= 1e-3
            assert (sight.entropy.to(device) - torch.special.entr(weights).sum(-1)).abs().max() <= 1e-3


def check_observed_encoder(folder: Path, device: str) -> None:
    saved("minilm", folder)
    ids, real = padded("minilm", device)
    reference = loaded("minilm", folder, device, torch.float32, "eager")
    model = mine(folder, device, torch.float32)
    with torch.no_grad():
        out = reference(input_ids=ids, attention_mask=real.long(), output_attentions=True)
        got, sights = model.observe(ids, padding=real, stats=("entropy", "received"))
    assert apart(got[real], out.last_hidden_state[real]) <= 1e-5
    assert len(sights) == 6
    rows = real[:, None, :, None]
    for layer, weights in enumerate(out.attentions):
        tile = sights[layer].tile(slice(0, max(LENGTHS)), slice(0, max(LENGTHS)))
        assert ((tile - weights) * rows).abs().max() <= 1e-4
        entropy = torch.special.entr(weights.double()).sum(-1)
        assert ((sights[layer].entropy - entropy) * real[:, None]).abs().max() <= 1e-3


@pytest.mark.parametrize("kind", KINDS)
def test_outputs_are_those_of_transformers(kind: str, tmp_path: Path) -> None:
    check_outputs(kind, tmp_path, "cuda")


@pytest.mark.parametrize("count", [1, 16])
def test_greedy_is_what_transformers_generates(count: int, tmp_path: Path) -> None:
    check_generation(tmp_path, "cuda", count)


def test_a_generation_is_watched(tmp_path: Path) -> None:
    check_seen(tmp_path, "cuda")


def test_an_encoder_is_observed(tmp_path: Path) -> None:
    check_observed_encoder(tmp_path, "cuda")
