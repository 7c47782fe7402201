"""A trained model on disk, opened but not read: its config, and the names, shapes and dtypes of its tensors.

Whatever a file claims is compared with the size of the file first, so that opening a damaged or hostile one takes no
memory to speak of. Tensors are read one at a time.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from sightline.errors import InputError

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

    >>> from sightline.models import open_checkpoint
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
