"""A trained model on disk, opened but not read: its config, and the names, shapes and dtypes of its tensors.

Whatever a file claims is compared with the size of the file first, so that opening a damaged or hostile one takes no
memory to speak of. Tensors are read one at a time.
"""

from __future__ import annotations

import math
import os
from abc import ABC, abstractmethod
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from sightline.errors import InputError, InputTypeError

if TYPE_CHECKING:
    from tokenizers import Tokenizer


class CheckpointError(InputError):
    """A checkpoint that is damaged, incomplete or contradicts itself; refused before memory is taken.

    >>> issubclass(CheckpointError, ValueError)
    True
    """


def refused(what: str, *, expected: object, got: object, hint: str) -> CheckpointError:
    """The error for a checkpoint that cannot be used, in the usual four lines.

    >>> print(refused("no", expected="a", got="b", hint="c"))
    no
      expected: a
      got: b
      try: c
    """
    return CheckpointError(what, expected=expected, got=got, hint=hint)


@dataclass(frozen=True)
class SpecialTokens:
    """The token ids a model begins, ends and pads with, and the template of its chats, as far as its files say.

    >>> SpecialTokens(eos=(2,)).bos is None
    True
    """

    bos: int | None = None
    eos: tuple[int, ...] = ()
    pad: int | None = None
    unk: int | None = None
    chat_template: str | None = None


class Checkpoint(ABC):
    """A trained model on disk, opened but not read.

    `source` is what was opened, for messages. `config` is what config.json says; for a GGUF file the same keys, made
    from its metadata. `names` are Hugging Face's names of the tensors, for a GGUF file too. `special` says which tokens
    begin, end and pad a text.

    >>> checkpoint = open_checkpoint("minilm")
    >>> checkpoint.parameters
    22713728
    >>> checkpoint.read("embeddings.LayerNorm.weight", torch.float64).shape
    torch.Size([384])
    """

    source: str
    config: dict[str, Any]
    names: list[str]
    special: SpecialTokens

    @abstractmethod
    def shape(self, name: str) -> tuple[int, ...]:
        """The shape of a tensor, from the header alone."""

    @abstractmethod
    def dtype(self, name: str) -> torch.dtype:
        """The dtype in which a tensor is read when none is asked for; float32 for quantised ones."""

    @abstractmethod
    def read(self, name: str, dtype: torch.dtype | None = None) -> Tensor:
        """One tensor, in memory of its own, on the CPU; nothing else of the file is read."""

    @property
    @abstractmethod
    def tokenizer(self) -> Tokenizer | None:
        """The tokenizer that comes with the weights, without padding and truncation; None where there is none."""

    def beside(self, name: str) -> Any:
        """What a small JSON file beside the weights says (`"1_Pooling/config.json"`); None if it is not there."""
        return None

    @property
    def parameters(self) -> int:
        """How many numbers the tensors hold together."""
        return sum(math.prod(self.shape(name)) for name in self.names)

    def __contains__(self, name: str) -> bool:
        return name in self.names


def open_checkpoint(name_or_path: str | os.PathLike[str]) -> Checkpoint:
    """Open a built-in model by its name, a folder with config.json and safetensors, or a .gguf file.

    Nothing large is read yet.

    >>> checkpoint = open_checkpoint("minilm")
    >>> checkpoint.shape("embeddings.word_embeddings.weight")
    (30522, 384)
    >>> open_checkpoint("no/such/folder")
    Traceback (most recent call last):
    ...
    sightline.models.checkpoint.CheckpointError: no/such/folder is not there
      expected: minilm, smollm2, a folder with config.json and *.safetensors, or a .gguf file
      got: nothing of that name
      try: check the path; nothing is downloaded
    """
    from sightline.models.builtin import BUILTINS, open_builtin

    if isinstance(name_or_path, str) and name_or_path in BUILTINS:
        return open_builtin(name_or_path)
    if not isinstance(name_or_path, str | os.PathLike):
        raise InputTypeError(
            "a model is asked for by name or by path",
            expected="text or a path",
            got=type(name_or_path).__name__,
            hint='load("minilm")',
        )
    return open_path(Path(name_or_path).expanduser())


def open_path(path: Path) -> Checkpoint:
    """Open a folder or a .gguf file."""
    if path.is_dir():
        from sightline.models.folder import FolderCheckpoint

        return FolderCheckpoint(path)
    there = path.exists()
    if there and path.suffix == ".gguf":
        from sightline.models.gguf_file import GGUFCheckpoint

        return GGUFCheckpoint(path)
    raise refused(
        f"{path} is not a checkpoint" if there else f"{path} is not there",
        expected="minilm, smollm2, a folder with config.json and *.safetensors, or a .gguf file",
        got="a file of another kind" if there else "nothing of that name",
        hint="give the folder the file lies in" if there else "check the path; nothing is downloaded",
    )
