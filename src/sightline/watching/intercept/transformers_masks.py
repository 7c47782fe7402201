"""transformers' masks without the table: its mask functions read as Sightline's masks.

transformers makes a mask by calling a function `(b, h, i, j) -> bool` on all queries x keys. Here the function is taken
apart instead: causal, window, chunks, packed sequences and padding become rules; a function that is not known is called
tile by tile.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from sightline.masks import Band, Mask, documents, padding
from sightline.masks.functions import ModMask


@dataclass
class Span:
    """Which queries and keys a mask is for: their positions in the sequence."""

    batch: int
    queries: int
    keys: int
    first_query: int
    first_key: int
    device: torch.device

    @property
    def shift(self) -> int:
        """How far the queries stand from where alignment at the end would put them."""
        return self.first_query - self.first_key - (self.keys - self.queries)


def read_span(arguments: dict[str, Any]) -> Span:
    """The span out of the arguments of a mask function (of transformers 5; `cache_position` was there before)."""
    where = arguments.get("cache_position")
    device = torch.device(arguments.get("device") or "cpu")
    if where is not None:
        return Span(
            int(arguments["batch_size"]),
            len(where),
            int(arguments["kv_length"]),
            int(where[0]),
            int(arguments.get("kv_offset", 0)),
            where.device,
        )
    return Span(
        int(arguments["batch_size"]),
        int(arguments["q_length"]),
        int(arguments["kv_length"]),
        int(arguments.get("q_offset", 0)),
        int(arguments.get("kv_offset", 0)),
        device,
    )


def read_used(function: Callable, attention_mask: Tensor | None, span: Span) -> tuple[Mask | None, Span]:
    """The mask, for the keys that some query may see: a static cache is longer than what it holds."""
    rule = translate(function, span)
    if span.shift < 0 and _is_causal(rule, span.shift):
        span = replace(span, keys=span.keys + span.shift)
    return read_mask(function, attention_mask, span), span


def _is_causal(rule: Mask | None, right: int) -> bool:
    return rule is not None and any(part.band is not None and part.band.right == right for part in rule.conjuncts())


def read_mask(function: Callable, attention_mask: Tensor | None, span: Span) -> Mask | None:
    """The mask of a mask function and of a padding mask `[batch, positions]`; None if nothing is hidden."""
    rule = translate(function, span)
    if attention_mask is None:
        return rule
    real = positions(attention_mask.to(torch.bool), span.first_key, span.keys, False)
    if bool(real.all()):
        return rule
    marks = padding(real)
    return marks if rule is None else rule & marks


def translate(function: Callable, span: Span) -> Mask | None:
    """A mask function of transformers as a rule; None if it hides nothing."""
    kind = f"{getattr(function, '__module__', '')}.{getattr(function, '__qualname__', '')}"
    where, _, name = kind.rpartition("masking_utils.")
    if not where.startswith("transformers"):
        return _unknown(function, span)
    held = _closure(function)
    try:
        match name:
            case "causal_mask_function":
                return Band(None, span.shift)
            case "bidirectional_mask_function":
                return None
            case "and_masks.<locals>.and_mask":
                return _and([translate(part, span) for part in held["mask_functions"]])
            case "or_masks.<locals>.or_mask":
                return _or([translate(part, span) for part in held["mask_functions"]])
            case "sliding_window_overlay.<locals>.inner_mask":
                return Band(int(held["sliding_window"]) - 1 - span.shift, None)
            case "sliding_window_bidirectional_overlay.<locals>.inner_mask":
                size = int(held["sliding_window"])
                return Band(size - span.shift, size + span.shift)
            case "chunked_overlay.<locals>.inner_mask":
                return _chunks(int(held["chunk_size"]), held["left_padding"], span)
            case "packed_sequence_mask_function.<locals>.inner_mask":
                return _same(held["packed_sequence_mask"], span)
            case "blockwise_overlay.<locals>.inner_mask":
                ids = held["block_sequence_ids"]
                # A token in no block is a block of its own, of a number that no block has.
                own = -2 - torch.arange(ids.shape[-1], device=ids.device).expand_as(ids)
                return _same(torch.where(ids >= 0, ids, own), span)
            case "padding_mask_function.<locals>.inner_mask":
                return padding(positions(held["padding_mask"].bool(), span.first_key, span.keys, False))
    except (KeyError, TypeError, AttributeError):
        pass  # another version holds other things: the function itself still tells
    return _unknown(function, span)


def positions(values: Tensor, first: int, count: int, fill: Any) -> Tensor:
    """`count` positions from `first` of `[batch, positions]`; those beyond the end are filled."""
    part = values[:, first : first + count]
    missing = count - part.shape[-1]
    return torch.nn.functional.pad(part, (0, missing), value=fill) if missing else part


def _and(masks: list[Mask | None]) -> Mask | None:
    some = [mask for mask in masks if mask is not None]
    if not some:
        return None
    result = some[0]
    for mask in some[1:]:
        result = result & mask
    return result


def _or(masks: list[Mask | None]) -> Mask | None:
    if any(mask is None for mask in masks) or not masks:
        return None
    result = masks[0]
    for mask in masks[1:]:
        result = result | mask  # type: ignore[operator]
    return result


def _same(ids: Tensor, span: Span) -> Mask:
    """Query and key have the same number, by position."""
    ids = ids.long()
    keys = positions(ids, span.first_key, span.keys, -1)
    if span.shift == 0 and span.queries <= span.keys:
        return documents(keys)
    return documents(positions(ids, span.first_query, span.queries, -2), keys)


def _chunks(size: int, left: Tensor, span: Span) -> Mask:
    count = max(span.first_query + span.queries, span.first_key + span.keys)
    place = torch.arange(count, device=left.device)[None] - left.long()[:, None]
    return _same(torch.div(place, size, rounding_mode="floor"), span)


def _closure(function: Any) -> dict[str, Any]:
    cells = getattr(function, "__closure__", None) or ()
    return dict(zip(function.__code__.co_freevars, (cell.cell_contents for cell in cells)))


def _unknown(function: Callable, span: Span) -> Mask:
    def shifted(b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
        found = function(b, h, i + span.first_query, j + span.first_key)
        return torch.as_tensor(found, device=i.device)

    return ModMask(shifted, span.batch, 1, None, getattr(function, "__name__", "function"), span.device)


class LazyMask(Tensor):
    """Stands for a mask of [batch, 1, queries, keys] that nobody has written out.

    Attention that knows it takes its rule, which is for the keys of `span`: those that are in use. Any other operation
    on it makes the table, once, and works on that.
    """

    mask: Mask | None
    span: Span
    _make: Callable[[], Tensor]
    _made: Tensor | None

    @staticmethod
    def of(rule: Mask | None, span: Span, keys: int, make: Callable[[], Tensor], dtype: torch.dtype) -> LazyMask:
        mask = LazyMask._make_wrapper_subclass(
            LazyMask, (span.batch, 1, span.queries, keys), dtype=dtype, device=span.device
        )
        mask.mask, mask.span, mask._make, mask._made = rule, span, make, None
        return mask

    def written(self) -> Tensor:
        """The table."""
        if self._made is None:
            self._made = self._make()
        return self._made

    __torch_function__ = torch._C._disabled_torch_function_impl  # type: ignore[assignment]

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, func: Any, types: Any, args: tuple = (), kwargs: dict | None = None
    ) -> Any:
        def plain(x: Any) -> Any:
            return x.written() if isinstance(x, LazyMask) else x

        from torch.utils._pytree import tree_map

        return func(*tree_map(plain, args), **tree_map(plain, kwargs or {}))

    def __repr__(self, **_: Any) -> str:  # type: ignore[override]
        return f"LazyMask({self.mask}, {tuple(self.shape)})"
