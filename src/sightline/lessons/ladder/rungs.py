"""The rungs of the ladder: nine models, each with one thing more than the one before (S0.7).

Every rung predicts the next character from the character itself and from what it gathered of its past:

    logits = readout([x, gather(x)])      x = embed(characters)      [batch, time, width]

and only `gather` differs from rung to rung. The readout always sees x beside the gathered past: an average of forty
characters no longer says which one came last, and without x the second rung would fall below the first.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from sightline.backends import attention
from sightline.masks import causal
from sightline.nn import AttentionHead, Decoder, FeedForward, MultiHeadAttention
from sightline.positions import Rotary

if TYPE_CHECKING:
    from jaxtyping import Float, Int

# Embeddings start small: the weight-free rung then begins close to the average. With the usual 1 every character is by
# far most similar to itself, attends to itself alone, and learns nothing from its past.
EMBEDDING_STD = 0.3


@dataclass(frozen=True)
class Sizes:
    """What all rungs share.

    >>> Sizes(width=64, heads=4, layers=4).head_dim
    16
    """

    width: int
    heads: int
    layers: int

    @property
    def head_dim(self) -> int:
        """Channels of one of several heads."""
        return self.width // self.heads


class WeightFree(nn.Module):
    """Attention without weights: q = k = v = x (S4.1). With `normalizer="uniform"`, the average of the past (S0.1).

    >>> WeightFree("uniform")(torch.tensor([[[0.0], [1.0], [5.0]]])).flatten()
    tensor([0.0000, 0.5000, 2.0000])
    """

    def __init__(self, normalizer: str = "softmax") -> None:
        super().__init__()
        self.normalizer = normalizer

    def forward(self, x: Float[Tensor, "batch time width"]) -> Float[Tensor, "batch time width"]:
        x = x.unsqueeze(-3)  # one head: [batch, 1, time, width]
        return attention(x, x, x, mask=causal(), normalizer=self.normalizer).squeeze(-3)


class Causal(nn.Module):
    """Multi-head attention that sees only the past.

    >>> Causal(MultiHeadAttention(8, heads=2))(torch.randn(3, 5, 8)).shape
    torch.Size([3, 5, 8])
    """

    def __init__(self, heads: MultiHeadAttention) -> None:
        super().__init__()
        self.heads = heads

    def forward(self, x: Float[Tensor, "batch time width"]) -> Float[Tensor, "batch time width"]:
        out: Tensor = self.heads(x, mask=causal())
        return out


@dataclass(frozen=True)
class Rung:
    """One rung: its name, what it adds to the one below, and how a character gathers its past there."""

    name: str
    adds: str
    gather: Callable[[Sizes], nn.Module | None]

    def model(self, alphabet: int, sizes: Sizes, seed: int) -> Predictor:
        """The rung's model with fresh weights, the same for the same seed; the global random state is left alone.

        >>> RUNGS[0].model(30, Sizes(16, 2, 2), seed=0)(torch.zeros(4, 5, dtype=torch.long)).shape
        torch.Size([4, 5, 30])
        """
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            return Predictor(alphabet, sizes.width, self.gather(sizes))


class Predictor(nn.Module):
    """Predicts the next character from a character and what it gathers of its past.

    >>> Predictor(30, 16, WeightFree())(torch.zeros(4, 5, dtype=torch.long)).shape
    torch.Size([4, 5, 30])
    """

    def __init__(self, alphabet: int, width: int, gather: nn.Module | None) -> None:
        super().__init__()
        self.embed = nn.Embedding(alphabet, width)
        nn.init.normal_(self.embed.weight, std=EMBEDDING_STD)
        self.gather = gather
        self.readout = nn.Linear(width if gather is None else 2 * width, alphabet)

    def forward(self, characters: Int[Tensor, "batch time"]) -> Float[Tensor, "batch time alphabet"]:
        x = self.embed(characters)  # [batch, time, width]
        known = x if self.gather is None else torch.cat((x, self.gather(x)), dim=-1)
        logits: Tensor = self.readout(known)
        return logits


def _heads(sizes: Sizes) -> nn.Module:
    return Causal(MultiHeadAttention(sizes.width, sizes.heads))


def _decoder(sizes: Sizes, layers: int = 1, positions: bool = True) -> nn.Module:
    # Rotary positions are read by every layer: each of several layers knows how far apart two characters are.
    scheme = Rotary(sizes.head_dim) if positions else None
    return Decoder(sizes.width, sizes.heads, layers, positions=scheme)


RUNGS = (
    Rung("no communication", "each for itself", lambda sizes: None),
    Rung("average", "the mean of the past", lambda sizes: WeightFree("uniform")),  # S0.1
    Rung("weight-free", "softmax of x.x", lambda sizes: WeightFree()),  # S4.1
    Rung("one head", "learned q, k and v", lambda s: AttentionHead(s.width, s.width, masked=True)),  # S0.4
    Rung("several heads", "side by side", _heads),  # S0.5
    Rung("feed-forward", "a network for each", lambda s: nn.Sequential(_heads(s), FeedForward(s.width))),
    Rung("residuals and norms", "added to the input", lambda s: _decoder(s, positions=False)),
    Rung("positions", "how far apart", _decoder),  # S0.6
    Rung("several layers", "one after another", lambda s: _decoder(s, s.layers)),
)
