"""From the vectors of tokens to one vector for a text, as the files of a sentence encoder say."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from sightline.errors import InputError
from sightline.models.checkpoints.base import Checkpoint

# What 1_Pooling/config.json calls them, and what they are here.
MODES = {
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_cls_token": "first",
    "pooling_mode_max_tokens": "max",
}


@dataclass(frozen=True)
class Pooling:
    """How the vectors of a text's tokens become one.

    Args:
        mode: `"mean"` over the tokens, the `"first"` token, the `"max"` of each channel; None if it is not known.
        normalize: whether the vector is scaled to length 1.
        longest: how many tokens of a text are read; the rest is cut off.

    >>> Pooling("mean", True, 256)(torch.ones(2, 3, 4), torch.tensor([3, 1])).norm(dim=-1)
    tensor([1., 1.])
    """

    mode: str | None
    normalize: bool
    longest: int

    def __call__(self, states: Tensor, lengths: Tensor, normalize: bool | None = None) -> Tensor:
        """One vector for each text, `[batch, width]`, of states `[batch, time, width]` that end with padding."""
        if self.mode is None:
            raise InputError(
                "how this model makes one vector of a text is not known here",
                expected=f"modules.json with pooling by {', '.join(MODES.values())}",
                got="another kind of pooling, or more layers behind it",
                hint="pool the hidden states: model(model.batch(text).ids)",
            )
        real = (torch.arange(states.shape[1], device=states.device) < lengths.to(states.device)[:, None])[..., None]
        if self.mode == "first":
            pooled = states[:, 0]
        elif self.mode == "max":
            pooled = states.masked_fill(~real, -torch.inf).amax(1)
        else:
            pooled = states.masked_fill(~real, 0.0).sum(1) / lengths.to(states)[:, None].clamp_min(1)
        return F.normalize(pooled, dim=-1) if (self.normalize if normalize is None else normalize) else pooled


def read_pooling(checkpoint: Checkpoint, context: int) -> Pooling:
    """What modules.json and the files it names say; without them the plain mean of at most `context` tokens."""
    modules = checkpoint.beside("modules.json")
    if not isinstance(modules, list):
        return Pooling("mean", False, context)
    kinds = {str(m.get("type", "")).rpartition(".")[2]: m for m in modules if isinstance(m, dict)}
    limit = (checkpoint.beside("sentence_bert_config.json") or {}).get("max_seq_length")
    longest = min(limit, context) if type(limit) is int and limit > 0 else context
    known = set(kinds) <= {"Transformer", "Pooling", "Normalize"} and "Pooling" in kinds
    return Pooling(_mode(checkpoint, kinds) if known else None, "Normalize" in kinds, longest)


def _mode(checkpoint: Checkpoint, kinds: dict[str, Any]) -> str | None:
    said = checkpoint.beside(f"{kinds['Pooling'].get('path')}/config.json") or {}
    chosen = [key for key, wanted in said.items() if key.startswith("pooling_mode_") and wanted is True]
    return MODES.get(chosen[0]) if len(chosen) == 1 else None
