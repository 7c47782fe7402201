"""Masks and biases taken along: to another device, to some of the heads, into a file."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from sightline.errors import InputError
from sightline.masks import Band, Dense, Documents, Mask, Padding, Prefix, dense, documents, padding
from sightline.masks.base import And, Not, Or
from sightline.positions import Alibi
from sightline.watch.mods import ModBias, ModMask, Stacked

if TYPE_CHECKING:
    from sightline.attention.call import BiasLike, Call

# A mask or bias that is a function is written out for a file up to this many cells: 64 MB of booleans.
_WRITTEN = 1 << 26


def mask_to(mask: Mask | None, device: torch.device | str) -> Mask | None:
    """The same mask with its tensors on another device."""
    if mask is None or isinstance(mask, Band | Prefix):
        return mask
    if isinstance(mask, Padding):
        source = mask.lengths if mask.real is None else mask.real
        assert source is not None
        return padding(_away(source, device))
    if isinstance(mask, Documents):
        ids, key_ids = mask.ids, mask.key_ids
        return documents(_away(ids, device), None if key_ids is None else _away(key_ids, device))
    if isinstance(mask, Dense):
        return dense(_away(mask.table, device))
    if isinstance(mask, And | Or):
        left, right = mask_to(mask.left, device), mask_to(mask.right, device)
        assert left is not None
        assert right is not None
        return left & right if isinstance(mask, And) else left | right
    if isinstance(mask, Not):
        inner = mask_to(mask.mask, device)
        assert inner is not None
        return ~inner
    if isinstance(mask, Stacked):
        return Stacked([(mask_to(m, device), q, first, end) for m, q, first, end in mask.parts])
    return mask


def _away(tensor: Tensor, device: torch.device | str) -> Tensor:
    # A copy in any case: the model may write into its own tensor later.
    return tensor.detach().to(device, copy=True)


def mask_heads(mask: Mask | None, heads: Sequence[int]) -> Mask | None:
    """The same mask for some of the heads."""
    if isinstance(mask, Dense) and mask.table.dim() > 2 and mask.table.shape[-3] > 1:
        return dense(mask.table[..., list(heads), :, :])
    if isinstance(mask, ModMask) and mask.heads > 1:
        function, numbers = mask.function, torch.tensor(list(heads), device=mask.device)
        return ModMask(
            lambda b, h, i, j: function(b, numbers[h], i, j), mask.batch, len(heads), None, mask.name, mask.device
        )
    if isinstance(mask, And | Or):
        left, right = mask_heads(mask.left, heads), mask_heads(mask.right, heads)
        assert left is not None
        assert right is not None
        return left & right if isinstance(mask, And) else left | right
    if isinstance(mask, Not):
        inner = mask_heads(mask.mask, heads)
        assert inner is not None
        return ~inner
    return mask


def bias_heads(bias: BiasLike, heads: Sequence[int]) -> BiasLike:
    """The same bias for some of the heads."""
    if isinstance(bias, Tensor):
        return bias[..., list(heads), :, :] if bias.dim() > 2 and bias.shape[-3] > 1 else bias
    if isinstance(bias, Alibi):
        part = Alibi(len(heads))
        object.__setattr__(part, "slopes", bias.slopes[list(heads)])
        return part
    if isinstance(bias, ModBias):
        function, numbers = bias.function, torch.tensor(list(heads), device=bias.device)
        return ModBias(lambda b, h, i, j: function(b, numbers[h], i, j), bias.batch, len(heads), bias.device)
    return bias


def some_heads(call: Call, row: Tensor, heads: list[int]) -> tuple[Call, Tensor]:
    """Some of the heads of a call, each with a key head of its own, and the numbers of their rows."""
    groups = call.sizes.groups
    index = torch.tensor(heads, device=call.device)
    sinks = call.sinks
    if sinks is not None:
        sinks = sinks.expand(*sinks.shape[:-1], call.sizes.heads).index_select(-1, index)
    k = call.k.index_select(-3, index // groups)
    part = call.replace(
        q=call.q.index_select(-3, index),
        k=k,
        v=k,
        sizes=call.sizes._replace(heads=len(heads), kv_heads=len(heads)),
        mask=mask_heads(call.mask, heads),
        bias=bias_heads(call.bias, heads),
        sinks=sinks,
    )
    return part, row.index_select(-2, index)


def has_table(mask: Mask | None) -> bool:
    """Whether a mask is, or holds, a table or a function of all queries x keys."""
    if isinstance(mask, And | Or):
        return has_table(mask.left) or has_table(mask.right)
    return has_table(mask.mask) if isinstance(mask, Not) else isinstance(mask, Dense | ModMask | Stacked)


def writable_mask(mask: Mask | None, queries: int, keys: int) -> Mask | None:
    """A mask that a file can hold: a function is written out if it is small, and is refused if not."""
    if isinstance(mask, And | Or):
        left, right = writable_mask(mask.left, queries, keys), writable_mask(mask.right, queries, keys)
        assert left is not None
        assert right is not None
        return left & right if isinstance(mask, And) else left | right
    if isinstance(mask, Not):
        inner = writable_mask(mask.mask, queries, keys)
        assert inner is not None
        return ~inner
    if mask is None or not isinstance(mask, ModMask | Stacked):
        return mask
    cells = queries * keys * (mask.batch * mask.heads if isinstance(mask, ModMask) else 1)
    _refuse_large("mask", cells, queries, keys)
    return dense(mask.to_dense(queries, keys).contiguous())


def writable_bias(bias: BiasLike, queries: int, keys: int) -> BiasLike:
    """A bias that a file can hold."""
    if isinstance(bias, Alibi) and not torch.equal(bias.slopes, Alibi(bias.heads).slopes):
        return bias.to_dense(queries, keys)  # of some of the heads
    if not isinstance(bias, ModBias):
        return bias
    _refuse_large("bias", bias.batch * bias.heads * queries * keys, queries, keys)
    return bias.to_dense(queries, keys).cpu()


def _refuse_large(what: str, cells: int, queries: int, keys: int) -> None:
    if cells > _WRITTEN:
        raise InputError(
            f"this {what} is a function, and too large to be written out for a file",
            expected=f"at most {_WRITTEN:,} cells",
            got=f"{cells:,} for {queries:,} queries and {keys:,} keys",
            hint="save(folder, keep_qk=False), which needs no mask",
        )


def mask_to_four(mask: Mask | None, batch: tuple[int, ...]) -> Mask | None:
    """A mask for one batch axis instead of none or several."""
    if len(batch) == 1 or mask is None or isinstance(mask, Band | Prefix | ModMask):
        return mask
    if isinstance(mask, Padding):
        source = mask.lengths if mask.real is None else mask.real
        assert source is not None
        rest = source.shape[len(source.shape) - (mask.real is not None) :]
        return padding(source.expand(*batch, *rest).reshape(-1, *rest))
    if isinstance(mask, Documents):
        both = [
            None if t is None else t.expand(*batch, t.shape[-1]).reshape(-1, t.shape[-1])
            for t in (mask.ids, mask.key_ids)
        ]
        assert both[0] is not None
        return documents(both[0], both[1])
    if isinstance(mask, Dense):
        return dense(_flat(mask.table, batch))
    if isinstance(mask, And | Or):
        left, right = mask_to_four(mask.left, batch), mask_to_four(mask.right, batch)
        assert left is not None
        assert right is not None
        return left & right if isinstance(mask, And) else left | right
    if isinstance(mask, Not):
        inner = mask_to_four(mask.mask, batch)
        assert inner is not None
        return ~inner
    return mask


def bias_to_four(bias: BiasLike, batch: tuple[int, ...]) -> BiasLike:
    """A bias for one batch axis instead of none or several; without a gradient."""
    if not isinstance(bias, Tensor):
        return bias
    return bias.detach() if len(batch) == 1 else _flat(bias.detach(), batch)


def _flat(table: Tensor, batch: tuple[int, ...]) -> Tensor:
    """[*batch, heads, queries, keys] with one batch axis."""
    if table.dim() <= 3:
        return table
    if all(size == 1 for size in table.shape[:-3]):
        return table.reshape(1, *table.shape[-3:])
    return table.expand(*batch, *table.shape[-3:]).reshape(-1, *table.shape[-3:])
