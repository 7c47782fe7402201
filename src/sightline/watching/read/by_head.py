"""Numbers for each head of a run: what mattered in all its cells together, what it carried, what it gave."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from sightline.errors import InputError
from sightline.lens.readings import check_known

if TYPE_CHECKING:
    from sightline.lens.kept import KeptSight
    from sightline.watching.seen import Seen

READINGS = ("influence", "pull", "norms")


def by_head(seen: Seen, of: str) -> Tensor:
    """`[batch, layers, heads]`; heads by their number in the model, NaN where there is none."""
    if of not in READINGS:
        raise InputError(
            "unknown reading of heads",
            expected=f"one of {', '.join(READINGS)}",
            got=repr(of),
            hint="seen.portraits() for what follows from the weights",
        )
    names = seen.layers
    if not names:
        seen[0]  # says why there is none
    numbers = {name: seen.heads(name) for name in names}
    found = {name: _of_layer(seen[name], of) for name in names if _is_known(seen[name], of)}
    if not found:
        _of_layer(seen[names[0]], of)  # says what is missing
    batches = {x.shape[0] for x in found.values()}
    if len(batches) > 1:
        raise InputError(
            "layers of this run have other batches",
            expected="as many examples in every layer",
            got=sorted(batches),
            hint="sl.watch(model, layers=…) with layers of one kind",
        )
    dtype = next(iter(found.values())).dtype
    heads = max(max(some) for some in numbers.values()) + 1
    table = torch.full((batches.pop(), len(names), heads), torch.nan, dtype=dtype)
    for i, name in enumerate(names):
        if name in found:
            table[:, i, numbers[name]] = found[name].to(dtype)
    return table


def _is_known(sight: KeptSight, of: str) -> bool:
    """Whether the heads' outputs of a layer were caught; of attention that is written by hand they were not."""
    extra = sight.extra
    return (extra.sizes if of == "norms" else extra.along) is not None


def _of_layer(sight: KeptSight, of: str) -> Tensor:
    if of == "influence":
        return sight.influence.sum(-1)
    if of == "pull":
        if not sight.call.normalizer.is_softmax:
            check_known(of, sight.call, sight.extra)
        # What keys gain others lose: a row sums to 0, but for what goes to a sink.
        return (sight.influence * sight.sink_share).sum(-1)
    return sight.received(of="norms").sum(-1) / max(sight.shape[-2], 1)


def mean_output(seen: Seen) -> dict[str, Tensor]:
    """{layer: [heads, value_dim]}: the mean of what each head gave, over examples and queries that are no padding."""
    runs = getattr(seen, "runs", None) or [seen]
    sums: dict[str, Tensor] = {}
    counts: dict[str, int] = {}
    for run in runs:
        for name, layer in run._layers.items():
            parts = getattr(layer, "parts", [])
            if not parts or not all("output" in part.extra for part in parts):
                raise InputError(
                    f"the outputs of {name} were not kept",
                    expected="a run watched with keep_output=True, in this process",
                    got="one without",
                    hint="sl.watch(model, keep_output=True)",
                )
            for part in parts:
                out, real = part.extra["output"].double(), part.extra.get("real")
                if real is not None:
                    real = real[:, : out.shape[2]]  # of a guess that was taken back the rest is gone
                kept = out if real is None else torch.where(real[:, None, :, None], out, 0.0)
                sums[name] = sums.get(name, torch.zeros(())) + kept.sum((0, 2))
                counts[name] = counts.get(name, 0) + (out.shape[0] * out.shape[2] if real is None else int(real.sum()))
    return {name: (total / max(counts[name], 1)).float() for name, total in sums.items()}


def output(seen: Seen, layer: str | int) -> Tensor:
    """What the heads of a layer gave, `[batch, heads, queries, value_dim]`."""
    found = seen._layer(layer)
    parts = getattr(found, "parts", [])
    if not parts or not all("output" in part.extra for part in parts):
        raise InputError(
            f"the outputs of {found.name} were not kept",
            expected="a run watched with keep_output=True, in this process",
            got="one without",
            hint="sl.watch(model, keep_output=True)",
        )
    return torch.cat([part.extra["output"] for part in parts], -2)
