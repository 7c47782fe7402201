"""Things that can be taken along: to another device, into a file and back. Masks and lazy biases are such things.

What a thing is made of is read from its attributes: tensors, other such things, plain values (numbers, words, None),
and lists, tuples and dicts of these. A class that is made of more than that, or wants another form in a file, says so
in a few methods of its own.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from itertools import count
from typing import TYPE_CHECKING, Any, ClassVar, Protocol, Self

import torch
from torch import Tensor

from sightline.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Mapping

_OURS = __name__.split(".")[0]
# What no file can hold as it is may be written out up to this many cells: 64 MB of booleans.
_WRITTEN = 1 << 26


class Writing(Protocol):
    """Where a thing puts itself: both give what stands for it in the description."""

    def tensor(self, tensor: Tensor) -> str: ...

    def part(self, part: Any) -> Any: ...


class Reading(Protocol):
    """A thing's description in a file, each field checked when it is asked for; what does not hold is a ValueError."""

    heads: int  # of the map that the file is about

    def value(self, name: str) -> Any:
        """A field as it was written, which is nothing to be trusted."""

    def whole(self, name: str, low: int, high: int) -> int: ...

    def one_of(self, name: str, known: Sequence[str]) -> str: ...

    def tensor(self, name: str, dtypes: Sequence[torch.dtype]) -> Tensor: ...

    def part(self, name: str) -> Any: ...

    def plain(self, name: str) -> dict[str, Any]:
        """What `written` wrote, read back."""


class Portable:
    """Something that knows its tensors and parts, moves to another device, and is written to a file.

    A class that inherits from this is known to files by its name, or by what it says in `saved_as`; None keeps it out.
    """

    saved_as: ClassVar[str | None] = None
    # The fields of its description in a file, beside its name.
    saved_fields: ClassVar[tuple[str, ...]] = ("module", "fields")
    # All classes of a kind by their names in files; of one name there may be several, which are told apart by module.
    known: ClassVar[dict[str, dict[str, type[Portable]]]] = {}
    # Every class by a name that no other has, also where one is defined anew: what a compiled graph says of it.
    classes: ClassVar[dict[str, type[Portable]]] = {}
    class_key: ClassVar[str] = ""
    # The attributes of this class, but not of one that inherits from it, if they are always the same: not every torch
    # can list those of an object in a graph.
    holds: ClassVar[tuple[str, ...] | None] = None
    _slot_names: ClassVar[tuple[str, ...]] = ()

    def __init_subclass__(cls, **more: Any) -> None:
        super().__init_subclass__(**more)
        cls._slot_names = _slots(cls)
        cls.class_key = _new_key(f"{cls.__module__}.{cls.__qualname__}", Portable.classes)
        Portable.classes[cls.class_key] = cls
        if "holds" not in vars(cls):
            cls.holds = None
        if "saved_as" not in vars(cls):
            cls.saved_as = cls.__name__
        if cls.saved_as is None:
            return
        others = cls.known.setdefault(cls.saved_as, {})
        if not is_ours(cls) and any(map(is_ours, others.values())):
            raise InputError(
                "Sightline has a class of this name in its files",
                expected="another name for the class, or in its `saved_as`",
                got=repr(cls.saved_as),
                hint=f'saved_as = "my_{cls.saved_as}" in the body of the class',
            )
        others[f"{cls.__module__}.{cls.__qualname__}"] = cls

    def fields(self) -> dict[str, Any]:
        """What it is made of, by the names of its attributes."""
        if self.holds is not None and torch.compiler.is_compiling():
            return {name: getattr(self, name) for name in self.holds}
        found = {name: getattr(self, name) for name in self._slot_names if hasattr(self, name)}
        return found | {name: None if name == "_kept" else value for name, value in self.__dict__.items()}

    def __getstate__(self) -> dict[str, object]:
        """What `copy` and `pickle` take along: not what was made from tensors whose changes are counted anew."""
        return {name: None if name == "_kept" else value for name, value in self.__dict__.items()}

    def parts(self) -> tuple[Any, ...]:
        """The things of the same kind that it is made of."""
        return tuple(x for x in leaves(self.fields()) if isinstance(x, Portable))

    def tensors(self) -> Iterator[Tensor]:
        """The tensors that it is made of, its parts' included."""
        for x in leaves(self.fields()):
            if isinstance(x, Portable):
                yield from x.tensors()
            elif isinstance(x, Tensor):
                yield x

    def rebuilt(self, change: Callable[[Any], Any]) -> Self:
        """The same with each of its tensors and parts put through a function; itself if that changes none."""
        fields = self.fields()
        changed = {name: replaced(value, change) for name, value in fields.items()}
        if all(changed[name] is value for name, value in fields.items()):
            return self
        return restored(type(self).__new__(type(self)), changed)

    def to(self, device: torch.device | str, copy: bool = False) -> Self:
        """The same with its tensors on another device; with `copy` they are nobody else's in any case."""

        def moved(x: Any) -> Any:
            # A copy is no part of a graph: who takes it along has nothing to train.
            return (x.detach() if copy and isinstance(x, Tensor) else x).to(device, copy=copy)

        return self.rebuilt(moved)

    def __repr__(self) -> str:
        return f"{self.class_name}({', '.join(f'{name}={_short(x)}' for name, x in self.fields().items())})"

    @property
    def class_name(self) -> str:
        """The name of its class, for messages."""
        return type(self).__name__

    @property
    def is_plain(self) -> bool:
        """Whether it is made of tensors, plain values and parts that are plain: what can be copied and saved whole.

        A function is none of these; what it gives may be something else tomorrow.
        """
        return self.unsaved() is None and all(part.is_plain for part in self.parts())

    def unsaved(self) -> str | None:
        """The name of an attribute that no file can hold, or None."""
        return next((name for name, value in self.fields().items() if not _is_plain(value)), None)

    def to_file(self, file: Writing) -> Any:
        """Its description in a file, in what JSON can hold: a dict with `saved_fields`."""
        fields = {name: written(value, file) for name, value in self.fields().items()}
        return {"module": type(self).__module__, "fields": fields}

    @classmethod
    def from_file(cls, file: Reading) -> Self:
        """The same again, from the description in a file."""
        return restored(cls.__new__(cls), file.plain("fields"))


