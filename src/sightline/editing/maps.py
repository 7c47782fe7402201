"""The map of one call as edits have it, for the rows that they touch: some rows at a time, never all of it.

Scores are divided (temperature), raised (boost) and hidden (cut) before they are normalised; a pattern that is forced
or patched takes the place of what comes out. Gradients flow through all of it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cached_property
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from torch import Tensor

from sightline.backends.tiles import bias_tile
from sightline.editing import sources
from sightline.editing.cells import Uncut
from sightline.editing.plan import Act
from sightline.normalizers import normalize

if TYPE_CHECKING:
    from sightline.backends.call import Call

# Cells of the map that are in memory at once: 32 MB of float32, a few times over.
CELLS = 1 << 23
# So far below the others of its row a score has no weight: models hide by -1e4, -1e9 or the least number.
HIDDEN = 5e3


class Block:
    """The members, heads and rows of a call that some edits touch: everything that follows is about these alone."""

    def __init__(self, call: Call, acts: list[Act], everything: bool = False) -> None:
        self.call, self.acts, self.place = call, acts, acts[0].place
        self.members, self.heads, self.rows = (
            (torch.stack([getattr(act, axis) for act in acts]).any(0) | everything).nonzero().flatten()
            for axis in ("examples", "heads", "rows")
        )

    # Who needs these waits for the GPU: cuts by pieces do without.

    @cached_property
    def at(self) -> tuple[Tensor, Tensor, Tensor]:
        """Where the block is in a tensor of the call."""
        device = self.call.device
        members, heads, rows = self.members, self.heads, self.rows
        return members.view(-1, 1, 1).to(device), heads.view(1, -1, 1).to(device), rows.view(1, 1, -1).to(device)

    @cached_property
    def key_heads(self) -> Tensor:
        return (self.heads // self.call.sizes.groups).to(self.call.device)

    @property
    def shape(self) -> tuple[int, int, int]:
        return len(self.members), len(self.heads), len(self.rows)

    def touched(self, acts: list[Act]) -> Tensor:
        """Which rows of the block some acts are about: `[members, heads, rows]`."""
        found = torch.zeros(self.shape, dtype=torch.bool)
        for act in acts:
            found |= self._of(act)
        return found.to(self.call.device)

    def of(self, act: Act, rows: slice = slice(None)) -> Tensor:
        """The rows of the block that an act is about: `[members, heads, rows, 1]`."""
        return self._of(act)[..., rows, None].to(self.call.device)

    def _of(self, act: Act) -> Tensor:
        return (
            act.examples[self.members].view(-1, 1, 1)
            & act.heads[self.heads].view(1, -1, 1)
            & act.rows[self.rows].view(1, 1, -1)
        )

    @cached_property
    def q(self) -> Tensor:
        return self._patched(self.call.q[self.at], "queries")

    @cached_property
    def k(self) -> Tensor:
        return self._patched(self.call.k[self.at[0][..., 0], self.key_heads[None]], "keys")

    @cached_property
    def v(self) -> Tensor:
        return self._patched(self.call.v[self.at[0][..., 0], self.key_heads[None]], "values")

    def _patched(self, x: Tensor, what: str) -> Tensor:
        """Queries, keys or values of the block with those of another run put in; the call's own stay as they are."""
        for act in self.acts:
            if act.step != what or act.there is None:
                continue
            places = act.there[0][self.rows] if what == "queries" else act.there[1]
            if what != "queries":
                here = act.examples[self.members].view(-1, 1, 1) & act.heads[self.heads].view(1, -1, 1) & (places >= 0)
            else:
                here = self._of(act)
            x = torch.where(here[..., None].to(x.device), self.from_source(act, what, places).to(x), x)
        return x

    def from_source(self, act: Act, what: str, places: Tensor) -> Tensor:
        """The numbers of a patch at some places there, `[members, heads, places, dim]`."""
        source, name = act.edit.options["source"], sources.full_name(act.place)
        found = source.part(name, what)
        count = source.shape(name)[1]
        wanted = [h for h in self.heads.tolist() if act.heads[h]]
        there = dict(zip(wanted, sources.heads_there(source, name, wanted)))
        heads = torch.tensor([there.get(h, 0) for h in self.heads.tolist()])
        if found.shape[1] != count:
            heads = heads // (count // found.shape[1])
        members = self.members if found.shape[0] > 1 else torch.zeros_like(self.members)
        index = (members.view(-1, 1, 1), heads.view(1, -1, 1), places.clamp_min(0).view(1, 1, -1))
        return found[tuple(part.to(found.device) for part in index)]

    # The map.

    def _tiles(self, get: Callable[[slice], Tensor], rows: slice) -> Tensor:
        """Rows of the block of something that gives tiles of the call: `[members or 1, heads or 1, rows, columns]`."""
        found = []
        for run in _runs(self.rows[rows]):
            tile = get(run)
            while tile.dim() < 4:
                tile = tile[None]
            tile = tile.expand(*tile.shape[:2], run.stop - run.start, tile.shape[-1])
            if tile.shape[0] > 1:
                tile = tile[self.members.to(tile.device)]
            if tile.shape[1] > 1:
                tile = tile[:, self.heads.to(tile.device)]
            found.append(tile)
        return found[0] if len(found) == 1 else torch.cat(found, -2)

    def capped(self, rows: slice, columns: slice) -> Tensor:
        """Scores after the soft-cap, before the bias."""
        call = self.call
        scores = call.scale * (
            self.q[:, :, rows].to(call.compute_dtype) @ self.k[:, :, columns].to(call.compute_dtype).mT
        )
        return scores if call.softcap is None else (scores / call.softcap).tanh() * call.softcap

    def scores(self, rows: slice, columns: slice) -> tuple[Tensor, Tensor, Tensor]:
        """Edited scores; which are visible; and which of these are left after cuts that do not renormalise."""
        call, s = self.call, self.call.sizes
        scores = self.capped(rows, columns)
        visible = torch.ones(1, 1, *scores.shape[-2:], dtype=torch.bool, device=call.device)
        if call.mask is not None:
            mask = call.mask
            visible = self._tiles(lambda run: mask.tile(run, columns, s.queries, s.keys, call.device), rows).expand(
                -1, -1, *scores.shape[-2:]
            )
        acts = self.acts
        hides = [act for act in acts if act.edit.kind in ("cut", "force")]
        if call.bias is not None:
            bias = self._tiles(lambda run: bias_tile(call, run, columns), rows)
            scores = scores + bias
            if hides and isinstance(call.bias, Tensor):
                # A number far below the others of its row hides: what is left with nothing else is left with nothing.
                seen = visible & ~(bias < self._level(rows, columns, bias, visible) - HIDDEN)
                touched = torch.stack([self.of(act, rows).expand(*self.shape[:2], -1, 1) for act in hides]).any(0)
                visible = torch.where(touched, seen, visible)
        for act in acts:
            if act.step == "temperature":
                scores = scores / self._temperature(act, rows)
        kept = visible
        for act in acts:
            here = self.of(act, rows)
            if act.step == "boost":
                more = torch.where(here & act.columns[columns].to(call.device), act.edit.options["factor"], 1.0)
                scores = scores + more.to(scores.dtype).log()
            elif act.step == "cut":
                left = Uncut.of(act, call.device)
                cells = self._tiles(lambda run: left.tile(run, columns, s.queries, s.keys, call.device), rows)  # noqa: B023
                kept = kept & cells
                if act.edit.options.get("renormalize", True):
                    visible = visible & cells
        return scores, visible.expand(scores.shape), kept.expand(scores.shape)

    def sinks(self, rows: slice) -> Tensor | None:
        """The sinks of some rows, `[members, heads, rows]`, each divided by its temperature."""
        call, (members, heads, _) = self.call, self.shape
        if call.sinks is None:
            return None
        every = expanded(call.sinks, call.sizes.batch[0], call.sizes.heads)[self.at[0][..., 0], self.at[1][..., 0]]
        found = every[..., None].to(call.compute_dtype).expand(members, heads, len(self.rows[rows]))
        for act in self.acts:
            if act.step == "temperature":
                found = found / self._temperature(act, rows)[..., 0]
        return found

    def _temperature(self, act: Act, rows: slice) -> Tensor:
        return torch.where(self.of(act, rows), act.edit.options["t"], 1.0).to(self.call.compute_dtype)

    def _level(self, rows: slice, columns: slice, bias: Tensor, visible: Tensor) -> Tensor:
        """The largest bias among the keys that each row sees, all of them: models hide by numbers far below it."""
        call, s = self.call, self.call.sizes
        if (columns.start, columns.stop) != (0, s.keys):
            whole = slice(0, s.keys)
            bias = self._tiles(lambda run: bias_tile(call, run, whole), rows)
            visible = torch.ones_like(bias, dtype=torch.bool)
            if (mask := call.mask) is not None:
                visible = self._tiles(lambda run: mask.tile(run, whole, s.queries, s.keys, call.device), rows)
        return bias.masked_fill(~visible, -torch.inf).amax(-1, keepdim=True)

    def weights(self, rows: slice) -> tuple[Tensor, Tensor]:
        """The edited weights of some rows of the block, and their lse (of the keys, without the sink)."""
        call, whole = self.call, slice(0, self.call.sizes.keys)
        scores, visible, kept = self.scores(rows, whole)
        found = normalize(scores, visible, call.normalizer.name, self.sinks(rows))
        with torch.no_grad():
            lse = scores.detach().masked_fill(~visible, -torch.inf).logsumexp(-1)
        if kept is not visible:
            found = found.masked_fill(~kept, 0.0)
        for act in self.acts:
            if act.step == "pattern":
                found = torch.where(self.of(act, rows), self._pattern(act, rows, kept).to(found), found)
        return found, lse

    def mass(self, rows: slice) -> tuple[Tensor, Tensor]:
        """What some rows of the block sum to, and what their sink has of them."""
        found, lse = self.weights(rows)
        mass = found.sum(-1)
        sinks = self.sinks(rows)
        share = torch.zeros_like(mass) if sinks is None else (sinks - torch.logaddexp(lse, sinks)).exp()
        for act in self.acts:
            if act.step == "pattern":
                share = torch.where(self.of(act, rows)[..., 0], 1 - mass, share)
        return mass, share

    def _pattern(self, act: Act, rows: slice, kept: Tensor) -> Tensor:
        if act.edit.kind == "force":
            return self._forced(act.edit.options["pattern"], rows, kept)
        assert act.there is not None
        source, name = act.edit.options["source"], sources.full_name(act.place)
        wanted = [h for h in self.heads.tolist() if act.heads[h]]
        there = dict(zip(wanted, sources.heads_there(source, name, wanted)))
        heads = torch.tensor([there.get(h, 0) for h in self.heads.tolist()])
        places = act.there[0][self.rows[rows]].clamp_min(0)
        with torch.no_grad():
            cells = source.rows(name, places)
            members = self.members if cells.shape[0] > 1 else torch.zeros_like(self.members)
            cells = cells[members.to(cells.device)][:, heads.to(cells.device)]
            named = act.there[1].to(cells.device)
            picked = cells[..., named.clamp_min(0)].masked_fill(named < 0, 0.0)
            if act.edit.options["positions"] is not None:
                total = picked.sum(-1, keepdim=True)
                picked = picked * (cells.sum(-1, keepdim=True) / total.masked_fill(total == 0, 1.0))
        return picked.to(self.call.device)

    def _forced(self, pattern: str, rows: slice, kept: Tensor) -> Tensor:
        """A pattern among the keys that are visible after cuts."""
        if pattern == "uniform":
            chosen = kept
        elif pattern == "first":
            chosen = kept & (kept.cumsum(-1) == 1)
        else:
            place = self.place
            at = self.rows[rows] + place.first_query - place.first_key - int(pattern == "previous")
            chosen = kept & (torch.arange(place.keys) == at[:, None]).to(kept.device)
        share = chosen.to(self.call.compute_dtype)
        return share / share.sum(-1, keepdim=True).clamp_min(1.0)

    def strips(self) -> Iterator[slice]:
        """Rows of the block, so many at a time that their cells fit into memory."""
        members, heads, count = self.shape
        height = max(1, CELLS // max(1, members * heads * self.call.sizes.keys))
        for start in range(0, count, height):
            yield slice(start, min(start + height, count))

    def output(self) -> Tensor:
        """The outputs of the block, `[members, heads, rows, value_dim]`."""
        outs = []
        for strip in self.strips():
            found, _ = self.weights(strip)
            if self.call.dropout:
                found = F.dropout(found, self.call.dropout)
            outs.append((found @ self.v.to(found.dtype)).to(self.call.v.dtype))
        return torch.cat(outs, -2)

    def put(self, whole: Tensor, part: Tensor, touched: Tensor) -> Tensor:
        """A tensor of the call, `[batch, heads, queries, …]`, with the touched rows of a block exchanged."""
        before = whole[self.at]
        marks = touched.view(*touched.shape, *(1 for _ in range(before.dim() - 3)))
        return whole.index_put(self.at, torch.where(marks, part.to(before.dtype), before))


def _runs(rows: Tensor) -> Iterator[slice]:
    """Numbers that rise, as stretches without gaps."""
    numbers: list[int] = rows.tolist()
    start = 0
    for i in range(1, len(numbers) + 1):
        if i == len(numbers) or numbers[i] != numbers[i - 1] + 1:
            yield slice(numbers[start], numbers[i - 1] + 1)
            start = i


def expanded(sinks: Any, batch: int, heads: int) -> Tensor:
    """The sinks of a call, one for each member and head."""
    found: Tensor = sinks.expand(batch, heads) if sinks.dim() < 2 else sinks.reshape(-1, heads).expand(batch, heads)
    return found
