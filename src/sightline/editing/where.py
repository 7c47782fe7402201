"""Where an edit acts: which layers, heads, queries and members of the batch, in the words of whoever edits."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from numbers import Integral
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from sightline.errors import InputError, InputTypeError
from sightline.nn.observe.select import chooses, nothing_called

if TYPE_CHECKING:
    from sightline.editing.place import Place

Layer = int | str
# A column, some of them, or a slice; None: all. Tensors and arrays have become these.
Columns = int | tuple[int, ...] | slice | None


@dataclass(frozen=True)
class Where:
    """The layers, heads, queries and members of the batch that an edit is about; None: all of them."""

    layers: tuple[Layer, ...] | None = None
    heads: tuple[int, ...] | tuple[tuple[Layer, int], ...] | None = None
    queries: Columns = None
    examples: Columns = None

    @staticmethod
    def of(layers: Any = None, heads: Any = None, queries: Any = None, examples: Any = None) -> Where:
        """The same from what a user wrote."""
        found = None if heads is None else _heads(heads)
        if found and isinstance(found[0], tuple) and layers is not None:
            raise InputError(
                "the layers are said twice",
                expected="layers=… with the numbers of heads, or heads=[(layer, head), …] alone",
                got=f"layers={layers!r} and heads={heads!r}",
                hint=f"heads={[head for _, head in found]}",
            )
        return Where(
            None if layers is None else _layers(layers),
            found,
            columns("queries", queries),
            columns("examples", examples),
        )

    @property
    def pairs(self) -> list[tuple[Layer, int]] | None:
        """The (layer, head) pairs, if heads were said as such."""
        if self.heads is None:
            return None
        return [head for head in self.heads if isinstance(head, tuple)] or None

    @property
    def said(self) -> list[Layer] | None:
        """The layers that are spoken of; None: all."""
        if self.pairs is not None:
            return [layer for layer, _ in self.pairs]
        return None if self.layers is None else list(self.layers)

    def check_names(self, modules: list[str]) -> None:
        """Refuse what no module is called."""
        for layer in self.said or ():
            if isinstance(layer, str) and not any(chooses(_bare(layer), name, modules) for name in modules):
                raise nothing_called(layer, _likely(modules))

    def may_change(self, name: str, modules: list[str], index: int | None = None) -> bool:
        """Whether a module may be concerned, as far as its name tells, and its number where that is known."""

        def may(layer: Layer) -> bool:
            if isinstance(layer, str):
                return chooses(_bare(layer), name, modules)
            return index is None or layer < 0 or layer == index

        return self.said is None or any(map(may, self.said))

    def chosen(self, place: Place) -> list[int] | None:
        """The heads of a call that are concerned, None: none of this layer."""
        if self.pairs is not None:
            wanted = [head for layer, head in self.pairs if place.is_layer(layer)]
        elif self.layers is not None and not any(place.is_layer(layer) for layer in self.layers):
            return None
        else:
            wanted = list(range(place.heads)) if self.heads is None else list(self.heads)  # type: ignore[arg-type]
        beyond = [head for head in wanted if not -place.heads <= head < place.heads]
        if beyond:
            raise InputError(
                f"{place.name} has no such heads",
                expected=f"heads 0 to {place.heads - 1}",
                got=beyond,
                hint="heads=[(layer, head), …] says for each layer which",
            )
        return sorted({head % place.heads for head in wanted}) or None

    def words(self) -> list[str]:
        """As it would be written in a call."""
        found = []
        for name in ("layers", "heads", "queries", "examples"):
            value = getattr(self, name)
            if value is not None:
                found.append(f"{name}={spelled(value)}")
        return found


def spelled(value: Any) -> str:
    """A value as it would be written: tuples as lists, slices short."""
    if isinstance(value, slice):
        parts = [value.start, value.stop, *([] if value.step is None else [value.step])]
        return f"slice({', '.join(map(str, parts))})"
    if isinstance(value, tuple) and len(value) == 1 and not isinstance(value[0], tuple):
        return repr(value[0])
    return repr(list(value)) if isinstance(value, tuple) else repr(value)


def columns(what: str, given: Any) -> Columns:
    """Columns as a user writes them: a number, a slice, a list, or a tensor of whole numbers."""
    if given is None or isinstance(given, slice):
        if isinstance(given, slice):
            _check_slice(what, given)
        return given
    if isinstance(given, Tensor) or hasattr(given, "tolist"):
        given = given.tolist()
    if isinstance(given, Integral) and not isinstance(given, bool):
        return int(given)
    numbers = list(given) if isinstance(given, Iterable) and not isinstance(given, str) else [given]
    if not numbers or not all(isinstance(n, Integral) and not isinstance(n, bool) for n in numbers):
        raise InputTypeError(
            f"{what} are chosen by columns",
            expected="a whole number, a list of these, or a slice",
            got=repr(given)[:60],
            hint=f"{what}=slice(3, 7)",
        )
    return tuple(int(n) for n in numbers)


def _check_slice(what: str, given: slice) -> None:
    whole = all(
        part is None or (isinstance(part, int) and not isinstance(part, bool))
        for part in (given.start, given.stop, given.step)
    )
    if not whole or (given.step is not None and given.step < 1):
        raise InputError(
            f"{what} cannot be chosen by this slice",
            expected="whole numbers, and a step of 1 or more",
            got=given,
            hint=f"{what}=slice(3, 7)",
        )


def marks(what: str, chosen: Columns, first: int, count: int, end: int, name: str) -> Tensor:
    """Which of the columns from `first` on are chosen, `[count]`; negative ones count from `end`."""
    at = torch.arange(first, first + count)
    if chosen is None:
        return torch.ones(count, dtype=torch.bool)
    if isinstance(chosen, slice):
        start, stop, step = chosen.start or 0, chosen.stop, chosen.step or 1
        start = max(start + end, 0) if start < 0 else start
        stop = None if stop is None else max(stop + end, 0) if stop < 0 else stop
        inside = (at >= start) & ((at - start) % step == 0)
        return inside if stop is None else inside & (at < stop)
    numbers = [chosen] if isinstance(chosen, int) else list(chosen)
    beyond = [n for n in numbers if not -end <= n < end]
    if beyond:
        raise InputError(
            f"{name} has no such {what}",
            expected=f"{what} 0 to {end - 1}, or -{end} to -1 from the end",
            got=beyond[0] if len(beyond) == 1 else beyond,
            hint=f"{what}=slice({max(beyond)}, None) takes in tokens that are written later"
            if max(beyond) >= end
            else f"{what}=-1 for the last",
        )
    wanted = torch.tensor([n % end if n < 0 else n for n in numbers])
    return torch.isin(at, wanted)


def _layers(given: Any) -> tuple[Layer, ...]:
    one = isinstance(given, str) or (isinstance(given, Integral) and not isinstance(given, bool))
    listed = [given] if one else list(given) if isinstance(given, Iterable) else []
    if not listed or not all(isinstance(x, str | Integral) and not isinstance(x, bool) for x in listed):
        raise InputTypeError(
            "layers are chosen by index or by name",
            expected="a whole number, a name, or a list of these",
            got=repr(given)[:60],
            hint='layers=[0, "model.layers.3"]',
        )
    return tuple(x if isinstance(x, str) else int(x) for x in listed)


def _heads(given: Any) -> tuple[int, ...] | tuple[tuple[Layer, int], ...]:
    if isinstance(given, Tensor) or hasattr(given, "tolist"):
        given = given.tolist()
    listed: list[Any] = [given] if isinstance(given, Integral) else list(given) if isinstance(given, Iterable) else []
    numbers = all(isinstance(x, Integral) and not isinstance(x, bool) for x in listed)
    pairs = all(
        isinstance(x, list | tuple)
        and len(x) == 2
        and isinstance(x[0], str | Integral)
        and isinstance(x[1], Integral)
        and not any(isinstance(part, bool) for part in x)
        for x in listed
    )
    if not listed or isinstance(given, str) or not (numbers or pairs):
        raise InputTypeError(
            "heads are chosen by number",
            expected="a number, a list of numbers, or (layer, head) pairs",
            got=repr(given)[:60],
            hint="heads=[(23, 3), (1, 5)]",
        )
    if numbers:
        return tuple(int(x) for x in listed)
    return tuple((x[0] if isinstance(x[0], str) else int(x[0]), int(x[1])) for x in listed)


def _bare(layer: str) -> str:
    """A name without the number of its call: `name#2`."""
    base, _, number = layer.rpartition("#")
    return base if base and number.isdigit() else layer


def _likely(modules: list[str]) -> list[str]:
    named = [name for name in modules if "att" in name.rpartition(".")[2].lower()]
    return named or modules
