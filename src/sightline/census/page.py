"""A census as one page that needs no network: the page of an atlas, with the loss against heads removed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from sightline.surveying.atlas import contents, in_one_file
from sightline.watching.read.measures import LOWERS, named

if TYPE_CHECKING:
    from sightline.census.take import Census


def page(census: Census, model: str, rank: str = "effect") -> str:
    """The page, with the heads ranked by one of the measures."""
    return in_one_file(content(census, model, rank))


def content(census: Census, model: str, rank: str = "effect") -> dict[str, Any]:
    """What the page shows, as plain numbers."""
    names = list(census.each)
    texts = max((len(each) for each in census.each.values()), default=0)
    width = max((each.shape[2] for each in census.each.values()), default=0)
    table = torch.full((len(census.layers), width, len(names), texts), torch.nan, dtype=torch.float64)
    for i, each in enumerate(census.each.values()):
        table[:, : each.shape[2], i, : len(each)] = each.permute(1, 2, 0)
    flat = table.flatten(0, 1)
    real = [at for at in range(len(flat)) if not bool(flat[at].isnan().all())]
    places = [(at // width, at % width, census.layers[at // width]) for at in real]
    values = torch.stack([census.table[name].flatten()[real] for name in names], 1) if names else torch.zeros(0, 0)
    found = contents(model, named(*names), places, np.asarray(flat[real]), np.asarray(values))
    return found | {
        "title": "Census of heads",
        "texts": texts,
        "rank": rank if rank in names else names[0] if names else "",
        "order": 1 if rank in LOWERS and rank in names else -1,
        "loss": census.loss if census.loss == census.loss else None,
        "complete": census.complete,
        "curves": census.curves,
    }
