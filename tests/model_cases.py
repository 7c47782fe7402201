"""Checkpoints for tests: small random ones as transformers writes them, and the real ones, each loaded once."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from sightline.models.build import build
from sightline.models.checkpoints.base import Checkpoint, SpecialTokens
from sightline.models.checkpoints.opening import open_checkpoint

SMALL = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4}
# Weights of this size make attention that looks somewhere; transformers' own 0.02 leaves it flat.
SPREAD = {"initializer_range": 0.3}


def theirs(kind: str, seed: int = 0, **config: Any) -> Any:
    """A random model of transformers, e.g. `theirs("LlamaForCausalLM", hidden_size=32)`."""
    import transformers

    model_class = getattr(transformers, kind)
    torch.manual_seed(seed)
    model = model_class(model_class.config_class(**{**SPREAD, **config})).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.dim() == 1:  # biases of 0 and norms of 1 would hide a wrong name
                parameter.add_(0.3 * torch.randn_like(parameter) * (1 if "bias" in name else 0.5))
    return model


def ours(model: Any, folder: Path, dtype: torch.dtype | None = None, **saving: Any) -> Any:
    """The same model, saved by transformers and loaded by Sightline."""
    model.save_pretrained(folder, **saving)
    return build(open_checkpoint(folder), dtype=dtype)


def ids_of(batch: int, time: int, vocabulary: int = 50, seed: int = 1) -> Tensor:
    return torch.randint(3, vocabulary, (batch, time), generator=torch.Generator().manual_seed(seed))


def assert_alike(got: Tensor, expected: Tensor, tolerance: float = 1e-5) -> None:
    """Equal within a tolerance of the largest number, and not by being flat."""
    assert got.shape == expected.shape
    scale = expected.abs().max().clamp_min(1.0)
    assert expected.std() > 0.05
    assert ((got - expected).abs().max() / scale).item() <= tolerance


@cache
def minilm() -> Any:
    return build(open_checkpoint("minilm"))


@cache
def smollm2() -> Any:
    return build(open_checkpoint("smollm2"))


@cache
def smollm2_tokenizer() -> Any:
    return open_checkpoint("smollm2").tokenizer


@cache
def minilm_tokenizer() -> Any:
    return open_checkpoint("minilm").tokenizer


class Held(Checkpoint):
    """A checkpoint in memory: any config with any tensors, and a list of what was read."""

    tokenizer = None

    def __init__(
        self, config: dict[str, Any], tensors: dict[str, Tensor], beside: dict[str, Any] | None = None
    ) -> None:
        self.source, self.config, self.tensors, self.files = "memory", config, tensors, beside or {}
        self.special = SpecialTokens()
        self.was_read: list[str] = []

    @property
    def names(self) -> list[str]:  # type: ignore[override]
        return list(self.tensors)

    def shape(self, name: str) -> tuple[int, ...]:
        return tuple(self.tensors[name].shape)

    def dtype(self, name: str) -> torch.dtype:
        return self.tensors[name].dtype

    def read(self, name: str, dtype: torch.dtype | None = None) -> Tensor:
        self.was_read.append(name)
        return self.tensors[name].to(dtype=dtype or self.dtype(name), copy=True)

    def beside(self, name: str) -> Any:
        return self.files.get(name)


def held(model: Any) -> Held:
    """A model of transformers as a checkpoint in memory, with the names of its modules."""
    tied = model.config.tie_word_embeddings
    tensors = {name: t for name, t in model.state_dict().items() if not (tied and name == "lm_head.weight")}
    return Held(model.config.to_dict(), tensors)


@cache
def their_minilm() -> Any:
    from transformers import BertModel

    return BertModel.from_pretrained(open_checkpoint("minilm")._folder).eval()


@cache
def their_smollm2() -> Any:
    """transformers' model with the weights that Sightline read, put in by hand; nothing is drawn at random first."""
    from transformers import LlamaConfig, LlamaForCausalLM
    from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

    checkpoint = open_checkpoint("smollm2")
    said = {key: value for key, value in checkpoint.config.items() if key not in ("model_type", "rope_scaling")}
    config = LlamaConfig(**{key: value for key, value in said.items() if value is not None})
    with torch.device("meta"):
        model = LlamaForCausalLM(config)
    tensors = {name: checkpoint.read(name, torch.float32) for name in checkpoint.names}
    model.load_state_dict({**tensors, "lm_head.weight": tensors["model.embed_tokens.weight"]}, assign=True)
    model.tie_weights()
    model.model.rotary_emb = LlamaRotaryEmbedding(config)
    model.generation_config.eos_token_id = None
    return model.eval()
