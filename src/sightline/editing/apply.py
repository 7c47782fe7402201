"""One call under edits: its rows that are touched are done again, and all others keep what the model's kernel gave."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from sightline.editing import pieces, sources
from sightline.editing.edits import Edit
from sightline.editing.maps import Block
from sightline.editing.plan import INPUT, MAP, Act
from sightline.editing.shown import shown
from sightline.editing.where import Where
from sightline.errors import InputError
from sightline.lens.rows import rows_only
from sightline.watching.intercept.looked import Edited
from sightline.watching.record.padding import at_queries, keys_that_are_real

if TYPE_CHECKING:
    from sightline.editing.place import Place
    from sightline.watching.intercept.looked import Attended
    from sightline.watching.seen import Seen


def apply(acts: list[Act], attended: Attended, real: Tensor | None) -> Edited:
    """The output of a call, its weights where the model has them, and what a watch is to see of it."""
    call, weights = attended.call, attended.weights
    inputs = [act for act in acts if act.step in INPUT]
    if not inputs:
        out = attended.given
        edited = Edited(out, weights)
    else:
        block = Block(call, inputs)
        changed = [act for act in inputs if act.step in MAP]
        row = None
        if attended.watched:
            row = rows_only(call) if attended.row is None else attended.row
        in_pieces = pieces.cut(block, attended, row)
        if in_pieces is None:
            out = block.put(attended.given, block.output(), block.touched(inputs))
        else:
            out = in_pieces[0]
        edited = Edited(out, weights)
        if attended.watched:
            edited = shown(
                attended._replace(row=row), block, changed, edited, None if in_pieces is None else in_pieces[1]
            )
        if changed and weights is not None:
            edited = edited._replace(weights=_weights(weights, block, changed))
    late = sorted((act for act in acts if act.step not in INPUT), key=lambda act: _LATE.index(act.edit.kind))
    if late:
        edited = edited._replace(before=out)
    given = out
    for act in late:
        if act.edit.kind == "patch":
            given = out = _output(act, out, given, real)
        else:
            out = _output(act, out, given, real)
    return edited._replace(out=out)


_LATE = ("patch", "ablate", "scale")


def _weights(weights: Tensor, block: Block, acts: list[Act]) -> Tensor:
    """The map that the model asked for, as it is under edits."""
    parts = [block.weights(strip)[0] for strip in block.strips()]
    return block.put(weights, torch.cat(parts, -2), block.touched(acts))


def _output(act: Act, out: Tensor, given: Tensor, real: Tensor | None) -> Tensor:
    """Patch, ablate or scale what heads gave; a mean is of what was there before any was ablated."""
    device, place = out.device, act.place
    here = (act.examples.view(-1, 1, 1) & act.heads.view(1, -1, 1) & act.rows)[..., None].to(device)
    if act.edit.kind == "scale":
        return torch.where(here, out * act.edit.options["factor"], out)
    if act.edit.kind == "patch":
        return torch.where(here, _from_source(act, out), out)
    by = act.edit.options["by"]
    if isinstance(by, str):
        if by == "zero":
            return out.masked_fill(here, 0.0)
        return torch.where(here, mean_of(given, place, real), out)
    return torch.where(here, given_for(by, out, place), out)


def mean_of(out: Tensor, place: Place, real: Tensor | None) -> Tensor:
    """The mean output of each head over the unpadded queries of the prompt, `[batch, heads, 1, value_dim]`."""
    name, means = sources.full_name(place), place.means
    begins = place.first_query == 0 or name not in means
    if begins and place.first_query and place.queries == 1:
        raise InputError(
            f"the prompt of {place.name} was not run inside the block, and its mean output is to take a step's place",
            expected="a prompt, and then its steps",
            got=f"one query at column {place.first_query}",
            hint="run the prompt inside the block too; or by=seen.mean_output()",
        )
    if begins:
        marks = torch.ones(out.shape[0], out.shape[2], dtype=torch.bool, device=out.device) if real is None else real
        share = marks[:, None, :, None].to(out.dtype)
        # What is padding may be anything, NaN too.
        kept = out.masked_fill(~marks[:, None, :, None], 0.0)
        found = kept.sum(2, keepdim=True) / share.sum(2, keepdim=True).clamp_min(1.0)
        means[name] = found.detach()
        return found
    held = means[name]
    if held.shape[0] != out.shape[0]:
        raise InputError(
            f"{place.name} has another batch than in the prompt, whose mean output is to take its place",
            expected=held.shape[0],
            got=out.shape[0],
            hint="by=seen.mean_output()",
        )
    return held


def real_queries(attended: Attended, place: Place) -> Tensor | None:
    """Which queries of self-attention are not padding, as its mask says: `[batch, queries]`."""
    marks = None if place.cross else keys_that_are_real(attended.call)
    return None if marks is None else at_queries(marks, attended.call, place.first_query - place.first_key)


def given_for(by: Tensor | dict[str, Tensor], out: Tensor, place: Place) -> Tensor:
    """A tensor that heads are replaced by, `[heads, 1, value_dim]` or `[1, value_dim]`."""
    if isinstance(by, dict):
        name = sources.full_name(place)
        if name not in by and place.name not in by:
            raise InputError(
                f"nothing is given that {place.name} is to be replaced by",
                expected=f"one of {', '.join(list(by)[:8])}",
                got=place.name,
                hint="layers=…, or a mean_output of the same model",
            )
        by = by[name] if name in by else by[place.name]
    size = (place.heads, out.shape[-1])
    if by.shape not in (size, size[1:]):
        raise InputError(
            f"what {place.name} is to be replaced by does not fit",
            expected=f"[value_dim] = {size[1:]} or [heads, value_dim] = {size}",
            got=tuple(by.shape),
            hint="seen.mean_output()",
        )
    found = by.to(out.device, out.dtype)
    return found[:, None] if found.dim() == 2 else found


def _from_source(act: Act, out: Tensor) -> Tensor:
    """What heads gave in another run, in the shape of what they give here."""
    assert act.there is not None
    return _there(act.edit.options["source"], out, act.place, act.heads.nonzero().flatten().tolist(), act.there[0])


def patched_for(seen: Seen, out: Tensor, place: Place) -> Tensor:
    """What all heads of a layer gave in another run of the same length."""
    source = sources.Watched(seen)
    rows, _ = sources.matched(Edit("patch", Where(), {"source": source, "positions": None}), place)
    return _there(source, out, place, list(range(place.heads)), rows)


def _there(source: sources.Source, out: Tensor, place: Place, wanted: list[int], rows: Tensor) -> Tensor:
    name = sources.full_name(place)
    found = source.part(name, "output")
    there = dict(zip(wanted, sources.heads_there(source, name, wanted)))
    heads = torch.tensor([there.get(h, 0) for h in range(place.heads)])
    picked = found[:, heads.to(found.device)][:, :, rows.clamp_min(0).to(found.device)]
    return picked.to(out.device, out.dtype).expand(out.shape[0], -1, -1, -1)
