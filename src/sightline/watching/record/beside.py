"""What is known of a layer beside its weights, of all its parts together: v, g, g.o, and what keys carry."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from sightline.lens.readings import Extra

if TYPE_CHECKING:
    from sightline.watching.record.layer import Layer, Part


def cat(tensors: list[Tensor], dim: int) -> Tensor:
    """One tensor of all; of one it is no copy."""
    return tensors[0] if len(tensors) == 1 else torch.cat(tensors, dim)


def beside(layer: Layer) -> Extra:
    """The extra of a layer's sight. What a target does not depend on has no gradient: 0."""
    parts = layer.parts
    if not any(part.extra for part in parts):
        return Extra()
    stored = layer.on_disk().extra if layer.on_disk is not None and layer.freed else Extra()
    found: dict[str, Any] = {}
    if all("sizes" in part.extra for part in parts):
        found["sizes"] = _after(layer, cat([part.extra["sizes"] for part in parts], -1), -1)
        found["norms_of"] = parts[0].extra["norms_of"]
    rest = parts[layer.freed :]
    if all("v" in part.extra for part in parts):
        found["v"] = _after(layer, cat([part.extra["v"] for part in parts], -2), -2)
    elif stored.v is not None and all("v" in part.extra for part in rest):
        found["v"] = cat([stored.v, *(part.extra["v"] for part in rest)], -2)
    alongs = [part.along() for part in parts]
    if any(along is not None for along in alongs):
        found["along"] = cat([_nothing(part) if x is None else x for x, part in zip(alongs, parts)], -1)
        found["grad"] = _gradients(parts, layer.freed, stored.grad)
    if not found:
        return Extra(lacks=next((part.extra["lacks"] for part in parts if "lacks" in part.extra), None))
    row = parts[0].found["row"].dtype
    return Extra(**found | {name: found[name].to(row) for name in ("along", "sizes") if name in found})


def _gradients(parts: list[Part], freed: int, stored: Tensor | None) -> Tensor | None:
    """g of all parts: those in memory, and of those that are on disk what is there."""
    kept = [part.extra["grad"] for part in parts if "grad" in part.extra]
    if not kept:
        return stored if freed == len(parts) else None
    if stored is not None and not any("grad" in part.extra for part in parts[:freed]):
        return cat([stored, *(_gradient(part, kept[0]) for part in parts[freed:])], -2)
    return cat([_gradient(part, kept[0]) for part in parts], -2)


def _gradient(part: Part, like: Tensor) -> Tensor:
    found = part.extra.get("grad")
    return like.new_zeros(*like.shape[:2], part.call.sizes.queries, like.shape[-1]) if found is None else found


def _nothing(part: Part) -> Tensor:
    s = part.call.sizes
    return torch.zeros(*s.batch, s.heads, s.queries)


def _after(layer: Layer, x: Tensor, dim: int) -> Tensor:
    """Behind keys that a sliding cache had let go before the run began: no query sees them."""
    gone = layer.parts[0].first_key
    if not gone:
        return x
    shape = list(x.shape)
    shape[dim] = gone
    return torch.cat([x.new_zeros(shape), x], dim)
