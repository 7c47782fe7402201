"""Which layers and heads are watched: by index, by name, by pattern, or by a function."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from fnmatch import fnmatchcase
from typing import TypeAlias

from sightline.errors import InputError, InputTypeError, explain

Layers: TypeAlias = "int | str | Iterable[int | str] | Callable[[str], bool] | None"
Heads: TypeAlias = "int | Iterable[int] | Callable[[str], int | Iterable[int] | None] | None"


class LayerChoice:
    """Whether a layer is watched, asked with its path and its index in the order in which layers run.

    >>> choice = LayerChoice([0, "*.cross_attn", "encoder"])
    >>> [choice(name, 5) for name in ("decoder.2.cross_attn", "encoder.0.attn", "decoder.0.attn")]
    [True, True, False]
    """

    def __init__(self, layers: Layers) -> None:
        self.function: Callable[[str], bool] | None = None
        self.indices: set[int] = set()
        self.patterns: list[str] = []
        self.everything = layers is None
        if layers is None:
            return
        if callable(layers):
            self.function = layers
            return
        given = [layers] if isinstance(layers, int | str) else layers
        if not isinstance(given, Iterable):
            raise _wrong_type("layers", layers, 'layers=[0, "model.layers.3.*"]')
        for layer in given:
            if isinstance(layer, str):
                self.patterns.append(layer)
            elif isinstance(layer, int) and not isinstance(layer, bool):
                if layer < 0:
                    raise InputError(
                        explain(
                            "layers are counted from the front, in the order in which they run",
                            expected="0 or more; how many there are is not known before the run",
                            got=layer,
                            hint='a name pattern, e.g. layers="model.layers.31.*"',
                        )
                    )
                self.indices.add(layer)
            else:
                raise _wrong_type("layers", layer, 'layers=[0, "model.layers.3.*"]')

    def __call__(self, name: str, index: int) -> bool:
        if self.everything:
            return True
        if self.function is not None:
            return bool(self.function(name))
        return index in self.indices or any(
            name == pattern or name.startswith(f"{pattern}.") or fnmatchcase(name, pattern) for pattern in self.patterns
        )

    def __repr__(self) -> str:
        if self.everything:
            return "all layers"
        if self.function is not None:
            return f"layers={getattr(self.function, '__name__', 'function')}"
        return f"layers={[*sorted(self.indices), *self.patterns]}"


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
                explain(
                    f"{name} has no such heads",
                    expected=f"heads 0 to {count - 1}",
                    got=beyond,
                    hint="heads=lambda name: … may answer differently for each layer; None means all",
                )
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
        raise InputError(
            explain("no head was chosen", expected="at least one", got="an empty list", hint="heads=None for all")
        )
    return numbers


def _wrong_type(what: str, got: object, hint: str) -> InputTypeError:
    return InputTypeError(
        explain(
            f"{what} cannot be chosen by this",
            expected="whole numbers, names or patterns, or a function of the name",
            got=type(got).__name__,
            hint=hint,
        )
    )
