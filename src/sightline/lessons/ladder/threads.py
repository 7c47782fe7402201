"""A fixed number of threads, for as long as numbers must come out the same."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch


@contextmanager
def threads(number: int) -> Iterator[None]:
    """So many threads inside, as many as before outside: sums over more parts have other last digits.

    >>> before = torch.get_num_threads()
    >>> with threads(3):
    ...     torch.get_num_threads()
    3
    >>> torch.get_num_threads() == before
    True
    """
    before = torch.get_num_threads()
    torch.set_num_threads(number)
    try:
        yield
    finally:
        torch.set_num_threads(before)
