"""One attention call: its tensors in one layout, its options checked once, before any work starts."""

from __future__ import annotations

import dataclasses
import math
from typing import TYPE_CHECKING, TypeAlias

import torch
from torch import Tensor

from sightline import normalizers
from sightline.biases import Bias, as_bias
from sightline.errors import InputError, InputTypeError
from sightline.masks import Mask, as_mask
from sightline.portable import broadcasts
from sightline.shapes import Sizes, as_number, default_scale, sizes_of

if TYPE_CHECKING:
    from sightline.normalizers import Normalizer


MaskLike: TypeAlias = Mask | Tensor | None
BiasLike: TypeAlias = Bias | Tensor | None


@dataclasses.dataclass(
    slots=True, eq=False
)  # never changed once made; not frozen, which would cost a microsecond a field
class Call:
    """Everything a backend needs to know. q, k and v have at least three axes here: `[*batch, heads, time, dim]`."""

    q: Tensor
    k: Tensor
    v: Tensor
    sizes: Sizes
    mask: Mask | None
    bias: BiasLike
    scale: float
    softcap: float | None
    sinks: Tensor | None
    normalizer: Normalizer
    dropout: float
    # Of an account alone: the logarithm of what rows are divided by, less that of their own sum, `[*batch, heads,
    # queries]`. Edits can take keys away and leave the others as they are; what a sink has is in it too.
    lost: Tensor | None = None

    @property
    def device(self) -> torch.device:
        return self.q.device

    @property
    def compute_dtype(self) -> torch.dtype:
        """Scores and sums are held in float32 at least."""
        return torch.float64 if self.q.dtype == torch.float64 else torch.float32

    @property
    def is_plain(self) -> bool:
        """Softmax without soft-cap and sinks: what fused kernels compute."""
        return self.normalizer.is_softmax and self.softcap is None and self.sinks is None

    def replace(self, **changes: object) -> Call:
        # dataclasses.replace takes four times as long.
        kept = {name: getattr(self, name) for name in self.__slots__}
        return Call(**(kept | changes))


def make_call(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    mask: MaskLike = None,
    bias: BiasLike = None,
    scale: float | None = None,
    softcap: float | None = None,
    sinks: Tensor | None = None,
    normalizer: str = "softmax",
    dropout: float = 0.0,
) -> Call:
    """Check every argument and bring the tensors into the layout; raises before any work is done.

    >>> make_call(torch.zeros(5, 8), torch.zeros(7, 8), torch.zeros(7, 8)).q.shape
    torch.Size([1, 5, 8])
    """
    q, k, v = _autocast(q, k, v)
    sizes = sizes_of(q, k, v)
    scale = default_scale(sizes.dim) if scale is None else check_number("scale", scale)
    if scale <= 0:
        # Torch's fused kernels hide keys before they scale: -inf times a scale that is not positive goes wrong.
        q, scale = (-q, -scale) if scale else (q * 0, 1.0)
    if q.dim() == 2:
        q, k, v = q[None], k[None], v[None]
    rule = normalizers.get(normalizer)
    if mask is not None:
        mask = as_mask(mask)
        mask.check(sizes.batch, sizes.heads, sizes.queries, sizes.keys, q.device)
    if bias is not None:
        bias = as_bias(bias)
        check_bias(bias, sizes, q.device)
    if sinks is not None:
        check_sinks(sinks, sizes, rule, q.device)
    return Call(
        q,
        k,
        v,
        sizes,
        mask,
        bias,
        scale,
        None if softcap is None else check_softcap(softcap),
        sinks,
        rule,
        _dropout(dropout) if dropout else 0.0,
    )


def _autocast(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Under torch.autocast attention runs in the lower precision, as torch's own does."""
    if not isinstance(q, Tensor) or q.is_meta or not torch.is_autocast_enabled(q.device.type):
        return q, k, v
    dtype = torch.get_autocast_dtype(q.device.type)

    def cast(t: Tensor) -> Tensor:
        eligible = isinstance(t, Tensor) and t.is_floating_point() and t.dtype != torch.float64
        return t.to(dtype) if eligible else t

    return cast(q), cast(k), cast(v)


def check_bias(bias: Bias | Tensor, sizes: Sizes, device: torch.device) -> None:
    """Raise if a bias does not fit a call of these sizes."""
    if isinstance(bias, Bias):
        bias.check(sizes.batch, sizes.heads, sizes.queries, sizes.keys)
        return
    if not bias.is_floating_point():
        raise InputTypeError(
            "a bias must be floating point",
            expected="a floating dtype; it is added to the scores",
            got=bias.dtype,
            hint="pass booleans as mask=…, or use bias.float()",
        )
    target = (*sizes.batch, sizes.heads, sizes.queries, sizes.keys)
    if not broadcasts(bias.shape, target):
        raise InputError(
            "the bias does not fit the call",
            expected=f"a shape that broadcasts to {target} = [*batch, heads, queries, keys]",
            got=tuple(bias.shape),
            hint="add axes with unsqueeze",
        )
    if bias.device != device:
        raise InputError("the bias is on another device", expected=device, got=bias.device, hint="bias.to(q.device)")


def check_sinks(sinks: object, sizes: Sizes, rule: Normalizer, device: torch.device) -> None:
    """Raise if sinks do not fit a call of these sizes."""
    if not rule.is_softmax:
        raise InputError(
            "sinks are part of the softmax",
            expected='normalizer="softmax"',
            got=repr(rule.name),
            hint="leave out sinks, or use softmax",
        )
    if not isinstance(sinks, Tensor) or not sinks.is_floating_point():
        raise InputTypeError(
            "sinks must be a floating tensor",
            expected="one logit per head",
            got=getattr(sinks, "dtype", type(sinks).__name__),
            hint="torch.zeros(heads)",
        )
    if not broadcasts(sinks.shape, (*sizes.batch, sizes.heads)):
        raise InputError(
            "the sinks do not fit the call",
            expected=f"[{sizes.heads}], one logit per head",
            got=tuple(sinks.shape),
            hint="torch.zeros(heads)",
        )
    if sinks.device != device:
        raise InputError(
            "the sinks are on another device", expected=device, got=sinks.device, hint="sinks.to(q.device)"
        )


def check_number(name: str, value: object) -> float:
    """A finite number, or an error."""
    number = as_number(value)
    if number is None:
        raise InputTypeError(
            f"{name} must be a number", expected="float", got=type(value).__name__, hint=f"float({name})"
        )
    if not -math.inf < number < math.inf:  # in a compiled graph it may be a symbol, which isfinite does not take
        raise InputError(
            f"{name} must be finite", expected="a finite number", got=value, hint="leave it out for the default"
        )
    return number


def check_softcap(softcap: object) -> float:
    """A positive finite number, or an error."""
    value = check_number("softcap", softcap)
    if value <= 0:
        raise InputError(
            "the soft-cap must be positive", expected="more than 0", got=value, hint="softcap=None for none"
        )
    return value


def _dropout(dropout: object) -> float:
    value = check_number("dropout", dropout)
    if not 0 <= value < 1:
        raise InputError(
            "dropout must be a probability below 1", expected="0 <= dropout < 1", got=value, hint="dropout=0.1"
        )
    return value
