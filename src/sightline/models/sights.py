"""The sights of a model's attention, with the tokens they are about."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

import torch
from torch import Tensor, nn

from sightline.errors import InputError
from sightline.lens import Sight
from sightline.lens.requests import parse
from sightline.nn.intact import put_back, state_of
from sightline.nn.observe import observing

if TYPE_CHECKING:
    from sightline.nn.observe.select import Layers

Heads: TypeAlias = int | Sequence[int] | slice | None


class Sights(dict[str, Sight]):
    """Sights by the name of the attention in the model; a number asks for that layer.

    `tokens` says what each row and column stands for: a list of strings, or one list for each text of a batch.

    >>> from sightline import lens
    >>> sights = Sights({"decoder.layers.3.attention": lens.look(torch.eye(2), torch.eye(2))})
    >>> sights[3].shape
    (2, 2)
    """

    tokens: list[Any]

    def __missing__(self, key: object) -> Sight:
        numbers = {int(found[1]): name for name in self if (found := re.search(r"\.(\d+)\.", name))}
        if isinstance(key, int) and key in numbers:
            return self[numbers[key]]
        raise InputError(
            "there is no sight of this",
            expected=f"a layer out of {sorted(numbers)}, or its full name",
            got=repr(key),
            hint="`layers` of observe says which layers to look at",
        )


@torch.no_grad()
def observe(
    model: nn.Module, args: tuple, options: dict[str, Any], stats: Any, layers: Layers, heads: Heads
) -> tuple[Tensor, Sights]:
    """The output of a call, without a gradient, and the sights of chosen layers and heads."""
    before = state_of(options.get("cache"))
    try:
        # Of some heads only, the statistics are computed afterwards, for them alone.
        with observing(model, stats if heads is None else (), layers) as seen:
            out: Tensor = model(*args, **options)
        if heads is None:
            return out, Sights(seen)
        return out, Sights({name: some_heads(sight, heads, stats) for name, sight in seen.items()})
    except BaseException:
        put_back(before)
        raise


def some_heads(sight: Sight, heads: Heads, stats: Any = ()) -> Sight:
    """The sight of some of the query heads; their order is the one asked for."""
    count = sight.call.sizes.heads
    try:
        chosen = torch.arange(count)[heads if isinstance(heads, slice) else torch.as_tensor(heads).reshape(-1)]
    except (IndexError, TypeError, RuntimeError):
        raise InputError(
            "there is no such head", expected=f"0 to {count - 1}", got=heads, hint="heads=[0, 1]"
        ) from None
    return sight.select(heads=chosen.tolist()).prepare(*parse(stats))
