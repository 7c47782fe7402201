"""Attention rollout (https://arxiv.org/abs/2005.00928) for one output position, without any layer's matrix.

A layer's heads are joined into one map F, by their mean, their maximum, or by taking one; with the residual stream it
is F + I; each row is divided by its sum. The rollout of a position is its row of the product of all layers' maps. Read
from the last layer to the first that is a row times a matrix, layer after layer: `received(weights=row)`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from sightline.errors import InputError

if TYPE_CHECKING:
    from jaxtyping import Float

    from sightline.lens.kept import KeptSight
    from sightline.watching.seen import LayerLike, Seen

# Cells of a band of rows over all heads, where the maximum over heads has to be taken cell by cell.
_CELLS = 1 << 23


def rollout(seen: Seen, query: int, heads: str | int, residual: bool, memory: bool) -> Float[Tensor, "batch tokens"]:
    """The share of every input token in an output position."""
    if heads not in ("mean", "max") and (isinstance(heads, bool) or not isinstance(heads, int)):
        raise InputError(
            "heads are joined by their mean or maximum, or one is taken",
            expected='"mean", "max" or the number of a head',
            got=repr(heads),
            hint='heads="mean"',
        )
    encoder, decoder = _streams(seen)
    layers = decoder or encoder
    queries = layers[-1].sight().shape[-2]
    if isinstance(query, bool) or not isinstance(query, int) or not -queries <= query < queries:
        raise InputError(
            "no such position", expected=f"-{queries} to {queries - 1}", got=repr(query), hint="query=-1, the last"
        )
    batch, _, _, keys = next(layer for layer in layers if layer.kind == "self").sight().shape
    # Positions of the queries are the last of the keys.
    share = torch.zeros(batch, keys, dtype=torch.float64)
    share[:, query % queries + keys - queries] = 1.0
    from_memory: Tensor | None = None
    for layer in reversed(layers):
        sight = layer.sight()
        if layer.kind == "self":
            share = _through(sight, layer, share, heads, residual)
            continue
        kept, passed = _across(sight, layer, share, heads, residual)
        from_memory = passed if from_memory is None else from_memory + passed
        share = kept
    if not memory:
        return share.float()
    if from_memory is None:
        raise InputError(
            "there is no memory to look back to",
            expected="a run with cross-attention",
            got=", ".join(sorted({layer.kind for layer in layers})) + "-attention only",
            hint="rollout(query), without memory=True",
        )
    if encoder and decoder:
        for layer in reversed(encoder):
            from_memory = _through(layer.sight(), layer, from_memory, heads, residual)
    return from_memory.float()


def _streams(seen: Seen) -> tuple[list[LayerLike], list[LayerLike]]:
    """The layers before the first cross-attention's own sequence, and those of it; one stream if there is no cross."""
    layers = list(seen._layers.values())
    if not any(layer.kind == "self" for layer in layers):
        raise InputError(
            "a rollout follows a sequence through its layers",
            expected="watched self-attention",
            got=f"{len(layers)} layers without it",
            hint="sl.watch(model), without layers=",
        )
    cross = [i for i, layer in enumerate(layers) if layer.kind == "cross"]
    if not cross:
        _same_length(layers)
        return layers, []
    # The decoder begins with the self-attention that stands before the first cross-attention, if it reads another
    # sequence than the encoder's last layer.
    start = cross[0]
    while start and layers[start - 1].kind == "self" and _path(layers[start - 1]) == _path(layers[cross[0]]):
        start -= 1
    encoder, decoder = layers[:start], layers[start:]
    _same_length([layer for layer in decoder if layer.kind == "self"])
    if encoder:
        _same_length(encoder)
    if not any(layer.kind == "self" for layer in decoder):
        raise InputError(
            "a rollout follows a sequence through its layers",
            expected="the decoder's self-attention beside its cross-attention",
            got="cross-attention alone",
            hint="sl.watch(model), without layers=",
        )
    return encoder, decoder


def _path(layer: LayerLike) -> str:
    """The part of a path that tells encoder from decoder: what stands before the first number."""
    steps = []
    for step in layer.name.split("."):
        if step.isdigit():
            break
        steps.append(step)
    return ".".join(steps)


