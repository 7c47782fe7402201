"""One self-attention head: queries, keys and values made directly from the input."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch import Tensor, nn

from sightline import normalizers
from sightline.masks import as_mask, causal
from sightline.nn.checks import check_sequence, share
from sightline.nn.observe.attends import Attends
from sightline.positions.base import whole

if TYPE_CHECKING:
    from jaxtyping import Float

    from sightline.backends.call import MaskLike


class AttentionHead(Attends):
    """One head of self-attention, masked (causal, as in GPT) or bidirectional (as in BERT).

    Everything happens inside the input: W_q, W_k and W_v, here the weights of `query`, `key` and `value`, are the
    only things that are learned.

    Args:
        width: channels of a token.
        head_size: channels of a query, a key and a value, and so of the output.
        masked: every token sees only itself and its past.
        bias: whether the three projections have one.
        dropout: the share of weights dropped in training.
        normalizer: how scores become weights, as in `sl.attention`.
        backend: as in `sl.attention`.

    >>> import torch
    >>> from sightline import nn as slnn
    >>> head = slnn.AttentionHead(32, head_size=16, masked=True)
    >>> head(torch.randn(4, 8, 32)).shape
    torch.Size([4, 8, 16])
    >>> [name for name, _ in head.named_parameters()]
    ['query.weight', 'key.weight', 'value.weight']
    """

    def __init__(
        self,
        width: int,
        head_size: int,
        *,
        masked: bool = False,
        bias: bool = False,
        dropout: float = 0.0,
        normalizer: str = "softmax",
        backend: str = "auto",
    ) -> None:
        super().__init__()
        normalizers.get(normalizer)
        self.width, self.head_size = whole("width", width), whole("head_size", head_size)
        self.masked = masked
        self.dropout = share("dropout", dropout)
        self.normalizer, self.backend = normalizer, backend
        self.query = nn.Linear(self.width, self.head_size, bias=bias)
        self.key = nn.Linear(self.width, self.head_size, bias=bias)
        self.value = nn.Linear(self.width, self.head_size, bias=bias)

    def forward(
        self, x: Float[Tensor, "*batch time width"], *, mask: MaskLike = None
    ) -> Float[Tensor, "*batch time head_size"]:
        check_sequence(self, "x", x, self.width)
        # [*batch, 1, time, head_size]: a head of its own, so that masks find the batch where they expect it.
        q, k, v = (project(x).unsqueeze(-3) for project in (self.query, self.key, self.value))
        if self.masked:
            mask = causal() if mask is None else causal() & as_mask(mask)
        return self._attend(q, k, v, mask).squeeze(-3)

    def _attend(self, q: Tensor, k: Tensor, v: Tensor, mask: MaskLike) -> Tensor:
        """Attention itself, in one place: q, k and v are `[*batch, 1, time, head_size]`."""
        dropout = self.dropout if self.training else 0.0
        return self._attention(q, k, v, mask=mask, normalizer=self.normalizer, dropout=dropout, backend=self.backend)

    def extra_repr(self) -> str:
        return f"{self.width}, {self.head_size}, masked={self.masked}"
