"""Where every query's attention goes among a few telling tokens: the previous, the first, itself, and what came next.

The last is for induction: the token after the latest earlier occurrence of the query's own.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from sightline.watching.record.chosen_keys import weights_at

if TYPE_CHECKING:
    from jaxtyping import Bool, Float

    from sightline.lens.levels import Levels
    from sightline.masks import Mask
    from sightline.watching.record.repeated import Repeats

SHARES = ("previous", "first", "same", "induction")


@dataclass
class Place:
    """Where a call stands in its run: the row its queries begin at, its first key, and the bins of its overview."""

    row: int
    first_key: int
    query_position: int  # where the first query stands among all keys; negative for cross-attention
    cell: tuple[int, int]
    repeats: Repeats | None = None  # where an induction head would look
    steps: bool = False  # the queries are steps of a generation, one key further each
    real: Tensor | None = None  # [batch, keys]: which keys are no padding, where no mask says so


def shares(
    levels: Levels,
    place: Place,
    weights: Float[Tensor, "*layers batch heads queries keys"] | None,
) -> dict[str, Tensor]:
    """The shares of every query, by name; from the map itself, where it is at hand.

    `real` says which queries are not padding, if any is, and `repeated` which have a token that came before.
    """
    call = levels.call
    s, device = call.sizes, call.device
    if not s.keys or not s.queries:
        return {}
    found: dict[str, Tensor] = {}
    real = real_keys(call.mask, s.keys, device) if place.real is None else place.real
    wanted: dict[str, Tensor | int] = {"first": _first(real, place, device)}
    if place.query_position >= 0:
        offset = place.query_position - place.first_key
        wanted |= {"same": offset, "previous": offset - 1}
        if place.repeats is not None:
            keys = place.repeats.keys.to(device)
            found["repeated"] = (keys >= 0).expand(s.batch[-1], s.queries)
            wanted["induction"] = torch.where(keys >= place.first_key, keys - place.first_key, -1)
        if real is not None:
            inside = (torch.arange(s.queries, device=device)[None] + offset).clamp(0, s.keys - 1)
            found["real"] = real.gather(-1, inside.expand(real.shape[0], -1)).expand(s.batch[-1], s.queries)
    if weights is None:
        return found | {name: weights_at(levels, keys) for name, keys in wanted.items()}
    return found | _from_map(weights, wanted)


def _first(real: Tensor | None, place: Place, device: torch.device) -> Tensor:
    """The first key that is real, `[batch or 1, 1]`; -1 where a sliding cache has let it go."""
    first = torch.full((1, 1), -1 if place.first_key else 0, device=device)
    return first if real is None else torch.where(real[:, :1], first, real.int().argmax(-1, keepdim=True))


def _from_map(weights: Tensor, wanted: dict[str, Tensor | int]) -> dict[str, Tensor]:
    batch, _, queries, keys = weights.shape[-4:]
    places = torch.arange(queries, device=weights.device)[None]
    chosen = [places + at if isinstance(at, int) else at for at in wanted.values()]
    index = torch.stack([at.expand(batch, queries) for at in chosen], -1)[:, None]  # [batch, 1, queries, shares]
    picked = weights.gather(-1, index.clamp(0, keys - 1).expand(*weights.shape[:-1], -1))
    picked = picked.masked_fill((index < 0) | (index >= keys), 0.0)
    return dict(zip(wanted, picked.unbind(-1)))


def real_keys(mask: Mask | None, keys: int, device: torch.device) -> Bool[Tensor, "batch keys"] | None:
    """Which keys are real, if the mask says so."""
    found: Tensor | None = None
    for rule in [] if mask is None else mask.conjuncts():
        row = rule.key_row(keys, device)
        if row is not None:
            row = row.reshape(-1, keys)
            found = row if found is None else found & row
    return found