def _same_length(layers: list[LayerLike]) -> None:
    sizes = {layer.sight().shape[-2:] for layer in layers}
    if len(sizes) > 1:
        raise InputError(
            "the layers do not follow one sequence",
            expected="the same number of tokens in all of them",
            got=" and ".join(f"{q} x {k}" for q, k in sorted(sizes)),
            hint='sl.watch(model, layers="…") for the layers of one sequence',
        )


def _through(sight: KeptSight, layer: LayerLike, share: Tensor, heads: str | int, residual: bool) -> Tensor:
    """A row of shares over all keys, one self-attention layer further back."""
    _, _, queries, keys = sight.shape
    before, own = share[:, : keys - queries], share[:, keys - queries :]
    passed, kept = _divided(sight, layer, own, heads, residual)
    result = passed
    result[:, keys - queries :] += kept
    # Positions from before the watched part have no row: they stay where they are.
    result[:, : keys - queries] += before
    return result


def _across(
    sight: KeptSight, layer: LayerLike, share: Tensor, heads: str | int, residual: bool
) -> tuple[Tensor, Tensor]:
    """What stays with the positions themselves, and what comes from the memory."""
    queries = sight.shape[-2]
    passed, kept = _divided(sight, layer, share[:, -queries:], heads, residual)
    rest = share.clone()
    rest[:, -queries:] = kept
    return rest, passed


def _divided(
    sight: KeptSight, layer: LayerLike, share: Tensor, heads: str | int, residual: bool
) -> tuple[Tensor, Tensor]:
    """Shares of queries, divided among keys and (with a residual) the queries themselves."""
    extra = 1.0 if residual else 0.0
    _need_qk(sight, layer)
    if heads == "max":
        return _by_bands(sight, share, extra)
    total = sight.due.double()  # [batch, heads, queries]
    if heads == "mean":
        mean, count = total.mean(1), total.shape[1]
        factor = _over(share, mean + extra)
        weights = (factor / count)[:, None].expand_as(total)
    else:
        head = _head(layer, heads, total.shape[1])
        mean = total[:, head]
        factor = _over(share, mean + extra)
        weights = torch.zeros_like(total)
        weights[:, head] = factor
    passed = sight.received(weights=weights.to(torch.float32)).double().sum(1)
    return passed, factor * extra


def _by_bands(sight: KeptSight, share: Tensor, extra: float) -> tuple[Tensor, Tensor]:
    """The same for the maximum over heads, which is no product: band after band of rows, whole."""
    batch, heads, queries, keys = sight.shape
    passed = torch.zeros(batch, keys, dtype=torch.float64)
    kept = torch.zeros(batch, queries, dtype=torch.float64)
    step = max(1, _CELLS // max(1, batch * heads * keys))
    for start in range(0, queries, step):
        rows = slice(start, min(start + step, queries))
        if not bool(share[:, rows].any()):
            continue
        joined = sight.tile(rows, slice(0, keys)).amax(1).double()  # [batch, rows, keys]
        factor = _over(share[:, rows], joined.sum(-1) + extra)
        passed += (factor[:, None] @ joined)[:, 0]
        kept[:, rows] = factor * extra
    return passed, kept


def _over(share: Tensor, total: Tensor) -> Tensor:
    """Shares by what a row gives away in all; a row that gives nothing keeps nothing either."""
    return torch.where(total > 0, share / total.clamp_min(torch.finfo(torch.float64).tiny), 0.0)


def _head(layer: LayerLike, head: str | int, count: int) -> int:
    assert isinstance(head, int)
    numbers = list(range(count)) if layer.heads is None else layer.heads
    if head not in numbers:
        raise InputError(
            f"{layer.name} has no such head among the watched",
            expected=f"one of {numbers}",
            got=head,
            hint='heads="mean"',
        )
    return numbers.index(head)


def _need_qk(sight: KeptSight, layer: LayerLike) -> None:
    if not sight.has_cells:
        raise InputError(
            "a rollout of a long context needs q and k, which were not kept",
            expected="a run watched with keep_qk=True, or maps of at most 512 x 512",
            got=f"{layer.name} of shape {sight.shape}",
            hint="sl.watch(model, keep_qk=True)",
        )
