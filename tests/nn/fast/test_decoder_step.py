"""The fast step computes what the decoder computes, and steps aside when anybody looks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

import sightline as sl
from model_cases import SMALL, ids_of, ours, theirs
from sightline.models.text.language_model import LanguageModel
from sightline.nn import Decoder, DecoderLayer
from sightline.nn.fast.decoder_step import Step

LLAMA: dict[str, Any] = {**SMALL, "vocab_size": 50, "num_key_value_heads": 2, "max_position_embeddings": 64}
KINDS: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("LlamaForCausalLM", {**LLAMA, "attention_bias": True}),
    "one key head": ("LlamaForCausalLM", {**LLAMA, "num_key_value_heads": 1, "head_dim": 12}),
    "window": ("MistralForCausalLM", {**LLAMA, "sliding_window": 4}),
    "dynamic": ("LlamaForCausalLM", {**LLAMA, "max_position_embeddings": 8, "rope_parameters": {"factor": 2.0}}),
    "gpt2": (
        "GPT2LMHeadModel",
        {"n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 64, "vocab_size": 50, "eos_token_id": 2}
        | {"scale_attn_by_inverse_layer_idx": True, "bos_token_id": 1},
    ),
}
KINDS["dynamic"][1]["rope_parameters"]["rope_type"] = "dynamic"


def loaded(kind: str, folder: Path) -> LanguageModel:
    name, config = KINDS[kind]
    return ours(theirs(name, **config), folder)


@pytest.mark.parametrize("padded", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_a_step_is_what_the_decoder_computes(kind: str, padded: bool, tmp_path: Path) -> None:
    model = loaded(kind, tmp_path)
    step, ids = Step.of(model.decoder), ids_of(2, 12)
    assert step is not None
    slow, fast = model.decoder.new_cache(), model.decoder.new_cache()
    real = torch.ones(2, 12, dtype=torch.bool)
    at = torch.arange(12).repeat(2, 1)
    if padded:
        real[1, :2] = False
        at[1] = (at[1] - 2).clamp_min(0)
    with torch.inference_mode():
        for now in (slice(0, 5), *(slice(t, t + 1) for t in range(5, 12))):
            x = model.embedding(ids[:, now])
            options: dict[str, Any] = {"at": at[:, now], "mask": sl.padding(real[:, : now.stop])} if padded else {}
            expected = model.decoder(x, cache=slow, **options)
            if now.start == 0:
                model.decoder(x, cache=fast, **options)
                continue
            got = step(x, fast, *((at[:, now], real[:, : now.stop]) if padded else ()))
            torch.testing.assert_close(got, expected, rtol=1e-5, atol=1e-5)
    assert fast.length == slow.length == 12
    for a, b in zip(fast, slow, strict=True):
        torch.testing.assert_close(
            a.keys[real[:, None].expand(a.keys.shape[:-1])], b.keys[real[:, None].expand(b.keys.shape[:-1])]
        )


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
def test_a_step_in_other_precisions(dtype: torch.dtype, tmp_path: Path) -> None:
    model = loaded("llama", tmp_path).to(dtype)  # gate and up are no longer side by side
    step, ids = Step.of(model.decoder), ids_of(1, 6)
    assert step is not None
    assert (len(step.layers[0].qkv), len(step.layers[0].up)) == (1, 2)
    slow, fast = model.decoder.new_cache(), model.decoder.new_cache()
    with torch.inference_mode():
        x = model.embedding(ids)
        model.decoder(x[:, :5], cache=slow)
        model.decoder(x[:, :5], cache=fast)
        got, expected = step(x[:, 5:], fast), model.decoder(x[:, 5:], cache=slow)
    assert got.dtype == dtype
    tolerance = {torch.bfloat16: 0.05, torch.float16: 5e-3, torch.float64: 1e-12}[dtype]
    torch.testing.assert_close(got, expected, rtol=tolerance, atol=tolerance)


def test_weights_of_a_loaded_model_are_read_as_one(tmp_path: Path) -> None:
    step = Step.of(loaded("llama", tmp_path).decoder)
    assert step is not None
    assert [len(layer.qkv) for layer in step.layers] == [1, 1]
    assert [len(layer.up) for layer in step.layers] == [1, 1]
    assert step.layers[0].qkv[0][0].shape == (32 + 2 * 16, 32)


class Odd(torch.nn.Linear):
    pass


@pytest.mark.parametrize(
    "change",
    [
        lambda d: d.train(),
        lambda d: d.layers[1].feed_forward.up.register_forward_hook(lambda *_: None),
        lambda d: d.layers[0].attention_norm.register_forward_pre_hook(lambda *_: None),
        lambda d: setattr(d.layers[0].attention, "query", Odd(32, 32)),
        lambda d: setattr(d.layers[0].attention, "softcap", 3.0),
        lambda d: setattr(d.layers[0].attention, "positions", sl.positions.Rotary(8)),
        lambda d: setattr(d.layers[0].attention, "backend", "streaming"),
        lambda d: setattr(d.layers[0], "mask", None),
        lambda d: setattr(d, "norm", None),
    ],
)
def test_decoders_that_are_not_plain_are_asked_themselves(change: Any, tmp_path: Path) -> None:
    decoder = loaded("llama", tmp_path).decoder
    assert Step.of(decoder) is not None
    change(decoder)
    assert Step.of(decoder) is None


def test_other_kinds_of_layers_are_asked_themselves() -> None:
    rotary = sl.positions.Rotary(8, rotary_dim=4)
    for decoder in (
        Decoder(32, 4, 1, norm_first=False, final_norm=True),
        Decoder(32, 4, 1, norm_output=True),
        Decoder(32, 4, 1, cross=True),
        Decoder(32, 4, 1, positions=sl.alibi(4)),
        Decoder(32, 4, 1, positions=rotary),
        Decoder(32, 4, 1, positions=sl.positions.Sinusoidal(32)),
        Decoder(32, 4, 1, sinks=True),
        Decoder(32, 4, 1, mask=sl.prefix(2)),
        Decoder.of(
            [DecoderLayer(32, 4, positions=sl.positions.Rotary(8)) for _ in range(2)], norm=torch.nn.LayerNorm(32)
        ),
    ):
        assert Step.of(decoder.eval()) is None


def test_whoever_observes_sees_every_step(tmp_path: Path) -> None:
    model, prompt = loaded("llama", tmp_path), ids_of(1, 5)[0].tolist()
    plain = model.generate(prompt, max_new_tokens=4, eos=())
    with sl.nn.observing(model) as sights:
        assert model.generate(prompt, max_new_tokens=4, eos=()) == plain
    assert {sight.shape for sight in sights.values()} == {(1, 4, 1, 8)}  # of the last step
    calls = []
    hook = model.decoder.layers[0].feed_forward.register_forward_hook(lambda *_: calls.append(1))
    assert model.generate(prompt, max_new_tokens=4, eos=()) == plain
    assert len(calls) == 4
    hook.remove()
