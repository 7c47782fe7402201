"""Masks and requests as JSON, there and back.

Nothing is believed on the way back: every number is checked against the sizes of the map and the tensors of the file
before anything is made from it. What does not hold is a ValueError that names the field.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from sightline import masks
from sightline.errors import InputTypeError
from sightline.lens import geometry
from sightline.lens.requests import REDUCTIONS, ROW_STATS, Picture, Request, Top
from sightline.lens.tensor_file import WHOLE, TensorFile, short
from sightline.masks.base import And, Not, Or

if TYPE_CHECKING:
    from sightline.masks import Mask
    from sightline.shapes import Sizes

# No context, batch or picture is larger; a number beyond it is no number of ours.
LARGEST = 1 << 40
# Masks inside masks: Python looks into them one call deeper each.
DEEPEST = 100


def whole(field: str, value: Any, low: int = 0, high: int = LARGEST) -> int:
    """A whole number between two others."""
    if type(value) is not int or not low <= value <= high:
        raise ValueError(f"{field}: {short(value)} instead of a whole number from {low} to {high}")
    return value


def flag(field: str, value: Any) -> bool:
    """True or false."""
    if type(value) is not bool:
        raise ValueError(f"{field}: {short(value)} instead of true or false")
    return value


def one_of(field: str, value: Any, known: Sequence[str]) -> str:
    """One of a few words."""
    if not isinstance(value, str) or value not in known:
        raise ValueError(f"{field}: {short(value)} instead of one of {', '.join(known)}")
    return value


def items(field: str, value: Any, count: int | None = None) -> list:
    """A list, of so many items."""
    if not isinstance(value, list) or (count is not None and len(value) != count):
        raise ValueError(f"{field}: {short(value)} instead of a list" + (f" of {count}" if count is not None else ""))
    return value


def record(field: str, value: Any, names: Sequence[str] | None = None) -> dict[str, Any]:
    """An object, with exactly these fields if they are named."""
    if not isinstance(value, dict):
        raise ValueError(f"{field}: {short(value)} instead of an object")
    if names is None:
        return value
    for name in names:
        if name not in value:
            raise ValueError(f"{field}.{name}: missing")
    if unknown := sorted(value.keys() - set(names)):
        raise ValueError(f"{field}.{short(unknown[0])}: unknown")
    return value


# Requests


def request_to_json(request: Request) -> Any:
    if isinstance(request, Top):
        return {"top": request.n}
    if isinstance(request, Picture):
        return {
            "picture": [request.size, request.cell, request.rows, request.columns, request.reduce, request.visible_only]
        }
    return request


def request_from_json(field: str, written: Any, sizes: Sizes) -> tuple[Request, tuple[int, ...]]:
    """A request, and the shape its result must have."""
    maps = (*sizes.batch, sizes.heads)
    if isinstance(written, str):
        name = one_of(field, written, (*ROW_STATS, "received"))
        return name, (*maps, sizes.keys if name == "received" else sizes.queries)
    if isinstance(written, dict) and "top" in written:
        n = whole(f"{field}.top", record(field, written, ("top",))["top"], 1)
        return Top(n), (*maps, sizes.queries, n)
    return _picture(f"{field}.picture", record(field, written, ("picture",))["picture"], sizes)


def _picture(field: str, written: Any, sizes: Sizes) -> tuple[Picture, tuple[int, ...]]:
    size, cell, rows, columns, reduce, visible_only = items(field, written, 6)
    if (size is None) == (cell is None):
        raise ValueError(f"{field}: a size {short(size)} and a cell {short(cell)}, of which there is one")
    pair = tuple(whole(field, number, 1) for number in items(field, size or cell, 2))
    spans, shape = [], []
    for i, (name, span, length) in enumerate((("rows", rows, sizes.queries), ("columns", columns, sizes.keys))):
        ends = None if span is None else items(f"{field}.{name}", span, 2)
        if ends is not None:
            start = whole(f"{field}.{name}", ends[0], -length, length)
            stop = None if ends[1] is None else whole(f"{field}.{name}", ends[1], -length, length)
            ends = [start, stop]
        cut = None if ends is None else slice(*ends)
        inside = geometry.resolve(name, cut, length)
        count = inside.stop - inside.start
        if not count:
            raise ValueError(f"{field}.{name}: a picture of nothing")
        spans.append(cut)
        # Not `geometry.axes`, which writes the edges of all pixels down.
        shape.append(pair[i] if cell is None else -(-count // pair[i]))
    picture = Picture(
        *((512, 512) if size is None else pair),
        cell=None if cell is None else (pair[0], pair[1]),
        rows=spans[0],
        columns=spans[1],
        reduce=one_of(f"{field}.reduce", reduce, REDUCTIONS),
        visible_only=flag(f"{field}.visible_only", visible_only),
    )
    return picture, (*sizes.batch, sizes.heads, *shape)


# Masks


def mask_to_json(mask: Mask, tensors: dict[str, Tensor], depth: int = 0) -> dict[str, Any]:
    """A mask as JSON; its tensors go beside the others."""

    def put(tensor: Tensor | None) -> str | None:
        if tensor is None:
            return None
        name = f"mask.{len(tensors)}"
        tensors[name] = tensor
        return name

    def inner(mask: Mask) -> dict[str, Any]:
        return mask_to_json(mask, tensors, depth + 1)

    if depth > DEEPEST:
        raise InputTypeError(
            "this mask cannot be saved",
            expected=f"masks inside masks, at most {DEEPEST} deep",
            got="a deeper one",
            hint="sl.dense(mask.to_dense(queries, keys)) for a small one",
        )
    if isinstance(mask, masks.Band):
        return {"is": "band", "left": _near(mask.left), "right": _near(mask.right), "align": mask.align}
    if isinstance(mask, masks.Prefix):
        return {"is": "prefix", "n": _near(mask.n)}
    if isinstance(mask, masks.Documents):
        return {"is": "documents", "ids": put(mask.ids), "key_ids": put(mask.key_ids)}
    if isinstance(mask, masks.Padding):
        return {"is": "padding", "of": put(mask.lengths if mask.real is None else mask.real)}
    if isinstance(mask, masks.Dense):
        return {"is": "dense", "table": put(mask.table)}
    if isinstance(mask, And | Or):
        return {"is": mask.sign, "left": inner(mask.left), "right": inner(mask.right)}
    if isinstance(mask, Not):
        return {"is": "~", "of": inner(mask.mask)}
    raise InputTypeError(
        "this mask cannot be saved",
        expected="a mask of Sightline's own",
        got=type(mask).__name__,
        hint="sl.dense(mask.to_dense(queries, keys)) for a small one",
    )


def _near(number: int | None) -> int | None:
    """Beyond the largest index there is nothing to tell apart."""
    return None if number is None else max(-sys.maxsize, min(int(number), sys.maxsize))


def mask_from_json(field: str, about: Any, sizes: Sizes, file: TensorFile, depth: int = 0) -> Mask:
    """A mask that fits the map."""
    if depth > DEEPEST:
        raise ValueError(f"mask: masks inside masks, more than {DEEPEST} deep")
    if not isinstance(about, dict):
        raise ValueError(f"{field}: {short(about)} instead of an object")
    kind = one_of(f"{field}.is", about.get("is"), tuple(_READ))
    names, read = _READ[kind]
    fields = record(field, about, ("is", *names))

    def inner(name: str) -> Mask:
        return mask_from_json(f"{field}.{name}", fields[name], sizes, file, depth + 1)

    def tensor(name: str, dtypes: Sequence[torch.dtype]) -> Tensor:
        if not isinstance(fields[name], str):
            raise ValueError(f"{field}.{name}: {short(fields[name])} instead of the name of a tensor")
        return file.take(fields[name], None, dtypes)

    mask = read(fields, inner, tensor, field)
    if depth == 0:
        mask.check(sizes.batch, sizes.heads, sizes.queries, sizes.keys, torch.device("cpu"))
    return mask


_Read = Callable[[dict[str, Any], Callable, Callable, str], "Mask"]


def _band(fields: dict[str, Any], inner: Callable, tensor: Callable, field: str) -> Mask:
    sides = [
        None if fields[side] is None else whole(f"{field}.{side}", fields[side], -sys.maxsize, sys.maxsize)
        for side in ("left", "right")
    ]
    return masks.Band(sides[0], sides[1], one_of(f"{field}.align", fields["align"], ("end", "start")))


def _documents(fields: dict[str, Any], inner: Callable, tensor: Callable, field: str) -> Mask:
    return masks.documents(tensor("ids", WHOLE), None if fields["key_ids"] is None else tensor("key_ids", WHOLE))


_READ: dict[str, tuple[tuple[str, ...], _Read]] = {
    "band": (("left", "right", "align"), _band),
    "prefix": (("n",), lambda f, inner, tensor, field: masks.prefix(whole(f"{field}.n", f["n"], 0, sys.maxsize))),
    "documents": (("ids", "key_ids"), _documents),
    "padding": (("of",), lambda f, inner, tensor, field: masks.padding(tensor("of", (*WHOLE, torch.bool)))),
    "dense": (("table",), lambda f, inner, tensor, field: masks.dense(tensor("table", (torch.bool,)))),
    "&": (("left", "right"), lambda f, inner, tensor, field: inner("left") & inner("right")),
    "|": (("left", "right"), lambda f, inner, tensor, field: inner("left") | inner("right")),
    "~": (("of",), lambda f, inner, tensor, field: ~inner("of")),
}
