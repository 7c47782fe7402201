"""Which layers and heads are watched: by index, by name, by pattern, or by a function."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from numbers import Integral
from typing import TypeAlias

from sightline.errors import InputError, InputTypeError
from sightline.nn.observe.select import chooses, nothing_called

Layers: TypeAlias = "int | str | Iterable[int | str] | Callable[[str], bool] | None"
Heads: TypeAlias = "int | Iterable[int] | Callable[[str], int | Iterable[int] | None] | None"


class LayerChoice:
    """Whether a layer is watched, asked with its path, its place in the order in which layers run, and their number.

    How many there are is known when all have run. `may` says of the number so far whether a layer is chosen, or could
    be in the end: for -2 these are the last two.

    >>> choice = LayerChoice([0, "*.cross_attn", "encoder"])
    >>> [choice(name, 5, 9) for name in ("decoder.2.cross_attn", "encoder.0.attn", "decoder.0.attn")]
    [True, True, False]
    >>> LayerChoice(-1)("decoder.0.attn", 8, 9)
    True
    """

    def __init__(self, layers: Layers, modules: Iterable[str] = ()) -> None:
        self.function: Callable[[str], bool] | None = None
        self.indices: set[int] = set()
        self.patterns: list[str] = []
        self.modules = list(modules)  # the paths of all modules of the model
        self._named: dict[str, list[str]] = {}
        self.everything = layers is None
        if layers is None:
            return
        if callable(layers):
            self.function = layers
            return
        given = [layers] if isinstance(layers, Integral | str) else layers
        if not isinstance(given, Iterable):
            raise _wrong_type("layers", layers, 'layers=[0, "model.layers.3"]')
        for layer in given:
            if isinstance(layer, str):
                if self.modules and not any(chooses(layer, name, self.modules) for name in self.modules):
                    raise nothing_called(layer, _likely(self.modules))
                self.patterns.append(layer)
            elif isinstance(layer, Integral) and not isinstance(layer, bool):
                self.indices.add(int(layer))
            else:
                raise _wrong_type("layers", layer, 'layers=[0, "model.layers.3"]')

    @property
    def back(self) -> int:
        """How many of the last layers it is about: 2 for -2."""
        return max(0, *(-index for index in self.indices), 0) if self.indices else 0

    def __call__(self, name: str, index: int, count: int) -> bool:
        if self.everything:
            return True
        if self.function is not None:
            return bool(self.function(name))
        return index in self.indices or index - count in self.indices or bool(self._by_name(name))

    def may(self, name: str, index: int, count: int) -> bool:
        """Whether a layer is chosen, or may be when all have run."""
        return self.everything or index >= count - self.back or self(name, index, count)

    def idle(self, names: list[str]) -> list[int | str]:
        """What was asked for and chooses none of the layers that ran."""
        used = {pattern for name in names for pattern in self._by_name(name)}
        numbers = [index for index in sorted(self.indices) if not -len(names) <= index < len(names)]
        return [*numbers, *(pattern for pattern in self.patterns if pattern not in used)]

    def _by_name(self, name: str) -> list[str]:
        if name not in self._named:
            self._named[name] = [p for p in self.patterns if chooses(p, name, self.modules or [name])]
        return self._named[name]

    def __repr__(self) -> str:
        if self.everything:
            return "all layers"
        if self.function is not None:
            return f"layers={getattr(self.function, '__name__', 'function')}"
        return f"layers={[*sorted(self.indices), *self.patterns]}"


def _likely(modules: list[str]) -> list[str]:
    """The modules that may be attention, by their names; all if none is."""
    last = {name: name.rpartition(".")[2].lower() for name in modules}
    named = [name for name in modules if "att" in last[name] and "norm" not in last[name]]
    # Where one holds another, the outer one says enough.
    outer = [name for name in named if not any(name.startswith(f"{other}.") for other in named)]
    return outer or modules


class HeadChoice:
    """Which heads of a layer are watched; None means all.

    >>> HeadChoice([3, 0])("any layer", 8), HeadChoice(None)("any layer", 8)
    ([0, 3], None)
    """

    def __init__(self, heads: Heads) -> None:
        self.function = heads if callable(heads) else None
        self.heads = None if callable(heads) else _numbers(heads)

    def __call__(self, name: str, count: int) -> list[int] | None:
        heads = self.heads if self.function is None else _numbers(self.function(name))
        if heads is None:
            return None
        beyond = [head for head in heads if not -count <= head < count]
        if beyond:
            raise InputError(
                f"{name} has no such heads",
                expected=f"heads 0 to {count - 1}",
                got=beyond,
                hint="heads=lambda name: … may answer differently for each layer; None means all",
            )
        chosen = sorted({head % count for head in heads})
        return None if len(chosen) == count else chosen


def _numbers(heads: object) -> list[int] | None:
    if heads is None:
        return None
    given = [heads] if isinstance(heads, int) else heads
    if not isinstance(given, Iterable) or isinstance(given, str):
        raise _wrong_type("heads", heads, "heads=[0, 5]")
    numbers = list(given)
    for head in numbers:
        if not isinstance(head, int) or isinstance(head, bool):
            raise _wrong_type("heads", head, "heads=[0, 5]")
    if not numbers:
        raise InputError("no head was chosen", expected="at least one", got="an empty list", hint="heads=None for all")
    return numbers


def _wrong_type(what: str, got: object, hint: str) -> InputTypeError:
    return InputTypeError(
        f"{what} cannot be chosen by this",
        expected="whole numbers, names or patterns, or a function of the name",
        got=type(got).__name__,
        hint=hint,
    )
