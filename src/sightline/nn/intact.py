"""A call that fails leaves its caches as they were.

What a cache holds is never written over, only behind its end or in other memory. So it is enough to note which memory
it had and how far that was filled, and to put this back, whatever ended the call: a refusal in any layer, a user's
hook, a lack of memory, Ctrl-C.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from itertools import starmap
from typing import Any

from torch import nn

from sightline.nn.cache import STATE, KVCache

State = list[tuple[KVCache, str, Any]]


def state_of(cache: object) -> State:
    """What the caches hold now, of a whole decoder, of a layer, or of one attention; nothing is copied."""
    if isinstance(cache, KVCache):
        return [(cache, name, getattr(cache, name)) for name in STATE]
    caches = cache if isinstance(cache, Iterable) else ()
    return [(own, name, getattr(own, name)) for own in caches if isinstance(own, KVCache) for name in STATE]


def put_back(state: State) -> None:
    """Give the caches what they held before."""
    # A loop without Python's own steps: a second Ctrl-C comes before it or after it, never in between.
    deque(starmap(setattr, state), maxlen=0)


class TakesCache(nn.Module):
    """A module whose calls may be given a cache. It is put back around the whole call, the module's own hooks too."""

    def __call__(self, *args: Any, cache: Any = None, **options: Any) -> Any:
        if cache is None:
            return super().__call__(*args, **options)
        before = state_of(cache)
        try:
            return super().__call__(*args, cache=cache, **options)
        except BaseException:
            put_back(before)
            raise
