"""Whole maps by the kernel in C (`tile.c`), products included: the struct that it reads."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

_POINTERS = ("q", "k", "level", "rest", "factors", "first", "stop", "result", "received", "picture")
_EDGES = ("row_edges", "column_edges")
_SIZES = ("maps", "heads", "groups", "members", "queries", "keys", "dim")
_STRIDES = ("q_batch", "q_head", "q_next", "k_batch", "k_head", "k_next", "pixel_rows", "pixel_columns")


class Maps(ctypes.Structure):
    """What the kernel is told; the source says what each means."""

    _fields_ = (
        *((name, ctypes.c_void_p) for name in (*_POINTERS, *_EDGES)),
        *((name, ctypes.c_int64) for name in (*_SIZES, *_STRIDES)),
        *((name, ctypes.c_float) for name in ("scale", "place", "unit")),
    )


class MapKernel(NamedTuple):
    """Maps from one to another, and the floats of memory that this needs for so many keys and numbers of a head."""

    run: Callable[..., None]
    memory: Callable[[int, int], int]


def load(library: ctypes.CDLL) -> MapKernel | None:
    """The kernel in a library, if it computes rightly."""
    run, memory = library.sightline_maps, library.sightline_memory
    run.argtypes = [ctypes.POINTER(Maps), ctypes.c_int64, ctypes.c_int64, ctypes.c_void_p]
    run.restype = None
    memory.argtypes, memory.restype = [ctypes.c_int64, ctypes.c_int64], ctypes.c_int64
    found = MapKernel(run, memory)
    return found if _is_right(found) else None


def _is_right(kernel: MapKernel) -> bool:
    """Whether it gives what numpy gives, of two small maps with one head of keys, rows of which see a stretch."""
    queries, keys, dim = 11, 53, 5
    draw = np.random.default_rng(0)
    q, k = (draw.standard_normal(shape).astype(np.float32) for shape in ((2, queries, dim), (keys, dim)))
    first, stop = np.arange(queries, dtype=np.int32), np.arange(queries, dtype=np.int32) + (keys - queries)
    column = np.arange(keys)
    seen = (column >= first[:, None]) & (column < stop[:, None])
    scores = np.where(seen, q.astype(np.float64) @ k.T.astype(np.float64), -np.inf)
    exact = np.exp2(scores)
    level = -np.log2(exact.sum(-1)).astype(np.float32)
    rest = np.where(np.arange(queries) % 2, np.float32(np.nan), np.float32(0)) * np.ones((2, 1), np.float32)
    level[:, 1::2] += 3
    exact /= exact.sum(-1, keepdims=True)
    result, received = np.empty((4, 2, queries), np.float32), np.empty((2, keys), np.float32)
    picture = np.empty((2, 3, 2), np.float32)
    row_edges, column_edges = np.array([0, 4, 8, 11], np.int32), np.array([0, 30, keys], np.int32)
    arrays = dict(zip(_POINTERS, (q, k, level, rest, None, first, stop, result, received, picture), strict=True))
    arrays |= {"row_edges": row_edges, "column_edges": column_edges}
    sizes = dict(zip(_SIZES, (2, 2, 2, 1, queries, keys, dim), strict=True))
    strides = dict(zip(_STRIDES, (0, queries * dim, dim, 0, 0, dim, 3, 2), strict=True))
    addresses = {name: None if x is None else x.ctypes.data for name, x in arrays.items()}
    maps = Maps(**addresses, **sizes, **strides, scale=1.0, place=4.0, unit=0.5)
    memory = np.empty(kernel.memory(keys, dim), np.float32)
    kernel.run(ctypes.byref(maps), 0, 2, memory.ctypes.data)
    logs = np.log2(np.where(seen, exact, 1.0))
    far = np.abs(np.arange(queries)[:, None] + 4 - column)
    pixels = np.add.reduceat(np.add.reduceat(exact, row_edges[:-1], 1), column_edges[:-1], 2) / 2
    sums = [np.where(seen, logs, -np.inf).max(-1), *((exact * x).sum(-1) for x in (logs, far, 1.0))]
    pairs = [(received, exact.sum(1)), (picture, pixels), *zip(result, sums, strict=True)]
    return all(np.allclose(got, want, rtol=1e-4, atol=1e-5) for got, want in pairs)
