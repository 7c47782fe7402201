"""The norm of a layer, by name: layer norm (mean and variance) or RMS norm (size alone)."""

from __future__ import annotations

from torch import nn

from sightline.nn.checks import check_name

NORMS = ("layer", "rms")


def make_norm(norm: str, width: int, *, eps: float = 1e-5, bias: bool = True) -> nn.Module:
    """A norm over the width: `"layer"` as in BERT and GPT-2, `"rms"` as in Llama, which has no bias.

    >>> make_norm("rms", 8)
    RMSNorm((8,), eps=1e-05, elementwise_affine=True)
    """
    check_name("norm", norm, NORMS)
    if norm == "layer":
        return nn.LayerNorm(width, eps=eps, bias=bias)
    return nn.RMSNorm(width, eps=eps)
