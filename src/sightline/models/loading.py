"""From a name or a folder to a model that runs, and its tokenizer."""

from __future__ import annotations

import math
import os
from typing import TYPE_CHECKING

import torch

from sightline.errors import InputError, InputTypeError
from sightline.memory import require
from sightline.models import build
from sightline.models.checkpoints.base import Checkpoint
from sightline.models.checkpoints.opening import open_checkpoint

if TYPE_CHECKING:
    from tokenizers import Tokenizer
    from torch import nn


def load(
    name_or_folder: str | os.PathLike[str],
    *,
    dtype: torch.dtype | None = None,
    device: torch.device | str | None = None,
) -> tuple[nn.Module, Tokenizer | None]:
    """A trained model made of `sl.nn` parts, ready to run, and its tokenizer (None if the checkpoint has none).

    `name_or_folder` is "minilm", "smollm2", a checkpoint folder (config.json, safetensors, tokenizer.json; a snapshot
    of the hub's cache is one), or a .gguf file. A folder that is called like a name is "./minilm". Nothing is
    downloaded, and no pickle is ever loaded.

    Without a `dtype` the weights are float32 on the CPU, where other kinds are slower and less exact, and as they are
    in the file elsewhere. Without a `device` the model is on the CPU.

    >>> model, tokenizer = load("minilm")
    >>> tokenizer.encode("so they left").tokens
    ['[CLS]', 'so', 'they', 'left', '[SEP]']
    """
    device = _device(device)
    checkpoint = open_checkpoint(name_or_folder)
    dtype = _dtype(checkpoint, dtype, device)
    # A tokenizer of another model is refused before memory is taken for this one.
    tokenizer = checkpoint.tokenizer
    size = checkpoint.parameters * dtype.itemsize
    require(f"the weights of {checkpoint.source}", size, device, "dtype=torch.bfloat16, a smaller model, or a GPU")

    return build.build(checkpoint, dtype=dtype, device=device), tokenizer


def _device(device: torch.device | str | None) -> torch.device:
    try:
        chosen = torch.device("cpu" if device is None else device)
        torch.empty(0, device=chosen)
    except (RuntimeError, AssertionError, TypeError) as error:
        raise InputError(
            "this device cannot be used",
            expected='one that torch has, such as "cpu" or "cuda"',
            got=f"{device!r}: {str(error).splitlines()[0]}",
            hint='device="cpu"',
        ) from error
    return chosen


def _dtype(checkpoint: Checkpoint, dtype: torch.dtype | None, device: torch.device) -> torch.dtype:
    if dtype is None:
        if device.type == "cpu" or not checkpoint.names:
            return torch.float32
        largest = max(checkpoint.names, key=lambda name: math.prod(checkpoint.shape(name)))
        kept = checkpoint.dtype(largest)
        return kept if kept.is_floating_point else torch.float32
    if not isinstance(dtype, torch.dtype) or not dtype.is_floating_point or dtype.itemsize < 2:
        raise InputTypeError(
            "weights cannot be of this dtype",
            expected="torch.float32, bfloat16, float16 or float64",
            got=dtype,
            hint="leave dtype out",
        )
    return dtype
