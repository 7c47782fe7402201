"""What is kept in memory between calls, each kind by its name: how much it is, and how to be rid of it.

All of it can be made again: after `clear` the next calls give the same, and take as long as the first ones did. What
is listed is that of the parts of the package in use. (What is on the disk is in the folder of `sightline.folders`.)

>>> import sightline as sl
>>> "lens.axes" in [cache.name for cache in sl.caches.listed()]
True
>>> sl.caches.clear("lens")
>>> [cache.entries for cache in sl.caches.listed() if cache.name == "lens.axes"]
[0]
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Hashable, Sized
from typing import Any, NamedTuple, ParamSpec, Protocol, TypeVar

from sightline.errors import InputError

__all__ = ["Cache", "clear", "listed"]

P = ParamSpec("P")
K = TypeVar("K", bound=Hashable)
T = TypeVar("T")
V = TypeVar("V")


class Cache(NamedTuple):
    """One kind of what is kept: how many there are, and how many or how many bytes there may be.

    >>> Cache("lens.axes", entries=3, most=64, most_bytes=None).entries
    3
    """

    name: str  # package.what
    entries: int
    most: int | None  # None: as many as there are models, which it does not hold
    most_bytes: int | None


class _Held(NamedTuple):
    size: Callable[[], int]
    clear: Callable[[], object]
    most: int | None
    most_bytes: int | None


class _Clears(Sized, Protocol):
    def clear(self) -> object: ...


C = TypeVar("C", bound=_Clears)

_held: dict[str, _Held] = {}


def listed() -> list[Cache]:
    """Every cache, by its name.

    >>> all(cache.entries <= (cache.most or cache.entries) for cache in listed())
    True
    """
    return [Cache(name, one.size(), one.most, one.most_bytes) for name, one in sorted(_held.items())]


def clear(*names: str) -> None:
    """Empty some caches, by their names or their packages' names; without any name, all of them.

    >>> clear("backends", "lens.axes")
    >>> clear("lense")
    Traceback (most recent call last):
    sightline.errors.InputError: there is no such cache
    ...
    """
    for name in names:
        if not any(_named(known, name) for known in _held):
            raise InputError(
                "there is no such cache",
                expected=f"one of {', '.join(sorted(_held))}, or the package of some",
                got=repr(name),
                hint="sl.caches.listed()",
            )
    for known, one in list(_held.items()):
        if not names or any(_named(known, name) for name in names):
            one.clear()


def _named(known: str, name: object) -> bool:
    return isinstance(name, str) and (known == name or known.startswith(f"{name}."))


# For the modules that keep something.


def held(name: str, container: C, most: int | None = None, clear: Callable[[], object] | None = None) -> C:
    """A container, known by a name from now on; it stays what it is, and whoever fills it holds it to `most`.

    `clear` is what empties it, where that takes more than its own method: a lock, say.
    """
    _held[name] = _Held(container.__len__, clear or container.clear, most, None)
    return container


def memo(name: str, most: int = 1) -> Callable[[Callable[P, T]], functools._lru_cache_wrapper[T]]:
    """`functools.lru_cache` by a name: the results for the `most` arguments that were used last."""

    def known(function: Callable[P, T]) -> functools._lru_cache_wrapper[T]:
        made = functools.lru_cache(maxsize=most)(function)
        _held[name] = _Held(lambda: made.cache_info().currsize, made.cache_clear, most, None)
        return made

    return known


def memo_by_bytes(name: str, most: int, most_bytes: int) -> Callable[[Callable[P, T]], Callable[P, T]]:
    """The same for results that hold tensors: so many, and so many bytes. The oldest go first, the last one stays.

    The function is called by position. What empties it is its `cache_clear`, as that of `functools`.
    """

    def known(function: Callable[P, T]) -> Callable[P, T]:
        table: dict[Any, tuple[T, int]] = {}
        lock = threading.Lock()
        held_bytes = 0

        @functools.wraps(function)
        def found(*given: P.args, **_: P.kwargs) -> T:
            known = table.get(given)
            return keep(given, function(*given)) if known is None else known[0]  # type: ignore[call-arg]

        def keep(given: tuple, made: T) -> T:
            nonlocal held_bytes
            size = bytes_of(made)
            with lock:
                _, before = table.pop(given, (None, 0))
                held_bytes -= before
                while table and (len(table) >= most or held_bytes + size > most_bytes):
                    held_bytes -= table.pop(next(iter(table)))[1]
                table[given] = (made, size)
                held_bytes += size
            return made

        def cache_clear() -> None:
            nonlocal held_bytes
            with lock:
                table.clear()
                held_bytes = 0

        found.cache_clear = cache_clear  # type: ignore[attr-defined]
        _held[name] = _Held(table.__len__, cache_clear, most, most_bytes)
        return found

    return known


def put(table: dict[K, V], key: K, value: V, most: int) -> V:
    """Put something into a table that has at most so many, and let the oldest go."""
    if len(table) >= most:
        for oldest in list(table)[: len(table) - most + 1]:
            table.pop(oldest, None)
    table[key] = value
    return value


def bytes_of(made: object) -> int:
    """The memory of all tensors in something made of tuples.

    >>> bytes_of((3, ("a", None), memoryview(bytes(8))))
    8
    """
    if isinstance(made, tuple | list):
        return sum(map(bytes_of, made))
    size = getattr(made, "nbytes", 0)
    return size if isinstance(size, int) else 0
