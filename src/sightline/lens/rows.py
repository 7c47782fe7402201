"""The output and the one number per row that every weight needs, from the fastest kernel that gives both.

For softmax the number is the log-sum-exp of the keys (natural logarithm), and torch's fused kernels know it: on the CPU
the flash kernel, on CUDA cuDNN's, flash or the memory-efficient one, through their aten operators. What they cannot
express comes from the streaming backend. For the other normalisers the number is how many keys a row may see.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from sightline.backends import flex, sdpa, streaming
from sightline.backends.api import run as run_backend
from sightline.backends.choose import done
from sightline.backends.tiles import row_numbers
from sightline.lens.levels import without_sink

if TYPE_CHECKING:
    from jaxtyping import Float

    from sightline.backends.call import Call


def output_and_rows(call: Call, backend: str) -> tuple[Tensor, Float[Tensor, "*batch heads queries"]]:
    """What `sl.attention` gives, and the row numbers; the numbers carry no gradient."""

    def run(choice: str) -> tuple[Tensor, Tensor]:
        both = None
        if call.normalizer.is_softmax and not call.dropout and choice in _WITH_LSE:
            both = _WITH_LSE[choice](call)
        if both is None:
            return run_backend(call, choice), rows_only(call)
        return both[0], keys_alone(call, both[1].detach())

    return done(call, backend, run)


@torch.no_grad()
def keys_alone(call: Call, lse: Tensor) -> Float[Tensor, "*batch heads queries"]:
    """The lse of the keys, from one that holds the sink too."""
    if call.sinks is None or not call.normalizer.is_softmax:
        return lse
    found = without_sink(call.sinks, lse)
    # Where the sink has nearly everything, nothing of the keys is left in the sum.
    lost = (found < lse - 8) & (lse > -torch.inf)
    return rows_only(call) if bool(lost.any()) else found


_WITH_LSE = {"sdpa": sdpa.run_with_lse, "flex": flex.run_with_lse, "streaming": streaming.run_with_rows}


@torch.no_grad()
def rows_only(call: Call, backend: str = "auto") -> Float[Tensor, "*batch heads queries"]:
    """The row numbers without an output; of softmax those of the keys, without the sink."""
    s = call.sizes
    if not call.normalizer.is_softmax:
        return row_numbers(call).expand(*s.batch, s.heads, s.queries)
    # The keys stand in for the values: the kernels give the lse only beside an output.
    bias = call.bias.detach() if isinstance(call.bias, Tensor) else call.bias
    call = call.replace(v=call.k, sizes=s._replace(value_dim=s.dim), bias=bias, sinks=None, dropout=0.0)
    both = done(call, backend, lambda choice: _WITH_LSE[choice](call) if choice in _WITH_LSE else None)
    return (streaming.run_with_rows(call) if both is None else both)[1]
