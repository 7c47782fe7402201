"""A step that fails leaves the caches of a model as they were, whichever way it was made."""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest
import torch

import sightline as sl
from model_cases import SMALL, held, ids_of, theirs
from sightline.models.build import build
from sightline.models.text.language_model import LanguageModel
from sightline.nn.fast.decoder_step import Step


class Stop(Exception):
    pass


@cache
def llama() -> LanguageModel:
    config: dict[str, Any] = {**SMALL, "vocab_size": 50, "num_key_value_heads": 2, "max_position_embeddings": 64}
    return build(held(theirs("LlamaForCausalLM", **config)))  # type: ignore[return-value]


def fail(*_: object, **__: object) -> None:
    raise Stop


def test_a_model_that_refuses_or_fails_leaves_no_trace() -> None:
    model, ids = llama(), ids_of(2, 6)
    tried, plain = model.decoder.new_cache(), model.decoder.new_cache()
    with torch.no_grad():
        for past in (tried, plain):
            model(ids[:, :5], cache=past)
        wrong: list[dict[str, Any]] = [
            {"padding": torch.ones(2, 99, dtype=torch.bool)},
            {"padding": [99, 99]},
            {"at": torch.arange(9)},
            {"last": "one"},  # noticed behind the decoder
        ]
        for options in wrong:
            with pytest.raises((sl.errors.SightlineError, TypeError)):
                model(ids[:, 5:], cache=tried, **options)
            assert [own.length for own in tried] == [5, 5]
        for module in (model, model.head, model.decoder.layers[1].feed_forward):
            hook = module.register_forward_hook(fail)
            with pytest.raises(Stop):
                model(ids[:, 5:], cache=tried)
            hook.remove()
            assert [own.length for own in tried] == [5, 5]
        with pytest.raises(sl.errors.InputError, match="there is no such head"):
            model.observe(ids[:, 5:], cache=tried, heads=99)
        assert [own.length for own in tried] == [5, 5]
        assert torch.equal(model(ids[:, 5:], cache=tried), model(ids[:, 5:], cache=plain))


@pytest.mark.parametrize("error", [Stop, torch.OutOfMemoryError, KeyboardInterrupt])
def test_a_fast_step_that_fails_leaves_no_trace(error: type[BaseException]) -> None:
    model, ids = llama(), ids_of(2, 6)
    step = Step.of(model.decoder)
    assert step is not None
    tried, plain = model.decoder.new_cache(), model.decoder.new_cache()

    def activation(_: torch.Tensor) -> torch.Tensor:
        raise error

    with torch.inference_mode():
        for past in (tried, plain):
            model(ids[:, :5], cache=past)
        x = model.embedding(ids[:, 5:])
        layers = [step.layers[0], step.layers[1]._replace(activation=activation)]
        with pytest.raises(error):
            Step(model.decoder, layers)(x * torch.nan, tried)
        with pytest.raises(RuntimeError):
            step(x * torch.nan, tried, real=torch.ones(2, 99, dtype=torch.bool))
        assert [own.length for own in tried] == [5, 5]
        assert torch.equal(step(x, tried), step(x, plain))
