"""What a watch takes in of a call beyond its weights: gradients, what keys carry, the heads' outputs."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from sightline.watching.intercept import active
from sightline.watching.record.influence import Influence
from sightline.watching.record.norms import Pending, Projections
from sightline.watching.record.padding import asks, at_queries, keys_that_are_real
from sightline.watching.record.readings import Asked

if TYPE_CHECKING:
    from sightline.backends.call import Call
    from sightline.watching.intercept.looked import Looked
    from sightline.watching.record.account import Wanted
    from sightline.watching.record.layer import Layer, Part

# What is said of a call whose weights alone were seen.
LACKS = (
    "attention written by hand: its weights were seen, not the heads' output and values "
    "(axes in another order, slices, or a reentrant checkpoint)"
)


class Deeper:
    """The part of a watch that looks beyond the weights; what nobody asked for is not done."""

    def __init__(self, wanted: Wanted, names: dict[int, str], keep: bool, influence: bool, output: bool) -> None:
        self.wanted, self.keep, self.output = wanted, keep, output
        self.influence = Influence(keep) if influence else None
        norms = keep or influence or any(request.of == "norms" for request in wanted.readings)
        self.norms = Projections(names) if norms else None
        self.real: Tensor | None = None  # which queries of this pass are no padding, as its self-attention says

    @property
    def on(self) -> bool:
        return self.influence is not None or self.norms is not None or self.output

    def take(self, layer: Layer, part: Part, looked: Looked, call: Call, row: Tensor) -> None:
        """A call that became a part of its layer: of the chosen heads, `call` and `row`."""
        heads = looked.heads
        if heads is None:
            part.extra["lacks"] = LACKS
            if self.influence is not None:
                self.influence.untold.add(layer.name)
            return
        s = looked.call.sizes
        v = heads.values(s)
        # As of the keys: later parts have those alone that are new.
        first = layer.parts[0] is part
        new = v if first else v[..., :0, :] if layer.kind == "cross" else v[..., -s.queries :, :]
        chosen = v if layer.heads is None else v[:, [head // s.groups for head in layer.heads]]
        if self.output:
            out = heads.output(s)
            part.extra["output"] = _own(out if layer.heads is None else out[:, layer.heads])
            if (real := self._real(layer.kind == "cross", looked)) is not None:
                part.extra["real"] = real
        held = bool(self.wanted.readings) and len(layer.parts) == 1
        asked = Asked([], None, None, None)
        if held:
            asked = Asked(self.wanted.readings, call.replace(q=_same(call.q), k=_same(call.k)), row, _same(chosen))
        if self.influence is not None:
            if self.keep:
                part.extra["v"] = _own(_new(chosen, new))
            self.influence.add(layer, part, looked, asked)
        if self.norms is not None:
            part.extra["heads"] = s
            pending = Pending(layer, part, new, heads.output(s), s, asked, [])
            self.norms.add(pending, heads.projection)

    def _real(self, cross: bool, looked: Looked) -> Tensor | None:
        """Which queries are no padding, `[batch, queries]`; of cross-attention as the self-attention before it says."""
        call, s = looked.call, looked.call.sizes
        if cross:
            return self.real if self.real is not None and self.real.shape == (s.batch[0], s.queries) else None
        marks, edited = looked.real, any(getattr(watch, "edits", False) for watch in active.watches())
        if marks is None:
            # What edits show as a bias is not what the model hides by it.
            marks = keys_that_are_real(call.replace(bias=None) if edited else call)
        found = None if marks is None else at_queries(marks, call, looked.first_query - looked.first_key)
        if (some := None if edited else asks(call, looked.row)) is not None:
            found = some if found is None else found & some
        self.real = None if found is None else found.cpu()
        return self.real

    @property
    def apart(self) -> bool:
        """Whether each step of a generation is taken in by itself."""
        return self.influence is not None or self.output

    def step(self, part: Part, v: Tensor, heads: int, kv_heads: int) -> None:
        """A step of a generation that waits for others: its value is kept until they are put together."""
        if self.norms is not None:
            last = v[..., -1:, :].detach().reshape(-1, v.shape[-3], 1, v.shape[-1])
            part.extra["step"] = (last if v.shape[-3] == kv_heads else last[:, :: heads // kv_heads]).clone()

    def merged(self, layer: Layer, part: Part, steps: list[Part]) -> None:
        """Some steps are one part now."""
        s = layer.parts[0].extra.get("heads")
        if self.norms is not None and s is not None and all("step" in one.extra for one in steps):
            v = torch.cat([one.extra["step"] for one in steps], -2)
            self.norms.add(Pending(layer, part, v, None, s, Asked([], None, None, None), []), None)

    def waits(self, layer: Layer) -> bool:
        """Whether it is not known yet what a layer's keys carry."""
        return self.norms is not None and any(one.layer is layer for one in self.norms.pending)

    def settle(self) -> None:
        """A pass is over."""
        self.real = None
        if self.norms is not None:
            self.norms.settle()

    def restart(self) -> None:
        """Another run takes the place of the one before."""
        if self.influence is not None:
            self.influence.restart()
        if self.norms is not None:
            self.norms.restart()


def _new(chosen: Tensor, new: Tensor) -> Tensor:
    return chosen[..., chosen.shape[-2] - new.shape[-2] :, :]


def _same(x: Tensor) -> Tensor:
    """A copy where it is: the model may write into its own."""
    return x.detach().clone(memory_format=torch.contiguous_format)


def _own(x: Tensor) -> Tensor:
    return x.detach().to("cpu", copy=True, memory_format=torch.contiguous_format)
