"""What a layer of an encoder and of a decoder have in common: attention, feed-forward, and a norm at each."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, TypedDict

from torch import Tensor, nn

from sightline.errors import InputTypeError
from sightline.masks import Mask, as_mask
from sightline.nn.checks import share
from sightline.nn.fast.encoder_layer import Lean
from sightline.nn.feedforward import FeedForward
from sightline.nn.multihead import MultiHeadAttention
from sightline.nn.norms import make_norm
from sightline.nn.observe import Observable

if TYPE_CHECKING:
    from sightline.backends.call import MaskLike
    from sightline.positions import Alibi


class LayerOptions(TypedDict, total=False):
    """The options of a layer, which stacks hand on. What they mean is in `EncoderLayer`."""

    hidden: int | None
    kv_heads: int | None
    head_dim: int | None
    norm: str
    norm_first: bool
    norm_output: bool
    eps: float
    activation: str
    gated: bool
    bias: bool
    dropout: float
    softcap: float | None
    sinks: bool
    normalizer: str
    scale: float | None
    backend: str


class Layer(Observable):
    """Self-attention and feed-forward, each added to what came in."""

    def __init__(
        self,
        width: int,
        heads: int,
        *,
        hidden: int | None = None,
        positions: nn.Module | Alibi | None = None,
        mask: Mask | None = None,
        kv_heads: int | None = None,
        head_dim: int | None = None,
        norm: str = "layer",
        norm_first: bool = True,
        norm_output: bool = False,
        eps: float = 1e-5,
        activation: str = "gelu",
        gated: bool = False,
        bias: bool = True,
        dropout: float = 0.0,
        softcap: float | None = None,
        sinks: bool = False,
        normalizer: str = "softmax",
        scale: float | None = None,
        backend: str = "auto",
    ) -> None:
        super().__init__()
        if mask is not None and not isinstance(mask, Mask):
            raise InputTypeError(
                "the mask of a layer is a rule",
                expected="sl.causal(), sl.window(…) or another mask of Sightline, or None",
                got=type(mask).__name__,
                hint="give what differs from call to call in the call: layer(x, mask=…)",
            )
        self.attention = MultiHeadAttention(
            width,
            heads,
            kv_heads=kv_heads,
            head_dim=head_dim,
            bias=bias,
            positions=positions,
            dropout=dropout,
            softcap=softcap,
            sinks=sinks,
            normalizer=normalizer,
            scale=scale,
            backend=backend,
        )
        self.feed_forward = FeedForward(width, hidden, activation=activation, gated=gated, bias=bias, dropout=dropout)
        self.width, self.mask = self.attention.width, mask
        self.norm_first, self.norm_output = norm_first, norm_output
        self.dropout = nn.Dropout(share("dropout", dropout))
        self._lean = Lean()
        for name in ("attention", "feed_forward"):
            self._add_norms(name, norm, eps, bias)

    def _add_norms(self, name: str, norm: str, eps: float, bias: bool) -> None:
        self.add_module(f"{name}_norm", make_norm(norm, self.width, eps=eps, bias=bias))
        if self.norm_output:
            self.add_module(f"{name}_output_norm", make_norm(norm, self.width, eps=eps, bias=bias))

    def _residual(self, name: str, x: Tensor, part: Callable[[Tensor], Tensor]) -> Tensor:
        """x and what a part of the layer adds to it, with the norm before the part or after the sum."""
        norm = getattr(self, f"{name}_norm")
        added = part(norm(x) if self.norm_first else x)
        if self.norm_output:
            # Under autocast a part gives half precision, and an RMS norm wants the precision of its weight.
            added = getattr(self, f"{name}_output_norm")(added.to(x.dtype))
        total: Tensor = x + (self.dropout(added) if self.training else added)
        return total if self.norm_first else norm(total)

    def _masked(self, mask: MaskLike) -> MaskLike:
        """The mask of the call, and the rule of the layer."""
        if self.mask is None or mask is None:
            return self.mask if mask is None else mask
        return self.mask & as_mask(mask)

    def extra_repr(self) -> str:
        return f"norm_first={self.norm_first}, mask={self.mask}"
