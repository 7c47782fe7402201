"""From a name or a folder to a model that runs, and its tokenizer."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import torch
from torch import nn

from sightline.models.checkpoint import open_checkpoint

if TYPE_CHECKING:
    from tokenizers import Tokenizer


def load(
    name_or_folder: str | os.PathLike[str],
    *,
    dtype: torch.dtype | None = None,
    device: torch.device | str | None = None,
) -> tuple[nn.Module, Tokenizer | None]:
    """A model made of `sl.nn` parts, and its tokenizer."""
    from sightline.models.build import build  # type: ignore[import-not-found, unused-ignore]

    checkpoint = open_checkpoint(name_or_folder)
    return build(checkpoint, dtype=dtype, device=device), checkpoint.tokenizer
