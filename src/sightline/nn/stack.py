"""What an encoder and a decoder have in common: layers one after another, positions in front, a norm at the end."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from torch import Tensor, nn

from sightline.errors import InputError
from sightline.masks import Mask
from sightline.nn.checks import acts_on
from sightline.nn.norms import make_norm
from sightline.nn.observe import Observable
from sightline.positions import Rotary

if TYPE_CHECKING:
    from sightline.nn.layer import Layer, LayerOptions
    from sightline.positions import Alibi
    from sightline.positions.rotary import Turns


class Stack(Observable):
    """Layers in a row."""

    def __init__(self, layers: Sequence[Layer], norm: nn.Module | None, positions: nn.Module | None) -> None:
        super().__init__()
        if not layers:
            raise InputError("a stack needs layers", expected="1 or more", got="none", hint="layers=1")
        if positions is not None and acts_on(positions) != "input":
            raise InputError(
                "these positions act inside the layers",
                expected="a scheme that is added to the input",
                got=type(positions).__name__,
                hint="give them to each layer",
            )
        self.positions = positions
        self.layers = nn.ModuleList(layers)
        self.norm = norm

    @property
    def width(self) -> int:
        """Channels of a token, in and out."""
        return self.layers[0].width  # type: ignore[return-value]

    def _place(self, x: Tensor, at: int | Tensor | None, start: int = 0) -> tuple[Tensor, int | Tensor | Turns | None]:
        """x with positions added to it; or x as it is, and where it stands for the layers to use.

        Tokens stand at `at`, or from `start` on. What one rotary scheme does to them is worked out once for all layers.
        """
        if self.positions is not None:
            return self.positions(x, at=start or None if at is None else at), None
        rotary, *others = {layer.attention.positions for layer in self.layers}  # type: ignore[union-attr]
        if others or not isinstance(rotary, Rotary):
            return x, at
        *batch, time, _ = x.shape
        return x, rotary.turns(start if at is None else at, batch, time, x.device, x.dtype)


def divide(positions: nn.Module | Alibi | None) -> tuple[nn.Module | None, nn.Module | Alibi | None]:
    """A position scheme as (what is added to the input, what every layer gets).

    >>> divide(None)
    (None, None)
    """
    return (positions, None) if acts_on(positions) == "input" else (None, positions)  # type: ignore[return-value]


def mask_of_each(mask: Mask | Sequence[Mask | None] | None, layers: int) -> list[Mask | None]:
    """One mask for each layer, from one for all of them or from a list.

    >>> mask_of_each(None, 2)
    [None, None]
    """
    if not isinstance(mask, Sequence):
        return [mask] * layers
    if len(mask) != layers:
        raise InputError(
            "the masks do not fit the layers",
            expected=f"one mask, or {layers}: one for each layer",
            got=f"{len(mask)} masks",
            hint="[sl.window(4095), sl.causal()] * (layers // 2)",
        )
    return list(mask)


def norm_at_the_end(layer: Layer, wanted: bool | None, options: LayerOptions) -> nn.Module | None:
    """The norm behind the last layer, like those in it: by default only if the layers end without one."""
    if not (layer.norm_first if wanted is None else wanted):
        return None
    eps, bias = options.get("eps", 1e-5), options.get("bias", True)
    return make_norm(options.get("norm", "layer"), layer.width, eps=eps, bias=bias)
