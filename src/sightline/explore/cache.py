"""What was made is kept, up to a number of bytes; what was not used longest goes first."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

T = TypeVar("T")


class Cache(Generic[T]):
    """A bounded store, safe to use from several threads.

    >>> cache = Cache(limit=10)
    >>> cache.put("a", b"12345", 5)
    >>> cache.put("b", b"123456", 6)
    >>> cache.get("a"), cache.get("b")
    (None, b'123456')
    """

    def __init__(self, limit: int) -> None:
        self.limit, self.size = limit, 0
        self._kept: OrderedDict[Hashable, tuple[T, int]] = OrderedDict()
        self._lock = threading.Lock()

    def get(self, key: Hashable) -> T | None:
        """What is kept under a key, now the most recently used."""
        with self._lock:
            if key not in self._kept:
                return None
            self._kept.move_to_end(key)
            return self._kept[key][0]

    def put(self, key: Hashable, value: T, size: int) -> None:
        """Keep a value; one larger than the whole cache is not kept."""
        with self._lock:
            self._drop(key)
            if size > self.limit:
                return
            self._kept[key] = (value, size)
            self.size += size
            while self.size > self.limit:
                self._drop(next(iter(self._kept)))

    def forget(self, belongs: Callable[[Hashable], bool]) -> None:
        """Drop everything whose key belongs to what is gone."""
        with self._lock:
            for key in [key for key in self._kept if belongs(key)]:
                self._drop(key)

    def __len__(self) -> int:
        return len(self._kept)

    def _drop(self, key: Hashable) -> None:
        if key in self._kept:
            self.size -= self._kept.pop(key)[1]
