"""What every module that attends has in common: it can be observed, and monitored while it is trained."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torch import nn

from sightline.backends import attention
from sightline.nn.observe import announced, is_observed, observing
from sightline.nn.observe.tap import Tap

if TYPE_CHECKING:
    from torch import Tensor

    from sightline.lens import Sight


class Attends(nn.Module):
    """The base of modules that attend: they call `_attention` in the place of `sl.attention`."""

    def __init__(self) -> None:
        super().__init__()
        self._tap = Tap()

    def _attention(self, q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
        """`sl.attention`, open to whoever observes or monitors this module."""
        if self._tap.due:
            self._tap.take(q, k, options)
        if is_observed():
            return announced(self, q, k, v, options)
        return attention(q, k, v, **options)

    def observe(self, *args: Any, stats: Any = (), **options: Any) -> tuple[Tensor, Sight]:
        """The output of a call with these arguments, to the bit, and the sight of its heads.

        `stats` are computed in the same go, as in `sl.observe`; anything else is computed when first asked for. The
        sight shows the weights before dropout and carries no gradient. With a cache it holds a copy of the cache's
        keys so far, because the cache's memory is written to again.

        >>> import sightline as sl, torch
        >>> from sightline import nn as slnn
        >>> mha, x = slnn.MultiHeadAttention(64, heads=8), torch.randn(2, 5, 64)
        >>> out, sight = mha.observe(x, mask=sl.causal(), stats="entropy")
        >>> torch.equal(out, mha(x, mask=sl.causal())), sight.shape
        (True, (2, 8, 5, 5))
        """
        with observing(self, stats, layers=lambda name: not name) as sights:
            out: Tensor = self(*args, **options)
        return out, sights[""]