def _short(value: Any) -> str:
    """A value in few words: of a tensor its shape, of a function its name, and nothing that differs by run."""
    if isinstance(value, Tensor):
        return f"<{' x '.join(map(str, value.shape))}>"
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(_short, value))}]"
    if value is None or isinstance(value, Portable | bool | int | float | str):
        return repr(value)
    return getattr(value, "__qualname__", type(value).__name__)


def is_ours(kind: type) -> bool:
    """Whether a class is one of Sightline's own."""
    return kind.__module__.split(".")[0] == _OURS


def _is_plain(value: Any) -> bool:
    if type(value) is dict:
        return all(map(_is_plain, value)) and all(map(_is_plain, value.values()))
    if type(value) in (list, tuple):
        return all(map(_is_plain, value))
    return value is None or isinstance(value, Tensor | Portable | bool | int | float | str)


def _slots(kind: type) -> tuple[str, ...]:
    said = [vars(base).get("__slots__", ()) for base in kind.__mro__]
    names = [name for one in said for name in ((one,) if isinstance(one, str) else one)]
    return tuple(name for name in names if name not in ("__dict__", "__weakref__"))


def _new_key(name: str, taken: Mapping[str, object]) -> str:
    """A name, or if it is taken the next one with a number."""
    numbered = (name if n == 1 else f"{name}#{n}" for n in count(1))
    return next(key for key in numbered if key not in taken)


def restored(thing: Any, fields: Mapping[str, Any]) -> Any:
    """A thing with these attributes, also where it lets nobody set them."""
    for name, value in fields.items():
        object.__setattr__(thing, name, value)
    return thing


def leaves(value: Any) -> Iterator[Any]:
    """What a value holds that is no list, tuple or dict.

    >>> list(leaves({"a": [1, (2, None)], "b": "c"}))
    [1, 2, None, 'c']
    """
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, (list, tuple)):
        for x in value:
            yield from leaves(x)
    else:
        yield value


def replaced(value: Any, change: Callable[[Any], Any]) -> Any:
    """A value with every tensor and part in it put through a function; itself if that changes none.

    >>> given = [1, torch.ones(2)]
    >>> replaced(given, lambda x: x) is given, replaced(given, lambda x: x + 1)[1].tolist()
    (True, [2.0, 2.0])
    """
    if isinstance(value, (Tensor, Portable)):
        return change(value)
    if isinstance(value, dict):
        mapped = {name: replaced(x, change) for name, x in value.items()}
        return value if all(mapped[name] is x for name, x in value.items()) else mapped
    if isinstance(value, (list, tuple)):
        made = [replaced(x, change) for x in value]
        if all(new is old for new, old in zip(made, value)):
            return value
        return type(value)(*made) if hasattr(value, "_fields") else type(value)(made)
    return value


def written(value: Any, file: Writing) -> Any:
    """An attribute in what JSON can hold."""
    if isinstance(value, Tensor):
        return {"tensor": file.tensor(value)}
    if isinstance(value, Portable):
        return {"part": file.part(value)}
    if isinstance(value, dict):
        return {"dict": [[written(name, file), written(x, file)] for name, x in value.items()]}
    if isinstance(value, list | tuple):
        return {"list" if isinstance(value, list) else "tuple": [written(x, file) for x in value]}
    if isinstance(value, float) and not math.isfinite(value):
        return {"float": str(value)}
    return value


