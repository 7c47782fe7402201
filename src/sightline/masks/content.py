"""Masks that depend on what the input holds: documents, padding, and any table of booleans.

```
documents([0, 0, 1, 1])     padding([3]) over 5 keys
1 1 0 0                     1 1 1 0 0
1 1 0 0                     (the same for every query)
0 0 1 1
0 0 1 1
```
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch._subclasses.fake_tensor import FakeTensor

from sightline.errors import InputError, InputTypeError
from sightline.masks.base import Mask
from sightline.masks.blocks import block_sums, lowest_highest, none_all, over_batch
from sightline.masks.changes import counted, may_keep, own, state_of
from sightline.masks.rule import EMPTY, FULL, MIXED, MaskMod
from sightline.portable import Reading, Writing, broadcasts, one_batch_axis, one_member, some_heads

if TYPE_CHECKING:
    from jaxtyping import Bool, Int
    from torch import Tensor

# The dtypes of whole numbers, in a file.
_WHOLE = tuple(getattr(torch, f"{sign}int{bits}") for bits in (64, 32, 16, 8) for sign in ("", "u"))


class Documents(Mask):
    """Query and key must lie in the same document."""

    saved_as = "documents"
    by_example = True
    holds = ("ids", "key_ids")
    saved_fields = ("ids", "key_ids")
    follows_order = False

    def __init__(self, ids: Tensor, key_ids: Tensor | None) -> None:
        self.ids, self.key_ids = ids, key_ids

    def _both(self, queries: int, device: torch.device | str) -> tuple[Tensor, Tensor]:
        if self.key_ids is not None:
            return self.ids.to(device), self.key_ids.to(device)
        ids = self.ids.to(device)
        # With a cache there are fewer queries than keys: they are the last ones.
        return ids[..., ids.shape[-1] - queries :], ids

    def tile(self, rows: slice, columns: slice, queries: int, keys: int, device: torch.device) -> Tensor:
        ids, key_ids = self._both(queries, device)
        return (ids[..., rows, None] == key_ids[..., None, columns]).unsqueeze(-3)

    def kinds(self, row_edges: np.ndarray, column_edges: np.ndarray, queries: int, keys: int) -> np.ndarray:
        both = self._both(queries, "cpu")
        batch = torch.broadcast_shapes(*(t.shape[:-1] for t in both))
        ids, key_ids = (
            t.expand(*batch, t.shape[-1]).reshape(batch.numel(), t.shape[-1]).numpy(force=True) for t in both
        )
        row_low, row_high = lowest_highest(ids, row_edges)
        low, high = lowest_highest(key_ids, column_edges)
        apart = (row_high[:, :, None] < low[:, None]) | (row_low[:, :, None] > high[:, None])
        same = (row_low == row_high)[:, :, None] & (low == high)[:, None] & (row_low[:, :, None] == low[:, None])
        return over_batch(apart, same)

    def mod(self, batch: tuple[int, ...], queries: int, keys: int, device: torch.device) -> MaskMod:
        ids, key_ids = (t.expand(*batch, t.shape[-1]).reshape(-1, t.shape[-1]) for t in self._both(queries, device))
        return lambda b, h, i, j: ids[b, i] == key_ids[b, j]

    def intervals(self, queries: int, keys: int, device: torch.device) -> tuple[Tensor, Tensor] | None:
        ids, key_ids = self._both(queries, device)
        if not all(bool((t[..., 1:] >= t[..., :-1]).all()) for t in (ids, key_ids)):
            return None  # a document in several pieces is not one stretch
        leading = torch.broadcast_shapes(ids.shape[:-1], key_ids.shape[:-1])
        ids, key_ids = (t.expand(*leading, t.shape[-1]).contiguous() for t in (ids, key_ids))
        return torch.searchsorted(key_ids, ids), torch.searchsorted(key_ids, ids, right=True)

    def check(self, batch: tuple[int, ...], heads: int, queries: int, keys: int, device: torch.device) -> None:
        key_ids = self.ids if self.key_ids is None else self.key_ids
        fits = key_ids.shape[-1] == keys and (
            queries <= keys if self.key_ids is None else self.ids.shape[-1] == queries
        )
        if not fits or not all(broadcasts(ids.shape[:-1], batch) for ids in (self.ids, key_ids)):
            raise InputError(
                "the documents do not fit the call",
                expected=f"ids for {queries} queries and {keys} keys, of batch {batch} or broadcastable to it",
                got=f"ids {tuple(self.ids.shape)}, key_ids {tuple(key_ids.shape)}",
                hint="documents(ids) for self-attention, documents(ids, key_ids) for two sequences",
            )

    def select(self, member: tuple[int, ...] | None = None, heads: Sequence[int] | None = None) -> Documents:
        return self.rebuilt(lambda ids: one_member(ids, member, 1))

    def flattened(self, batch: tuple[int, ...]) -> Documents:
        return self.rebuilt(lambda ids: one_batch_axis(ids, batch, 1))

    def state(self) -> Hashable | None:
        return state_of("documents", self.ids, self.key_ids)

    def to_file(self, file: Writing) -> dict[str, Any]:
        return {"ids": file.tensor(self.ids), "key_ids": None if self.key_ids is None else file.tensor(self.key_ids)}

    @classmethod
    def from_file(cls, file: Reading) -> Any:
        key_ids = None if file.value("key_ids") is None else file.tensor("key_ids", _WHOLE)
        return documents(file.tensor("ids", _WHOLE), key_ids)

    def __repr__(self) -> str:
        return f"documents({_shape(self.ids)}" + (")" if self.key_ids is None else f", {_shape(self.key_ids)})")


class Padding(Mask):
    """Some keys are not real. Held as booleans `[*batch, keys]`, or as lengths `[*batch]`."""

    saved_as = "padding"
    by_example = True
    holds = ("lengths", "real", "longest")
    saved_fields = ("of",)
    follows_order = False

    # What was made from it last.
    _kept: tuple[int, torch.device, int, Tensor] | None = None

    def __init__(self, lengths: Tensor | None, real: Tensor | None, longest: int | None = None) -> None:
        self.lengths, self.real, self.longest = lengths, real, longest

    def row(self, keys: int, device: torch.device, keep: bool | None = None) -> Tensor:
        """Which keys are real, `[*batch, 1, 1, keys]`: the whole mask in one row, kept for the next layer.

        `keep` is what `may_keep` says, if it was asked already.
        """
        source = self.lengths if self.real is None else self.real
        assert source is not None
        if not (may_keep() if keep is None else keep) or not counted(source):
            return self.tile(slice(0, 1), slice(0, keys), 1, keys, device)
        state = (keys, device, source._version)  # the lengths may have been changed in place since
        if self._kept is None or self._kept[:3] != state:
            with torch.inference_mode(False):  # a row made in inference mode could not be trained with later
                self._kept = (*state, self.tile(slice(0, 1), slice(0, keys), 1, keys, device))
        return self._kept[3]

    def _columns(self, columns: slice, device: torch.device | str) -> Tensor:
        """Which keys are real, `[*batch, columns]`."""
        if self.real is not None:
            return self.real[..., columns].to(device)
        assert self.lengths is not None
        return torch.arange(columns.start, columns.stop, device=device) < self.lengths[..., None].to(device)

    def tile(self, rows: slice, columns: slice, queries: int, keys: int, device: torch.device) -> Tensor:
        return self._columns(columns, device)[..., None, None, :]

    def kinds(self, row_edges: np.ndarray, column_edges: np.ndarray, queries: int, keys: int) -> np.ndarray:
        real = self._columns(slice(0, keys), "cpu")
        flat = real.reshape(real.shape[:-1].numel(), keys).numpy(force=True)
        row = over_batch(*none_all(flat, column_edges))
        return np.broadcast_to(row, (len(row_edges) - 1, len(row))).copy()

    def mod(self, batch: tuple[int, ...], queries: int, keys: int, device: torch.device) -> MaskMod:
        real = self._columns(slice(0, keys), device).expand(*batch, keys).reshape(-1, keys)
        return lambda b, h, i, j: real[b, j]

    def intervals(self, queries: int, keys: int, device: torch.device) -> tuple[Tensor, Tensor] | None:
        if self.lengths is None:
            return None
        stop = self.lengths[..., None].to(device).expand(*self.lengths.shape, queries)
        return torch.zeros_like(stop), stop

    def check(self, batch: tuple[int, ...], heads: int, queries: int, keys: int, device: torch.device) -> None:
        if self.real is not None:
            if self.real.shape[-1] != keys or not broadcasts(self.real.shape[:-1], batch):
                raise InputError(
                    "the padding does not fit the call",
                    expected=f"booleans of batch {batch} and {keys} keys, True = real",
                    got=tuple(self.real.shape),
                    hint="padding says which keys are real, one boolean for each key of each sequence",
                )
            return
        assert self.lengths is not None
        if not broadcasts(self.lengths.shape, batch):
            raise InputError(
                "the padding does not fit the call",
                expected=f"one length for each sequence of batch {batch}",
                got=f"lengths {tuple(self.lengths.shape)}",
                hint="for q of [batch, heads, time, dim] give lengths of [batch]",
            )
        if self.longest is not None and self.longest > keys:
            raise InputError(
                "a padding length is longer than the keys",
                expected=f"at most {keys}",
                got=self.longest,
                hint="lengths count the real keys of each sequence",
            )

    def key_row(self, keys: int, device: torch.device) -> Tensor:
        return self._columns(slice(0, keys), device)

    @property
    def is_table(self) -> bool:
        return self.real is not None

    def select(self, member: tuple[int, ...] | None = None, heads: Sequence[int] | None = None) -> Padding:
        return self.rebuilt(lambda x: one_member(x, member, int(self.real is not None)))

    def flattened(self, batch: tuple[int, ...]) -> Padding:
        return self.rebuilt(lambda x: one_batch_axis(x, batch, int(self.real is not None)))

    def state(self) -> Hashable | None:
        return state_of("padding", self.lengths, self.real)

    def to_file(self, file: Writing) -> dict[str, Any]:
        source = self.lengths if self.real is None else self.real
        assert source is not None
        return {"of": file.tensor(source)}

    @classmethod
    def from_file(cls, file: Reading) -> Any:
        return padding(file.tensor("of", (*_WHOLE, torch.bool)))

    def __repr__(self) -> str:
        return f"padding({_shape(self.lengths if self.real is None else self.real)})"


class Dense(Mask):
    """Any table of booleans, broadcastable to `[*batch, heads, queries, keys]`."""

    saved_as = "dense"
    holds = ("table",)
    saved_fields = ("table",)
    follows_order = False
    is_table = True
    is_large = True

    def __init__(self, table: Tensor) -> None:
        self.table = table

    def tile(self, rows: slice, columns: slice, queries: int, keys: int, device: torch.device) -> Tensor:
        whole = slice(None)
        return self.table[
            ..., rows if self.table.shape[-2] > 1 else whole, columns if self.table.shape[-1] > 1 else whole
        ].to(device)

    def kinds(self, row_edges: np.ndarray, column_edges: np.ndarray, queries: int, keys: int) -> np.ndarray:
        rows, columns = self.table.shape[-2:]
        table = self.table.reshape(self.table.shape[:-2].numel(), rows, columns)
        # One cell for the whole batch: seen by any, seen by all.
        some, every = (t.expand(queries, keys).numpy(force=True) for t in (table.any(0), table.all(0)))
        return np.where(
            block_sums(some, row_edges, column_edges) == 0,
            EMPTY,
            np.where(block_sums(~every, row_edges, column_edges) == 0, FULL, MIXED),
        ).astype(np.int8)

    def mod(self, batch: tuple[int, ...], queries: int, keys: int, device: torch.device) -> MaskMod:
        table = self.table.to(device)
        leading = table.expand(*batch, *table.shape[-3:]) if table.dim() > 3 or batch else table
        while leading.dim() < len(batch) + 3:
            leading = leading.unsqueeze(-3)
        heads = leading.shape[-3]
        flat = leading.expand(*batch, heads, queries, keys).reshape(-1, heads, queries, keys)
        return lambda b, h, i, j: flat[b, h if heads > 1 else 0, i, j]

    def for_examples(self, pick: Callable[[Tensor], Tensor]) -> Mask | None:
        made: Mask = self if self.table.dim() < 4 else self.rebuilt(pick)
        return made

    def check(self, batch: tuple[int, ...], heads: int, queries: int, keys: int, device: torch.device) -> None:
        target = (*batch, heads, queries, keys)
        if not broadcasts(self.table.shape, target):
            raise InputError(
                "the mask does not fit the call",
                expected=f"a shape that broadcasts to {target} = [*batch, heads, queries, keys]",
                got=tuple(self.table.shape),
                hint="add axes with unsqueeze; for padding use sl.padding(…), which takes [batch, keys]",
            )
        if self.table.device != device:
            raise InputError(
                "the mask is on another device", expected=device, got=self.table.device, hint="mask.to(q.device)"
            )

    def select(self, member: tuple[int, ...] | None = None, heads: Sequence[int] | None = None) -> Dense:
        return self.rebuilt(lambda table: one_member(some_heads(table, heads, 2), member, 3))

    def flattened(self, batch: tuple[int, ...]) -> Dense:
        return self if len(batch) == 1 else self.rebuilt(lambda table: one_batch_axis(table, batch, 3))

    def to_file(self, file: Writing) -> dict[str, Any]:
        return {"table": file.tensor(self.table)}

    @classmethod
    def from_file(cls, file: Reading) -> Any:
        return dense(file.tensor("table", (torch.bool,)))

    def __repr__(self) -> str:
        return f"dense({_shape(self.table)})"


def documents(
    ids: Int[Tensor, "*batch queries"] | Sequence, key_ids: Int[Tensor, "*batch keys"] | Sequence | None = None
) -> Documents:
    """Attention stays inside a document: query and key must have the same id.

    Without `key_ids` the keys have the same ids as the queries; if there are fewer queries than keys (a cache),
    the queries are the last ones.

    >>> documents([0, 0, 1]).to_dense(3, 3).int()[0]
    tensor([[1, 1, 0],
            [1, 1, 0],
            [0, 0, 1]], dtype=torch.int32)
    """
    return Documents(_integers("ids", ids), None if key_ids is None else _integers("key_ids", key_ids))


def padding(lengths: Int[Tensor, "*batch"] | Bool[Tensor, "*batch keys"] | Sequence) -> Padding:
    """Hide the keys that are padding: whole numbers count the real keys, booleans mark them (True = real).

    >>> padding([1, 3]).to_dense(1, 3).int().flatten(1)
    tensor([[1, 0, 0],
            [1, 1, 1]], dtype=torch.int32)
    """
    tensor = own(torch.as_tensor(lengths))
    if tensor.dtype == torch.bool:
        if tensor.dim() == 0:
            raise InputError(
                "padding needs one boolean per key",
                expected="[*batch, keys]",
                got="a single boolean",
                hint="padding(ids != pad_id)",
            )
        return Padding(None, tensor)
    tensor = _integers("lengths", tensor)
    # Looked at once, here, and only where that costs no wait.
    least, most = (int(x) for x in tensor.aminmax()) if _readable(tensor) and tensor.numel() else (None, None)
    if least is not None and least < 0:
        raise InputError(
            "a padding length must not be negative", expected="0 or more", got=least, hint="lengths count the real keys"
        )
    return Padding(tensor, None, most)


def dense(tensor: Bool[Tensor, "*any queries keys"]) -> Dense:
    """Any table of booleans that broadcasts to `[*batch, heads, queries, keys]`; True = may attend.

    >>> dense(torch.tensor([[True, False], [True, True]])).to_dense(2, 2).int()
    tensor([[1, 0],
            [1, 1]], dtype=torch.int32)
    """
    if not isinstance(tensor, torch.Tensor):
        raise InputTypeError(
            "a dense mask must be a tensor",
            expected="a boolean torch.Tensor",
            got=type(tensor).__name__,
            hint="torch.as_tensor(mask)",
        )
    if tensor.dtype != torch.bool:
        hint = "pass it as bias=…" if tensor.dtype.is_floating_point else "mask.bool(); True means may attend"
        raise InputTypeError(
            "a mask must be boolean", expected="torch.bool, True = may attend", got=tensor.dtype, hint=hint
        )
    if tensor.dim() < 2:
        raise InputError(
            "a dense mask needs at least two axes",
            expected="[*batch, heads, queries, keys] or fewer leading axes",
            got=tuple(tensor.shape),
            hint="mask[None] for one row that all queries share",
        )
    return Dense(tensor)


def _integers(name: str, values: object) -> Tensor:
    tensor = own(torch.as_tensor(values))
    if tensor.dtype.is_floating_point or tensor.dtype.is_complex or tensor.dtype == torch.bool:
        raise InputTypeError(
            f"{name} must be whole numbers", expected="an integer dtype", got=tensor.dtype, hint=f"{name}.long()"
        )
    if name != "lengths" and tensor.dim() == 0:
        raise InputError(
            f"{name} needs a time axis",
            expected="[*batch, time]",
            got="a single number",
            hint="one document number per position",
        )
    return tensor


def _readable(tensor: Tensor) -> bool:
    """Whether values can be looked at without a wait for the GPU or a break in a compiled graph."""
    return tensor.device.type == "cpu" and not isinstance(tensor, FakeTensor) and not torch.compiler.is_compiling()


def _shape(tensor: Tensor | None) -> str:
    return f"<{' x '.join(map(str, tensor.shape)) if tensor is not None else ''}>"
