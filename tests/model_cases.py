"""Checkpoints for tests: small random ones as transformers writes them, and the real ones, each loaded once."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from sightline.models.build import build
from sightline.models.checkpoint import open_checkpoint

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
