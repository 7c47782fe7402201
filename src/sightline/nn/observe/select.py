"""The attention inside a module: its names, and the choice of some of it."""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Iterable
from fnmatch import fnmatchcase
from numbers import Integral
from typing import TYPE_CHECKING, TypeAlias, cast

from torch import nn

from sightline.errors import InputError, InputTypeError
from sightline.nn.observe.tap import Tap

if TYPE_CHECKING:
    from sightline.nn.observe.attends import Attends

Layers: TypeAlias = "int | str | slice | Callable[[str], bool] | Iterable[int | str] | None"


def select(module: nn.Module, layers: Layers = None) -> dict[str, Attends]:
    """The attention inside a module by name, all of it or what `layers` chooses; `observing` says how.

    >>> from sightline import nn as slnn
    >>> decoder = slnn.Decoder(8, heads=2, layers=3, cross=True)
    >>> list(select(decoder, layers=-1))
    ['layers.2.attention', 'layers.2.cross_attention']
    >>> list(select(decoder, layers="*.1.cross*"))
    ['layers.1.cross_attention']
    """
    if not isinstance(module, nn.Module):
        raise InputTypeError(
            "only modules have attention inside",
            expected="a torch.nn.Module",
            got=type(module).__name__,
            hint="sl.observe(q, k, v) for tensors",
        )
    found = attending(module)
    if not found:
        raise InputError(
            "there is no attention of Sightline's in this module",
            expected="sl.nn.MultiHeadAttention or sl.nn.AttentionHead somewhere inside",
            got=type(module).__name__,
            hint="from_torch takes over torch's modules; sl.watch looks into models of others",
        )
    wanted = chosen(list(found), layers)
    return {name: part for name, part in found.items() if name in wanted}


def attending(module: nn.Module) -> dict[str, Attends]:
    """All attention of Sightline's in a module, by name."""
    # torch.compile wraps a module in another one, which is no part of its name.
    return {
        name.replace("_orig_mod.", "").removesuffix("_orig_mod"): cast("Attends", part)
        for name, part in module.named_modules()
        if isinstance(vars(part).get("_tap"), Tap)
    }


def chosen(names: list[str], layers: Layers) -> set[str]:
    """Those of some names that `layers` chooses."""
    return set(names) if layers is None else set(_chosen(names, layers))


def check_layers(modules: list[str], layers: Layers) -> None:
    """Refuse what chooses nothing, where only the names of all modules are known, and not yet which of them attend."""
    names = [".".join(step for step in name.split(".") if step != "_orig_mod") for name in modules]
    if isinstance(layers, slice | Integral) and not isinstance(layers, bool):
        return
    if isinstance(layers, Iterable) and not isinstance(layers, str):
        for one in layers:
            check_layers(names, one)
    elif layers is not None and not callable(layers):
        _chosen(names, layers)


def names_chosen(layers: Layers, name: str, modules: list[str]) -> bool:
    """Whether a name may be chosen, as far as it is known alone: by its number it may always be."""
    if layers is None or (isinstance(layers, slice | Integral) and not isinstance(layers, bool)):
        return True
    if isinstance(layers, str):
        return chooses(layers, name, modules)
    if callable(layers):
        return bool(layers(name))
    return isinstance(layers, Iterable) and any(names_chosen(one, name, modules) for one in layers)


def _chosen(names: list[str], layers: Layers) -> Iterable[str]:
    """The names that are chosen, in any order."""
    if isinstance(layers, str):
        matched = [name for name in names if chooses(layers, name, names)]
        if not matched:
            raise nothing_called(layers, names)
        return matched
    if isinstance(layers, slice):
        return _numbered(names, layers)
    if isinstance(layers, Integral) and not isinstance(layers, bool):
        return _numbered(names, [int(layers)])
    if callable(layers):
        return [name for name in names if layers(name)]
    if not isinstance(layers, Iterable):
        raise InputTypeError(
            "this chooses no layers",
            expected="a whole number, a slice, a pattern for names, a list of these, or a function of the name",
            got=type(layers).__name__,
            hint="layers=[0, -1]",
        )
    return [name for one in layers for name in _chosen(names, one)]


def chooses(pattern: str, name: str, names: Iterable[str]) -> bool:
    """Whether a pattern chooses a name: it is a path, or a part of one from dot to dot, where `*` `?` `[…]` may stand.

    A pattern that is the path of something among the names chooses that, and all inside it, and nothing else.

    >>> names = ["encoder.layers.1.attention", "decoder.layers.1.attention", "decoder.layers.10.attention"]
    >>> [[chooses(pattern, name, names) for name in names] for pattern in ("layers.1", "decoder", "*.1?.*")]
    [[True, True, False], [False, True, True], [False, False, True]]
    """
    if is_path(pattern, names):
        return f"{name}.".startswith(f"{pattern}.")
    steps = name.split(".")
    ends = range(1, len(steps) + 1)
    return any(fnmatchcase(".".join(steps[start:end]), pattern) for end in ends for start in range(end))


def is_path(pattern: str, names: Iterable[str]) -> bool:
    return any(f"{name}.".startswith(f"{pattern}.") for name in names)


def nothing_called(pattern: str, names: list[str]) -> InputError:
    """The error for a name or a pattern that chooses nothing."""
    near = difflib.get_close_matches(pattern, names, n=1, cutoff=0.0)
    few = names if len(names) <= 8 else [*names[:6], "…", names[-1]]
    return InputError(
        "no attention has such a name",
        expected=f"a path, a part of one from dot to dot, or a pattern for it, among: {', '.join(few)}",
        got=repr(pattern),
        hint=f'layers="{near[0]}"',
    )


def _numbered(names: list[str], wanted: Iterable[int] | slice) -> list[str]:
    """The names in the layers of these numbers; names of one layer go together."""
    order = list(dict.fromkeys(map(_layer, names)))
    if isinstance(wanted, slice):
        numbers = set(range(len(order))[wanted])
    else:
        numbers = {_place(number, len(order)) for number in wanted}
    return [name for name in names if order.index(_layer(name)) in numbers]


def _place(number: int, count: int) -> int:
    if not -count <= number < count:
        raise InputError(
            "there is no such layer",
            expected=f"0 to {count - 1}, or -{count} to -1 from the end",
            got=number,
            hint="layers=-1 for the last",
        )
    return number % count


def _layer(name: str) -> str:
    """The layer a name belongs to: all up to its last number.

    >>> _layer("decoder.layers.3.cross_attention"), _layer("attention")
    ('decoder.layers.3', '')
    """
    found = re.match(r"(.*\.)?\d+(?=\.|$)", name)
    return found[0] if found else ""
