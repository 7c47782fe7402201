"""The steps of a generation, gathered: some of a layer's steps become one call, of so many queries.

A step has one query, and one key more than the step before it. The last keys hold those of all steps, so only the
queries are kept, each with its log-sum-exp and with the two last keys of its time: these tell, step by step, whether
the cache goes on where it was. Where a window moves on, or a cache writes into its own memory, the keys are copied when
a block begins, and the last key of every step is put to them.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

from sightline.lens.unchanged import count
from sightline.masks import Band, Mask, causal, padding
from sightline.watching.record.joined_mask import band_and_padding
from sightline.watching.record.layer import Piece

if TYPE_CHECKING:
    from sightline.backends.call import Call
    from sightline.watching.record.layer import Layer, Part

_WHOLE_NUMBERS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


class Sees(NamedTuple):
    """What a step sees of its keys: so many before its own (None: all), and of these the real ones."""

    left: int | None
    real: Tensor | None  # [batch, keys]


class Step(NamedTuple):
    """One step of one layer."""

    part: Part
    q: Tensor  # [batch, heads, 1, dim]
    row: Tensor  # [batch, heads, 1]
    ends: Tensor  # [batch, kv_heads, 2, dim]: the last two keys
    mask: Mask | None
    real: Tensor | None


def sees(mask: Mask | None, keys: int, device: torch.device) -> Sees | None:
    """What the only query of a step sees, if it stands at the last key; None if that is not told by two numbers."""
    both = band_and_padding(mask, keys, device)
    if both is None:
        return None
    band, real = both
    if band is not None and (band.align == "start" or band.right not in (0, None)):
        return None
    left = None if band is None else band.left
    if left is not None and left < 0:
        return None
    return Sees(left, real)


class Block:
    """The latest steps of one layer."""

    def __init__(self, layer: Layer, call: Call, sees: Sees, first_key: int, with_ids: bool) -> None:
        self.layer, self.call, self.left, self.with_ids = (
            layer,
            call.replace(q=None, k=None, v=None),
            sees.left,
            with_ids,
        )
        self.first_key, self.slides = first_key, False
        self.steps: list[Step] = []
        k = call.k
        # What nobody else can write into need not be copied.
        self.copies = first_key > 0 or sees.left is not None or k.untyped_storage().nbytes() > k.nbytes
        self.copied: Tensor | None = k.clone(memory_format=torch.contiguous_format) if self.copies else None
        self.own = 0 if self.copied is None else k.nbytes
        self.each = call.q.nbytes + 2 * k.nbytes // max(k.shape[-2], 1)  # bytes of a step
        self.k, self.new = k, k  # of the last pass that was as expected, and of this pass
        self.version = count(k)
        self.about, self.cell = self.call, (1, 1)  # of all steps together
        other = (call.mask, call.bias, call.softcap, call.sinks, sees.left, sees.real)
        self.plain = first_key == 0 and all(x is None for x in other)
        s = call.sizes
        self.kinds = (call.q.dtype, k.dtype, k.device)
        self.maps = math.prod(s.batch) * s.heads
        self.of_q, self.of_k = (*s.batch, s.heads, 1, s.dim), (*s.batch, s.kv_heads)
        self.scales = (call.scale, None) if call.scale == 1 / math.sqrt(s.dim) else (call.scale,)

    @property
    def end_key(self) -> int:
        return self.steps[-1].part.end_key

    @property
    def turn(self) -> int:
        return self.steps[0].part.turn

    @property
    def bytes(self) -> int:
        """What is held that nobody else holds."""
        return self.own + len(self.steps) * self.each

    def goes_on(self, call: Call, sees: Sees, first_key: int, with_ids: bool) -> bool:
        """Whether a step is of the same kind as those before, and next to them."""
        mine, last = self.call, self.steps[-1].part
        s, keys = call.sizes, last.end_key - last.first_key
        slides = first_key == last.first_key + 1 and s.keys == keys
        grows = first_key == last.first_key and s.keys == keys + 1
        if not (slides or grows) or (len(self.steps) > 1 and slides != self.slides) or (slides and not self.copies):
            return False
        same = (s.batch, s.heads, s.kv_heads, s.dim) == (*mine.sizes[:3], mine.sizes.dim)
        alike = (call.scale, call.softcap, sees.left, with_ids) == (mine.scale, mine.softcap, self.left, self.with_ids)
        if not same or not alike or (call.sinks is None) != (mine.sinks is None):
            return False
        if call.k.dtype != self.k.dtype or call.k.device != self.k.device:
            return False
        # Which key is the first real one may change while padding moves out of a window.
        before = self.steps[-1].real
        return (before is None) == (sees.real is None) and not (slides and before is not None)

    def is_next(self, q: Tensor, k: Tensor, scale: float | None) -> bool:
        """Whether q and k of a step without a mask are of the same kind as those before, and next to them."""
        last = self.steps[-1].part
        return (
            self.plain
            and last.first_key == 0
            and q.shape == self.of_q
            and k.shape == (*self.of_k, last.end_key + 1, self.of_q[-1])
            and (q.dtype, k.dtype, k.device) == self.kinds
            and scale in self.scales
        )

    def add(self, step: Step, k: Tensor) -> None:
        if self.steps:
            self.slides = step.part.first_key > self.steps[-1].part.first_key
        self.steps.append(step)
        self.new, self.version = k, count(k) if self.copies else None

    def without_last(self) -> tuple[Step, Tensor]:
        """Take the last step away, with its keys."""
        step, k = self.steps.pop(), self.new
        self.new, self.version = self.k, None
        return step, k

    def prune(self) -> bool:
        """Forget steps that their layer has let go. Whether any are left."""
        alive = {id(part) for part in self.layer.parts}
        left = [step for step in self.steps if id(step.part) in alive]
        if len(left) < len(self.steps):
            self.steps, self.new = left, self.k
        return bool(left)

    def keys(self) -> Tensor:
        """All keys that the steps saw, `[batch, kv_heads, keys, dim]`."""
        if self.copied is None:
            return self.k[..., : self.end_key - self.first_key, :]
        return torch.cat([self.copied, *(step.ends[..., 1:, :] for step in self.steps[1:])], -2)

    def later(self) -> Tensor | None:
        """The keys as they are in a cache from which they were copied, if it was not written to since."""
        if not self.copies or self.version is None or count(self.k) != self.version or self.k is not self.new:
            return None
        return self.k

    def kind(self) -> tuple:
        """What blocks have in common that can be accounted for at once."""
        first, last, call = self.steps[0], self.steps[-1], self.call
        return (
            (first.part.row, self.first_key, first.part.end_key, last.part.end_key, self.left, self.slides),
            (call.sizes.batch, call.sizes.heads, call.sizes.kv_heads, call.sizes.dim, call.scale, call.softcap),
            (first.q.dtype, self.k.dtype, first.row.dtype, first.q.device, self.with_ids),
            (None if call.sinks is None else call.sinks.shape, None if last.real is None else id(last.real)),
            None if self.layer.heads is None else tuple(self.layer.heads),
        )

    def mask(self) -> Mask | None:
        """What all steps saw, as one rule over all their keys."""
        keys = self.steps[0].part.end_key - self.steps[0].part.first_key
        left = self.left if not self.slides else keys - 1 if self.left is None else min(self.left, keys - 1)
        rule = causal() if left is None else Band(left, 0)
        real = [step.real for step in self.steps]
        if real[0] is None:
            return rule if len(self.steps) > 1 or left is not None else None
        return rule & padding(torch.cat([real[0], *(one[:, -1:] for one in real[1:] if one is not None)], -1))

    def pieces(self, masks: dict[int, tuple[Mask | None, Mask | None]]) -> list[Piece]:
        """What each step saw; masks come from where each was brought to the CPU once."""
        return [Piece(masks[id(s.mask)][1], 1, s.part.first_key, s.part.end_key) for s in self.steps]


def moved(blocks: list[Block]) -> bool:
    """Whether the last step of any found another key where the one before it had put its own."""
    groups: dict[tuple, list[Block]] = {}
    for block in blocks:
        if len(block.steps) > 1:
            ends = block.steps[-1].ends
            groups.setdefault((ends.shape, ends.dtype), []).append(block)
    for group in groups.values():
        now, before = (torch.stack([block.steps[i].ends for block in group]) for i in (-1, -2))
        if bool(differ(now[..., 0, :], before[..., 1, :]).any()):
            return True
    return False


def differ(a: Tensor, b: Tensor) -> Tensor:
    """Where two tensors have different bits."""
    whole = _WHOLE_NUMBERS[a.element_size()]
    return a.view(whole) != b.view(whole)
