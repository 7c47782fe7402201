"""What the tests of the explorer share: small runs, made of sights without a model."""

from __future__ import annotations

from typing import Any

import torch

import sightline as sl
from sightline.explore.run import Run, content_id
from sightline.lens import Sight

WORDS = ["the", "kids", "were", "scared", "of", "the", "lions", ",", "so", "they", "left", "right", "away", "."]


class Sights(dict):
    """A dictionary of sights as an account: what a saved run is made of, without a model."""

    @property
    def layers(self) -> list[str]:
        return list(self)


def sights(tokens: int, layers: int = 2, heads: int = 3, dim: int = 8, **options: Any) -> Sights:
    made = Sights()
    for i in range(layers):
        q, k = torch.randn(1, heads, tokens, dim), torch.randn(1, heads, tokens, dim)
        made[f"layers.{i}.attention"] = sl.look(2 * q, k, mask=sl.causal(), stats=("entropy", "received"), **options)
    return made


def make_run(account: Sights, tokens: list[str], **about: Any) -> Run:
    return Run(content_id(account, tokens, 0, about), account, tokens, **about)


def words(n: int) -> list[str]:
    return [WORDS[i % len(WORDS)] for i in range(n)]


def exact(run: Run, layer: int, head: int) -> torch.Tensor:
    """The whole map of a head."""
    sight: Sight = run.account[run.layers[layer].name]
    return sight.tile(slice(None), slice(None))[0, head]