# Tensors that broadcast, and the part of them that belongs to one member of the batch, or to some heads.


def one_member(x: Tensor, member: tuple[int, ...] | None, rest: int) -> Tensor:
    """The part of `[*batch, …]` for one member of the batch, whose axes may be missing or 1; None: all of it.

    >>> one_member(torch.arange(6).view(2, 1, 3), (1, 4), rest=1)
    tensor([3, 4, 5])
    """
    leading = x.dim() - rest
    if member is None or leading <= 0:
        return x
    places = member[len(member) - leading :]
    return x[tuple(place if size > 1 else 0 for place, size in zip(places, x.shape[:leading], strict=True))]


def some_heads(x: Tensor, heads: Sequence[int] | None, rest: int) -> Tensor:
    """The part of `[*batch, heads, …]` for some heads, whose axis may be missing or 1; None: all of it.

    >>> some_heads(torch.arange(6).view(3, 2), [2, 0], rest=1)
    tensor([[4, 5],
            [0, 1]])
    """
    axis = x.dim() - rest - 1
    if heads is None or axis < 0 or x.shape[axis] == 1:
        return x
    if len(heads) == 1:
        return x.narrow(axis, heads[0], 1)  # no copy
    return x.index_select(axis, torch.tensor(list(heads), device=x.device))


def one_batch_axis(x: Tensor, batch: tuple[int, ...], rest: int) -> Tensor:
    """`[*batch, …]` with one batch axis, or none where there was none.

    >>> one_batch_axis(torch.zeros(2, 1, 5), (2, 3), rest=1).shape
    torch.Size([6, 5])
    """
    if len(batch) == 1 or x.dim() <= rest:
        return x
    last = x.shape[x.dim() - rest :]
    if all(size == 1 for size in x.shape[: x.dim() - rest]):
        return x.reshape(1, *last)
    return x.expand(*batch, *last).reshape(-1, *last)


def at_cells(
    tile: Callable[[slice, slice], Tensor], batch: tuple[int, ...], b: Tensor, h: Tensor, i: Tensor, j: Tensor
) -> Tensor:
    """Single cells of something that gives tiles: cell (b, h, i, j) of a flattened batch, for tensors of indices.

    Of every tile in which some cell lies, one is made, so that all of them together are never there.
    """
    b, h, i, j = torch.broadcast_tensors(b, h, i, j)
    shape = i.shape
    members = torch.unravel_index(b.reshape(-1), batch) if batch else ()
    places = [*members, h.reshape(-1), i.reshape(-1), j.reshape(-1)]
    row, column = places[-2] // _CELLS, places[-1] // _CELLS
    tiles = row * (int(column.max()) + 1 if len(column) else 1) + column
    order = tiles.argsort()
    found = torch.zeros(len(order), dtype=torch.bool, device=i.device)
    for here in order.split(tiles[order].unique_consecutive(return_counts=True)[1].tolist()) if len(order) else ():
        inside = [place[here] for place in places]
        top, left = int(inside[-2].min()), int(inside[-1].min())
        cells = tile(slice(top, int(inside[-2].max()) + 1), slice(left, int(inside[-1].max()) + 1))
        inside[-2:] = inside[-2] - top, inside[-1] - left
        some = inside[len(inside) - cells.dim() :]
        found = found.to(cells.dtype)
        found[here] = cells[tuple(at if size > 1 else at * 0 for at, size in zip(some, cells.shape, strict=True))]
    return found.view(shape)


# Rows and columns of the tiles in which single cells are looked up.
_CELLS = 256


def check_small(what: str, cell: Tensor, queries: int, keys: int) -> torch.Size:
    """The axes before queries and keys, from one cell; raise if the whole is too large to be written out."""
    leading = cell.shape[:-2]
    cells = leading.numel() * queries * keys
    if cells > _WRITTEN:
        raise InputError(
            f"this {what} is a function, and too large to be written out for a file",
            expected=f"at most {_WRITTEN:,} cells",
            got=f"{cells:,} for {queries:,} queries and {keys:,} keys",
            hint="save(folder, keep_qk=False), which needs no mask",
        )
    return leading


def broadcasts(shape: Sequence[int], target: Sequence[int]) -> bool:
    """Whether a tensor of this shape can be expanded to the target.

    >>> broadcasts((3, 1), (2, 3, 5)), broadcasts((2, 1), (2, 3, 5))
    (True, False)
    """
    if len(shape) > len(target):
        return False
    # Not `a in (1, b)`, which a compiler answers with no where a size is a symbol.
    return all(a == 1 or a == b for a, b in zip(shape, target[len(target) - len(shape) :]))
