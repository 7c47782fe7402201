"""An edited map for those who watch: the call as it was, with what edits add to its scores and hide of its keys.

A large one is never written out: the difference of the scores is a bias, and cuts are masks, given tile by tile. Of
rows that were told what to look at, and of a whole map with sinks, the logarithms of the weights stand for the scores.
What rows lack to 1, where keys were taken from them and the others left as they are, is the call's `lost`. Of
normalisers that know no sink the weights stand for themselves.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from sightline import normalizers
from sightline.backends.tiles import bias_tile
from sightline.biases import Bias
from sightline.editing.cells import Uncut
from sightline.editing.maps import Block, expanded
from sightline.lens.levels import sink_takes
from sightline.watching.intercept.looked import Edited

if TYPE_CHECKING:
    from sightline.backends.call import Call
    from sightline.editing.plan import Act
    from sightline.masks import Mask
    from sightline.watching.intercept.looked import Attended

# Cells of a bias that may be written out.
WRITTEN = 1 << 20
# Rows that lack less than this have lost nothing: sums are rounded.
_EXACT = 1e-5


@torch.no_grad()
def shown(attended: Attended, block: Block, acts: list[Act], edited: Edited, known: Tensor | None = None) -> Edited:
    """The same with the call and the rows that a watch is to see; `known`: the rows, where cuts alone were done."""
    told = [act for act in acts if act.step == "pattern"]
    lose = [act for act in acts if act.step == "cut" and not act.edit.options.get("renormalize", True)]
    call = _still(attended.call)
    spread = not call.normalizer.is_softmax
    spread |= call.sinks is not None and bool(told or any(act.step == "temperature" for act in acts))
    values = any(act.step == "values" for act in block.acts)
    # Each head has its own, where some of them are patched.
    own = values or any(act.step == "keys" for act in acts)
    if known is not None:
        row, seen = known, call.replace(mask=_uncut(call, acts))
    elif spread:
        block = Block(call, block.acts, everything=True)
        q = torch.zeros_like(call.q)
        k = block.k if own else call.k
        edited = edited._replace(values=block.v) if own else edited
        sizes = call.sizes._replace(kv_heads=k.shape[1])
        seen = call.replace(q=q, k=k, softcap=None, mask=_uncut(call, acts), sizes=sizes)
        if call.normalizer.is_softmax:
            assert call.sinks is not None
            sinks = expanded(call.sinks, *block.shape[:2])[..., None].to(call.compute_dtype)
            mass, share = (torch.cat(x, -1) for x in zip(*(block.mass(strip) for strip in block.strips())))
            # So that the sink has its share: exp(sink) of all that they are divided by. One of -inf has nothing.
            rest = share.clamp_min(torch.finfo(mass.dtype).eps / 2).log() - sinks
            rest = torch.where(rest.isfinite(), rest, 0.0)
            row = mass.log() - rest
            seen = seen.replace(bias=EditedBias(block, None, None, rest), lost=_lost(mass))
        else:
            row = torch.ones(block.shape, device=call.device)
            seen = seen.replace(bias=EditedBias(block, None, None), normalizer=normalizers.get("relu"))
    else:
        block = Block(call, block.acts)
        touched, as_told = block.touched(acts), block.touched(told)
        q = block.put(call.q, block.q, touched)
        k = call.k
        if own:
            at = block.at[0][..., 0], block.at[1][..., 0]
            k = k.repeat_interleave(call.sizes.groups, 1).index_put(at, block.k)
            edited = edited._replace(values=call.v.repeat_interleave(call.sizes.groups, 1).index_put(at, block.v))
        if told:
            q = block.put(q, torch.zeros_like(block.q, dtype=q.dtype), as_told)
        lse, divisor, mass = (torch.cat(x, -1) for x in zip(*(_sums(block, strip) for strip in block.strips())))
        assert attended.row is not None
        lost, row = None, block.put(attended.row.to(lse.dtype), lse, touched)
        if told or lose:
            less = as_told | block.touched(lose)
            # A sink takes its share beside the keys as they are edited.
            lost = torch.zeros_like(row) if call.sinks is None else sink_takes(call.sinks, row)
            lost = block.put(lost, _lost(mass), less)
            lost = None if call.sinks is None and not bool((lost > _EXACT).any()) else lost
            row = block.put(row, torch.where(as_told, 0.0, divisor) + mass.log(), less)
        mask = _uncut(call, acts)
        bias = EditedBias(block, touched, as_told)
        sizes = call.sizes._replace(kv_heads=k.shape[1])
        seen = call.replace(q=q, k=k, mask=mask, bias=bias, sizes=sizes, lost=lost)
        if not told and all(act.edit.kind == "cut" for act in acts) and not isinstance(call.bias, Tensor):
            seen = seen.replace(bias=call.bias)
    seen = seen.replace(v=seen.k, sizes=seen.sizes._replace(value_dim=seen.sizes.dim))
    s = seen.sizes
    if isinstance(seen.bias, EditedBias) and s.batch[0] * s.heads * s.queries * s.keys <= WRITTEN:
        seen = seen.replace(bias=seen.bias.to_dense(s.queries, s.keys, call.device, call.compute_dtype))
    return edited._replace(call=seen, row=row)


def _sums(block: Block, rows: slice) -> tuple[Tensor, Tensor, Tensor]:
    """Of some rows: the lse of the keys they see, what they are divided by, as a logarithm, and what they sum to."""
    weights, lse = block.weights(rows)
    sinks = block.sinks(rows)
    return lse, lse if sinks is None else torch.logaddexp(lse, sinks), weights.sum(-1)


def _lost(mass: Tensor) -> Tensor:
    """The logarithm of what rows lack to 1; of rows that see nothing none."""
    return torch.where(mass > 0, mass.log().neg(), 0.0).clamp_min(0.0)


def _uncut(call: Call, acts: list[Act]) -> Mask | None:
    """The mask of a call without what is cut."""
    mask = call.mask
    for act in acts:
        if act.step == "cut":
            left = Uncut.of(act, call.device)
            mask = left if mask is None else mask & left
    return mask


def _still(call: Call) -> Call:
    """A call without gradients and dropout."""
    bias = call.bias.detach() if isinstance(call.bias, Tensor) else call.bias
    sinks = None if call.sinks is None else call.sinks.detach()
    q, k, v = call.q.detach(), call.k.detach(), call.v.detach()
    return call.replace(q=q, k=k, v=v, bias=bias, sinks=sinks, dropout=0.0)


class EditedBias(Bias):
    """What is added to the scores of a call so that its weights are the edited ones."""

    saved_as = None

    def __init__(self, block: Block, touched: Tensor | None, told: Tensor | None, rest: Tensor | None = None) -> None:
        """`touched` and `told` mark rows of the block; None: all of them are told.

        `rest`: by how much their logarithms are raised then, less than 0; None: their weights stand for themselves.
        """
        self.block, self.touched, self.told, self.rest = block, touched, told, rest
        self._last: tuple[tuple[int, int], Tensor] | None = None

    def tile(
        self,
        rows: slice,
        columns: slice,
        queries: int,
        keys: int,
        device: torch.device | str | None = None,
        dtype: torch.dtype = torch.float32,
    ) -> Tensor:
        block, call = self.block, self.block.call
        shape = (*call.sizes.batch, call.sizes.heads, rows.stop - rows.start, columns.stop - columns.start)
        before = torch.zeros((), device=call.device) if call.bias is None else bias_tile(call, rows, columns)
        found = before.to(dtype).expand(shape).clone()
        start, stop = (int(x) for x in torch.searchsorted(block.rows, torch.tensor([rows.start, rows.stop])))
        if start < stop:
            part = slice(start, stop)
            at = (block.at[0], block.at[1], block.at[2][..., part] - rows.start)
            new = self._scores(part, columns).to(dtype)
            if self.touched is not None:
                new = torch.where(self.touched[..., part, None], new, found[at])
            found = found.index_put(at, new)
        return found.to(device or call.device)

    def _scores(self, rows: slice, columns: slice) -> Tensor:
        if self.told is None:
            found = self._logs(rows)[..., columns]
            return found.exp() if self.rest is None else found - self.rest[..., rows, None]
        scores, visible, _ = self.block.scores(rows, columns)
        plain = (scores - self.block.capped(rows, columns)).masked_fill(~visible, -torch.inf)
        if not bool(self.told[..., rows].any()):
            return plain
        return torch.where(self.told[..., rows, None], self._logs(rows)[..., columns], plain)

    def _logs(self, rows: slice) -> Tensor:
        """The logarithms of whole rows of weights: tiles of one band are asked for one after the other."""
        key = (rows.start, rows.stop)
        if self._last is None or self._last[0] != key:
            self._last = (key, self.block.weights(rows)[0].log())
        return self._last[1]

    def check(self, batch: tuple[int, ...], heads: int, queries: int, keys: int) -> None:
        """It was made for its call."""

    def to(self, device: torch.device | str, copy: bool = False) -> EditedBias:
        """A photograph: nobody else writes into what it is made of."""
        call = self.block.call
        if not copy and call.device == torch.device(device):
            return self
        moved = {name: getattr(call, name).to(device, copy=copy) for name in ("q", "k", "v")}
        more = {
            name: None if (x := getattr(call, name)) is None else x.to(device, copy=copy)
            for name in ("mask", "bias", "sinks")
        }
        block = Block(call.replace(**moved, **more), self.block.acts, everything=self.told is None)
        marks = (None if x is None else x.to(device) for x in (self.touched, self.told, self.rest))
        return EditedBias(block, *marks)

    def __repr__(self) -> str:
        return f"edited({', '.join(repr(act.edit) for act in self.block.acts)})"
