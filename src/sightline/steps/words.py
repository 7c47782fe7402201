"""Untrained embeddings for words: for worked examples where no model is at hand."""

from __future__ import annotations

import zlib
from collections.abc import Sequence

import torch
from torch import Tensor


def embed_words(words: Sequence[str], width: int = 512, seed: int = 0) -> Tensor:
    """Random embeddings `[time, width]` in float64: a word always has the same one, wherever it stands.

    Nothing was learned: words that mean alike are no nearer to each other than any others.

    >>> x = embed_words("to be or not to be".split())
    >>> x.shape, x[0].equal(x[4]), x[0].equal(x[1])
    (torch.Size([6, 512]), True, False)
    """
    drawn: dict[str, Tensor] = {}
    for word in words:
        if word not in drawn:
            name = zlib.crc32(word.encode("utf-8", "surrogatepass"))
            generator = torch.Generator().manual_seed((seed << 32) + name)
            drawn[word] = torch.randn(width, generator=generator, dtype=torch.float64)
    return torch.stack([drawn[word] for word in words]) if words else torch.zeros(0, width, dtype=torch.float64)
