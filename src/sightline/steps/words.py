"""Words without a model: random embeddings and weights, for worked examples (S2.3, S2.4)."""

from __future__ import annotations

import math
import zlib
from collections.abc import Sequence

import torch
from torch import Tensor

from sightline.errors import InputError, InputTypeError
from sightline.steps.explaining import explain
from sightline.steps.steps import Steps

# Words of an example: a longer text is not worked through.
MOST = 4096


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
            drawn[word] = torch.randn(width, generator=_generator(seed, name), dtype=torch.float64)
    return torch.stack([drawn[word] for word in words]) if words else torch.zeros(0, width, dtype=torch.float64)


def explain_words(sentence: str, *, seed: int = 0, width: int = 512, head_size: int = 64) -> Steps:
    """The worked example for any sentence: one untrained head on untrained embeddings, the same for the same seed.

    >>> steps = explain_words("Action gets results")
    >>> steps["q"].shape, round(steps.table("gets").total, 9)
    (torch.Size([3, 64]), 1.0)
    """
    if not isinstance(sentence, str):
        raise InputTypeError(
            "a sentence is text", expected="str", got=type(sentence).__name__, hint='"Action gets results"'
        )
    words = sentence.split()
    if not 0 < len(words) <= MOST:
        raise InputError(
            "there are no words" if not words else "these are too many words to work through",
            expected=f"1 to {MOST:,} words",
            got=f"{len(words):,}",
            hint='"Action gets results"',
        )
    x = embed_words(words, width, seed)
    drawn = torch.randn(3, width, head_size, generator=_generator(seed, 1 << 32), dtype=torch.float64)
    w_q, w_k, w_v = drawn / math.sqrt(width)
    steps = explain(x, w_q=w_q, w_k=w_k, w_v=w_v, labels=words)
    steps.title = "Self-attention of: " + (sentence if len(sentence) <= 80 else sentence[:79] + "…")
    steps.notes = (
        f"Untrained: the embeddings of {width} numbers and the weights W_q, W_k, W_v are random, always the same for "
        f"seed {seed}. Who looks at whom means nothing here; how it is computed does.",
        f"Embeddings times W_q, W_k and W_v give vectors of {head_size} numbers; the scores are divided by the root "
        f"of {head_size}, {math.sqrt(head_size):g}.",
    )
    return steps


def _generator(seed: int, name: int) -> torch.Generator:
    if isinstance(seed, bool) or not isinstance(seed, int) or not 0 <= seed < 1 << 30:
        raise InputError("this is no seed", expected=f"0 to {(1 << 30) - 1}", got=seed, hint="seed=0")
    return torch.Generator().manual_seed((seed << 33) + name)
