"""Opening a checkpoint: a built-in model by its name, a folder or a file by its path."""

from __future__ import annotations

import os
from pathlib import Path

from sightline.errors import InputTypeError
from sightline.models.checkpoints import builtin
from sightline.models.checkpoints.base import Checkpoint
from sightline.models.checkpoints.formats import open_path


def open_checkpoint(name_or_path: str | os.PathLike[str]) -> Checkpoint:
    """Open a built-in model by its name, a folder with config.json and safetensors, or a .gguf file.

    Nothing large is read yet.

    >>> checkpoint = open_checkpoint("minilm")
    >>> checkpoint.shape("embeddings.word_embeddings.weight")
    (30522, 384)
    >>> open_checkpoint("no/such/folder")
    Traceback (most recent call last):
    ...
    sightline.models.checkpoints.base.CheckpointError: no/such/folder is not there
      expected: minilm, smollm2, a folder with config.json and *.safetensors, or a .gguf file
      got: nothing of that name
      try: check the path; nothing is downloaded
    """
    if isinstance(name_or_path, str) and name_or_path in builtin.BUILTINS:
        return builtin.open_builtin(name_or_path)
    if not isinstance(name_or_path, str | os.PathLike):
        raise InputTypeError(
            "a model is asked for by name or by path",
            expected="text or a path",
            got=type(name_or_path).__name__,
            hint='load("minilm")',
        )
    return open_path(Path(name_or_path).expanduser())
