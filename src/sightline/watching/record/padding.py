"""Which queries of a call are padding, by what its mask and bias hide: a mean over queries leaves them out."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from sightline.watching.record.shares import real_keys

if TYPE_CHECKING:
    from jaxtyping import Bool, Float

    from sightline.backends.call import Call

# A number so far below 0 hides: models have -1e4, -1e9 or the least one there is.
HIDDEN = 5e3


@torch.no_grad()
def keys_that_are_real(call: Call) -> Bool[Tensor, "batch keys"] | None:
    """Those that not every query has hidden from it, by a rule, in a table or by a number; None: all."""
    found = real_keys(call.mask, call.sizes.keys, call.device)
    tables = [rule for rule in ([] if call.mask is None else call.mask.conjuncts()) if rule.is_table]
    seen = [rule.to_dense(call.sizes.queries, call.sizes.keys, call.device) for rule in tables]
    if isinstance(call.bias, Tensor) and call.bias.dim() > 1:
        seen.append(call.bias > -HIDDEN)
    for table in seen:
        while table.dim() < 4:
            table = table[None]
        row = table.expand(*table.shape[:-1], call.sizes.keys).any(-2).any(1)
        found = row if found is None else found & row
    return found


def at_queries(marks: Bool[Tensor, "batch keys"], call: Call, offset: int) -> Bool[Tensor, "batch queries"]:
    """The same of the queries of self-attention, the first of which stands at the key `offset`."""
    s = call.sizes
    at = (torch.arange(s.queries, device=marks.device) + offset).clamp(0, s.keys - 1)
    return marks[:, at].expand(s.batch[0], -1)


def asks(call: Call, row: Float[Tensor, "batch heads queries"]) -> Bool[Tensor, "batch queries"] | None:
    """Which queries see a key, where a rule that is not of keys alone may hide all of them; None: all may."""
    if not call.normalizer.is_softmax or call.mask is None:
        return None
    plain = all(
        rule.is_positional or rule.is_table or rule.key_row(call.sizes.keys, call.device) is not None
        for rule in call.mask.conjuncts()
    )
    return None if plain else (row > -torch.inf).any(1)
