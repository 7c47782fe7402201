"""What a model is known by, so that a survey never goes on with another one of the same name."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from sightline.models.checkpoints.builtin import BUILTINS

# What a checkpoint is read from: its weights, its configuration and its tokenizer.
_SUFFIXES = (".safetensors", ".gguf", ".json", ".txt", ".model")


def fingerprint(model: Any) -> str:
    """A sum of all weights: of the tensors of a model, or of the files that a name or a folder stands for.

    >>> one, other = nn.Linear(2, 2), nn.Linear(2, 2)
    >>> fingerprint(one) == fingerprint(one), fingerprint(one) == fingerprint(other)
    (True, False)
    """
    if isinstance(model, nn.Module):
        return _of_tensors(model)
    if model in BUILTINS:
        return BUILTINS[model].sum[:24]
    path, found = Path(model), hashlib.sha256()
    files = sorted(file for file in path.iterdir() if file.suffix in _SUFFIXES) if path.is_dir() else [path]
    for file in files:
        if file.is_file():
            with file.open("rb") as content:
                found.update(f"{file.name} {hashlib.file_digest(content, 'sha256').hexdigest()} ".encode())
    return found.hexdigest()[:24]


def of_tokenizer(tokenizer: Any) -> str:
    """What a tokenizer is known by: a sum of all it says of itself, or its kind where it says nothing."""
    said = tokenizer.to_str() if hasattr(tokenizer, "to_str") else type(tokenizer).__qualname__
    return hashlib.sha256(said.encode()).hexdigest()[:24]


def _of_tensors(model: nn.Module) -> str:
    found = hashlib.sha256()
    for name, tensor in [*model.named_parameters(), *model.named_buffers()]:
        found.update(f"{name} {tensor.dtype} {tuple(tensor.shape)} ".encode())
        found.update(_bytes(tensor.detach()))
    return found.hexdigest()[:24]


def _bytes(tensor: Tensor) -> Any:
    """What a tensor holds; of one whose bytes are not to be had (sparse, or without data) what is shown of it."""
    try:
        return tensor.cpu().flatten().contiguous().view(torch.uint8).numpy()
    except (RuntimeError, NotImplementedError, TypeError):
        return repr(tensor).encode()
