"""Masks and biases as a graph of torch's can hold them: a text, and beside it their tensors and whole numbers.

The text says which classes they are of and what these hold; where a tensor or a whole number stands it says only that
there is one, since sizes may be symbols in a graph. What a compiler reads here are plain loops over attributes.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from sightline import caches
from sightline.errors import InputError
from sightline.portable import Portable, restored

# Whole numbers beyond it, as the limit of a window may be one, are none of torch's.
_LARGEST = 2**63 - 1


def spell(value: Any, tensors: list[Tensor], numbers: list[int]) -> str:
    """A value as a text, its tensors and whole numbers put into the lists; nothing if it holds what has no such form.

    >>> import sightline as sl
    >>> numbers = []
    >>> spell(sl.prefix(3), [], numbers), numbers
    ("('part','sightline.masks.positional.Prefix',('n',('whole',)))", [3])
    >>> spell(print, [], [])
    ''
    """
    if isinstance(value, Portable):
        parts = [f"'part',{value.class_key!r}"]
        for name, x in value.fields().items():
            said = spell(x, tensors, numbers)
            if not said:
                return ""
            parts.append(f"({name!r},{said})")
        return f"({','.join(parts)})"
    if isinstance(value, Tensor):
        tensors.append(value)
        return "('tensor',)"
    if value is None or isinstance(value, (bool, str)):
        return f"('plain',{value!r})"
    if isinstance(value, (int, torch.SymInt)):
        if not -_LARGEST <= value <= _LARGEST:
            return f"('plain',{value!r})"
        numbers.append(value)  # type: ignore[arg-type]
        return "('whole',)"
    if isinstance(value, float):
        return f"('float','{value!r}')"
    if type(value) is dict:
        parts = ["'dict'"]
        for name, x in value.items():
            both = spell(name, tensors, numbers), spell(x, tensors, numbers)
            if not both[0] or not both[1]:
                return ""
            parts.append(f"({both[0]},{both[1]})")
        return f"({','.join(parts)},)"
    if type(value) is list or type(value) is tuple:
        parts = ["'list'" if type(value) is list else "'tuple'"]
        for x in value:
            said = spell(x, tensors, numbers)
            if not said:
                return ""
            parts.append(said)
        return f"({','.join(parts)},)"
    return ""


def unspell(text: str, tensors: Sequence[Tensor], numbers: Sequence[int]) -> Any:
    """The value of a text again, with these tensors and whole numbers.

    >>> unspell("('list',('tensor',),('whole',),('float','inf'))", [torch.ones(2)], [3])
    [tensor([1., 1.]), 3, inf]
    """
    return _made(_read(text), iter(tensors), iter(numbers))


@caches.memo("backends.spelled", 256)
def _read(text: str) -> tuple:
    read: tuple = ast.literal_eval(text)
    return read


def _made(said: tuple, tensors: Iterator[Tensor], numbers: Iterator[int]) -> Any:
    kind, *rest = said
    match kind:
        case "tensor":
            return next(tensors)
        case "whole":
            return next(numbers)
        case "float":
            return float(rest[0])
        case "dict":
            return {_made(name, tensors, numbers): _made(x, tensors, numbers) for name, x in rest}
        case "list" | "tuple":
            made = [_made(x, tensors, numbers) for x in rest]
            return made if kind == "list" else tuple(made)
        case "part":
            of = _class(rest[0])
            return restored(of.__new__(of), {name: _made(x, tensors, numbers) for name, x in rest[1:]})
    return rest[0]


def _class(key: str) -> type[Portable]:
    found = Portable.classes.get(key)
    if found is None:
        module = key.rpartition(".")[0]
        raise InputError(
            "a graph holds a mask or bias of a class that is not known here",
            expected="a class that was imported before the graph runs",
            got=key,
            hint=f"import {module}",
        )
    return found
