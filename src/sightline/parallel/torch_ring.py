"""Torch's own ring, where it can express a call: softmax, no mask or a causal one, parts of one length.

It is not part of torch's public interface: where it is missing or has another form, nothing is lost but its kernels'
overlap with the transfers. It joins in float32, so other precisions go by our own; and so does all on a GPU, whose
flash kernel knows no float32.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from torch import Tensor

    from sightline.backends.call import Call
    from sightline.parallel.places import Whole
    from sightline.parallel.ranks import Ranks


def run(call: Call, ranks: Ranks, whole: Whole, balance: str) -> tuple[Tensor, Tensor]:
    """The output of the local queries and their lse, of a call that torch's ring `expresses`."""
    found = _templated()
    assert found is not None
    ring, options = found
    s, causal = call.sizes, whole.mask is not None
    q, k, v = (t.reshape(-1, *t.shape[-3:]).contiguous() for t in (call.q, call.k, call.v))
    operator = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
    try:
        with _balanced(options, balance == "head-tail"):
            out, lse, *_ = ring(ranks.group, 2, operator, q, k, v, is_causal=causal, scale=call.scale)
    except RuntimeError as error:
        raise ranks.lost("torch's ring of keys and values", None, error) from error
    return out.reshape(call.q.shape), lse.reshape(*s.batch, s.heads, s.queries).to(call.compute_dtype)


def expresses(call: Call, ranks: Ranks, whole: Whole, balance: str, backend: str) -> bool:
    """Whether torch's ring is there and means the same by such a call. All ranks must come to the same answer."""
    s, mask = call.sizes, whole.mask
    band = None if mask is None else mask.band
    causal = band is not None and (band.left, band.right) == (None, 0) and whole.queries == whole.keys
    equal = s.queries == s.keys and s.queries * ranks.size == whole.queries == whole.keys and s.queries > 0
    return (
        ranks.size > 1
        and backend == "auto"
        and call.is_plain
        and call.bias is None
        and not call.dropout
        and call.q.dtype == torch.float32
        and call.device.type == "cpu"
        and s.heads == s.kv_heads > 0
        and s.dim == s.value_dim > 0
        and all(s.batch)
        and equal
        and (causal if balance == "head-tail" else mask is None or causal)
        and (balance != "head-tail" or s.queries % 2 == 0)
        and _templated() is not None
    )


def _templated() -> tuple[Any, Any] | None:
    """Torch's function and its options, if it is there in the form that is known."""
    try:
        from torch.distributed.tensor.experimental._context_parallel import _attention
    except ImportError:
        return None
    ring, options = getattr(_attention, "_templated_ring_attention", None), getattr(_attention, "_cp_options", None)
    if ring is None or not hasattr(options, "enable_load_balance"):
        return None
    names = list(inspect.signature(ring).parameters)
    return (ring, options) if names[:7] == ["group", "seq_dim", "op", "query", "key", "value", "is_causal"] else None


@contextmanager
def _balanced(options: Any, balanced: bool) -> Iterator[None]:
    before = options.enable_load_balance
    options.enable_load_balance = balanced
    try:
        yield
    finally:
        options.enable_load_balance = before
