"""Masks, biases and requests as JSON, there and back.

Nothing is believed on the way back: every number is checked against the sizes of the map and the tensors of the file
before anything is made from it. What does not hold is a ValueError that names the field.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from sightline.biases import Bias
from sightline.errors import InputTypeError, SightFileError
from sightline.lens import geometry
from sightline.lens.readings import READINGS
from sightline.lens.requests import COLUMNS, REDUCTIONS, Picture, Received, Request, Top, of_what, simplest
from sightline.lens.statistics import is_name
from sightline.lens.tensor_file import DTYPES, TensorFile, short
from sightline.masks import Mask
from sightline.portable import is_ours

if TYPE_CHECKING:
    from sightline.portable import Portable
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
    of = {} if of_what(request) == "weights" else {"of": of_what(request)}
    if isinstance(request, Top):
        return {"top": request.n, **of}
    if isinstance(request, Picture):
        about = [request.size, request.cell, request.rows, request.columns, request.reduce, request.visible_only]
        return {"picture": about, **of}
    if isinstance(request, Received):
        return {"received": request.reduce, **of}
    return request


def request_from_json(field: str, written: Any, sizes: Sizes) -> tuple[Request, tuple[int, ...]]:
    """A request, and the shape its result must have."""
    maps = (*sizes.batch, sizes.heads)
    if isinstance(written, str):
        # A statistic that is not declared here is numbers with a name.
        if not is_name(written) or written in ("lse", "top", "picture"):
            raise ValueError(f"{field}: {short(written)} instead of a statistic's name")
        return written, (*maps, sizes.keys if written == "received" else sizes.queries)
    kind = next((kind for kind in ("top", "received", "picture") if kind in record(field, written)), "picture")
    record(field, written, (kind, "of") if "of" in written else (kind,))
    of = one_of(f"{field}.of", written["of"], READINGS[1:]) if "of" in written else READINGS[0]
    if kind == "top":
        n = whole(f"{field}.top", written["top"], 1)
        return Top(n, of), (*maps, sizes.queries, n)
    if kind == "received":
        request = Received(of, one_of(f"{field}.received", written["received"], COLUMNS))
        if simplest(request) != request:
            raise ValueError(f"{field}.received: {short(request)}, which has a simpler form")
        return request, (*maps, sizes.keys)
    return _picture(f"{field}.picture", written["picture"], of, sizes)


def _picture(field: str, written: Any, of: str, sizes: Sizes) -> tuple[Picture, tuple[int, ...]]:
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
        of=of,
    )
    return picture, (*sizes.batch, sizes.heads, *shape)


# Masks and biases


def mask_to_json(mask: Mask, tensors: dict[str, Tensor]) -> dict[str, Any]:
    """A mask as JSON; its tensors go beside the others."""
    return _Writing("mask", tensors).part(mask)


def bias_to_json(bias: Bias, tensors: dict[str, Tensor]) -> dict[str, Any]:
    """A lazy bias as JSON; its tensors go beside the others."""
    return _Writing("bias", tensors).part(bias)


def mask_from_json(field: str, about: Any, sizes: Sizes, file: TensorFile) -> Mask:
    """A mask that fits the map."""
    return _checked(field, about, sizes, file, Mask, torch.device("cpu"))


def mask_alone(field: str, about: Any, file: TensorFile | None) -> Mask:
    """A mask that is for no map in particular; what is damaged is a ValueError."""
    try:
        found: Mask = _Reading(field, about, Mask, 0, file).read()  # type: ignore[arg-type]
    except (AttributeError, LookupError, RuntimeError, ArithmeticError, AssertionError) as error:
        raise ValueError(f"{field}: {type(error).__name__}: {short(str(error))}") from error
    return found


def bias_from_json(field: str, about: Any, sizes: Sizes, file: TensorFile) -> Bias:
    """A lazy bias that fits the map."""
    return _checked(field, about, sizes, file, Bias)


class _Writing:
    """Where a mask or bias puts its tensors, and itself."""

    def __init__(self, what: str, tensors: dict[str, Tensor], depth: int = 0) -> None:
        self.what, self.tensors, self.depth = what, tensors, depth

    def tensor(self, tensor: Tensor) -> str:
        name = f"{self.what}.{len(self.tensors)}"
        self.tensors[name] = tensor
        return name

    def part(self, part: Portable) -> dict[str, Any]:
        if self.depth > DEEPEST:
            raise self._refused(f"{self.what}s inside {self.what}s, at most {DEEPEST} deep", "a deeper one")
        kind, what = type(part), self.what
        if kind.saved_as is None or part.unsaved() is not None:
            of = "" if kind.saved_as is None else f", whose `{part.unsaved()}` is neither"
            raise self._refused(f"a {what} made of tensors and plain values", f"{part.class_name}{of}")
        if len(kind.known[kind.saved_as]) > 1 and _modules(kind).count(kind.__module__) > 1:
            raise self._refused(f"a {what} whose class has a name of its own", f"{kind.saved_as}, which are several")
        about = part.to_file(_Writing(what, self.tensors, self.depth + 1))
        return about if kind.saved_as in about else {"is": kind.saved_as, **about}

    def _refused(self, expected: str, got: str) -> InputTypeError:
        dense = "sl.dense(mask.to_dense(queries, keys))" if self.what == "mask" else "bias.to_dense(queries, keys)"
        return InputTypeError(
            f"this {self.what} cannot be saved", expected=expected, got=got, hint=f"{dense} for a small one"
        )


def _modules(kind: type[Portable]) -> list[str]:
    return [other.__module__ for other in kind.known.get(kind.saved_as or "", {}).values()]


class _Reading:
    """The description of a mask or bias in a file, read with suspicion."""

    def __init__(
        self, field: str, about: Any, family: type[Portable], heads: int, file: TensorFile, depth: int = 0
    ) -> None:
        self.field, self.about, self.family, self.heads, self.file, self.depth = (
            field, about, family, heads, file, depth,
        )  # fmt: skip

    def read(self) -> Any:
        """What is described."""
        if self.depth > DEEPEST:
            raise ValueError(f"{self._what}: {self._what}s inside {self._what}s, more than {DEEPEST} deep")
        kind, named = self._kind()
        record(self.field, self.about, ("is", *kind.saved_fields) if named else kind.saved_fields)
        found = kind.from_file(self)
        if not isinstance(found, self.family):
            raise ValueError(f"{self.field}: a {type(found).__name__}")
        return found

    @property
    def _what(self) -> str:
        return self.family.__name__.lower()

    def _kind(self) -> tuple[type[Portable], bool]:
        if not isinstance(self.about, dict):
            raise ValueError(f"{self.field}: {short(self.about)} instead of an object")
        named, known = "is" in self.about, self.family.known
        name = self.about["is"] if named else next(iter(self.about), None)
        if not isinstance(name, str):
            raise ValueError(f"{self.field}.is: {short(name)} instead of one of {', '.join(known)}")
        several = known.get(name, {})
        kinds = list(several.values())
        if len(kinds) > 1:
            kinds = [kind for kind in kinds if kind.__module__ == self.about.get("module")]
        if len(kinds) != 1:
            raise self._unknown(name, list(several))
        return kinds[0], named

    def _unknown(self, name: str, several: list[str]) -> SightFileError:
        module = self.about.get("module")
        where = f"import {module}" if isinstance(module, str) and module.isprintable() else "import its module"
        ours = ", ".join(sorted(k for k, kinds in self.family.known.items() if any(map(is_ours, kinds.values()))))
        return SightFileError(
            f"the file holds a {self._what} of a class that is not known here",
            expected=f"{ours}, or a class of yours that was imported before",
            got=f"{short(self.field)}.is: {short(name)}" + (f": {', '.join(several)}" if several else ""),
            hint=f"{short(where)}, where class {short(name)} is defined, and load the file again",
        )

    def value(self, name: str) -> Any:
        return self.about[name]

    def whole(self, name: str, low: int, high: int) -> int:
        return whole(f"{self.field}.{name}", self.about[name], low, high)

    def one_of(self, name: str, known: Sequence[str]) -> str:
        return one_of(f"{self.field}.{name}", self.about[name], known)

    def tensor(self, name: str, dtypes: Sequence[torch.dtype]) -> Tensor:
        return self._tensor(f"{self.field}.{name}", self.about[name], dtypes)

    def _tensor(self, field: str, said: Any, dtypes: Sequence[torch.dtype]) -> Tensor:
        if not isinstance(said, str):
            raise ValueError(f"{field}: {short(said)} instead of the name of a tensor")
        return self.file.take(said, None, dtypes)

    def part(self, name: str) -> Any:
        return self._part(f"{self.field}.{name}", self.about[name], self.depth + 1)

    def _part(self, field: str, about: Any, depth: int) -> Any:
        return _Reading(field, about, self.family, self.heads, self.file, depth).read()

    def plain(self, name: str) -> dict[str, Any]:
        field = f"{self.field}.{name}"
        fields = record(field, self.about[name])
        return {key: self._plain(f"{field}.{short(key)}", value, self.depth + 1) for key, value in fields.items()}

    def _plain(self, field: str, said: Any, depth: int) -> Any:
        """What `portable.written` wrote of an attribute."""
        if depth > DEEPEST:
            raise ValueError(f"{self.field}: more than {DEEPEST} deep")
        if not isinstance(said, dict):
            if isinstance(said, list):
                raise ValueError(f"{field}: {short(said)} instead of an object that says what it is")
            return said
        kind, value = next(iter(said.items())) if len(said) == 1 else ("", None)
        match kind:
            case "tensor":
                return self._tensor(field, value, tuple(DTYPES.values()))
            case "part":
                return self._part(field, value, depth)
            case "float":
                return float(one_of(field, value, ("nan", "inf", "-inf")))
            case "list" | "tuple":
                found = [self._plain(field, x, depth + 1) for x in items(field, value)]
                return found if kind == "list" else tuple(found)
            case "dict":
                pairs = [items(field, pair, 2) for pair in items(field, value)]
                made = {self._plain(field, k, depth + 1): self._plain(field, v, depth + 1) for k, v in pairs}
                if len(made) < len(pairs):
                    raise ValueError(f"{field}: a key twice")
                return made
        raise ValueError(f"{field}: {short(said)} instead of one of tensor, part, float, list, tuple, dict")


def _checked(field: str, about: Any, sizes: Sizes, file: TensorFile, family: Any, *device: torch.device) -> Any:
    """A mask or bias that fits the map; whatever a class of somebody's own makes of a damaged file is a ValueError."""
    try:
        found = _Reading(field, about, family, sizes.heads, file).read()
        found.check(sizes.batch, sizes.heads, sizes.queries, sizes.keys, *device)
    except (AttributeError, LookupError, RuntimeError, ArithmeticError, AssertionError) as error:
        raise ValueError(f"{field}: {type(error).__name__}: {short(str(error))}") from error
    return found
