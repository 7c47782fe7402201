"""Distributed tensors in a call of attention: a sequence that torch's context parallel has divided, or heads.

Of a sequence on several ranks, every rank that watches gathers the queries and keys of all, puts them in their order,
and has the account of the whole. Of heads on several ranks each has its own.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from sightline.watching.intercept import active

if TYPE_CHECKING:
    from sightline.watching.intercept.function_mode import Audience

OTHERWISE = "given tensors that are distributed in another way than by sequence or by heads"
MORE = "its sequence lies on several ranks: with a mask of its own, edits or influence there is no account"
ORDER = "its sequence lies on several ranks, in an order that is not known"
_CONTEXT_PARALLEL = "torch.distributed.tensor.experimental._context_parallel._attention"


def is_distributed(x: Any) -> bool:
    """Whether a tensor lies on several devices."""
    return type(x) is not Tensor and isinstance(x, Tensor) and hasattr(x, "device_mesh")


def whole(who: Audience, given: dict[str, Any]) -> tuple[Tensor, Tensor] | str:
    """q and k as they would be in one process, if every rank asks; or why they are not to be had."""
    q, k, v = (given[name] for name in ("query", "key", "value"))
    if not all(map(is_distributed, (q, k, v))) or q.dim() != 4:
        return OTHERWISE
    kinds = {tuple(map(str, x.placements)) for x in (q, k, v)}
    if len(kinds) != 1 or any(x.device_mesh != q.device_mesh for x in (k, v)) or len(q.placements) != 1:
        return OTHERWISE
    placement = q.placements[0]
    if given.get("attn_mask") is not None or who.editing or who.influence:
        return MORE
    if placement.is_shard(1) or placement.is_replicate():
        return q.to_local().detach(), k.to_local().detach()
    if not placement.is_shard(2):
        return OTHERWISE
    balanced = _is_balanced(bool(given.get("is_causal", False)))
    if balanced is None:
        return ORDER
    with active.quiet(), torch.no_grad():
        full = [x.detach().full_tensor() for x in (q, k)]
        if balanced and (full[0].shape[2] % (2 * q.device_mesh.size()) or full[0].shape != full[1].shape):
            return ORDER
        if balanced:
            full = [_in_order(x, q.device_mesh.size()) for x in full]
    return full[0], full[1]


def _is_balanced(causal: bool) -> bool | None:
    """Whether each rank has a chunk from the front and one from the end; None if nobody says."""
    torch_s: Any = sys.modules.get(_CONTEXT_PARALLEL)
    balanced = getattr(getattr(torch_s, "_cp_options", None), "enable_load_balance", None)
    if not isinstance(balanced, bool):
        return None
    patched = getattr(getattr(torch_s, "_dispatch_mode", None), "name", None) == "MONKEY_PATCH"
    # Its context manager says what it did; beside that, only a causal ring has to know.
    return balanced if patched or causal or not balanced else None


def _in_order(x: Tensor, ranks: int) -> Tensor:
    """The whole of what the ranks have one after another, each the chunk of its number and the one as far from the end.

    >>> _in_order(torch.tensor([0, 3, 1, 2]).view(1, 1, 4, 1), 2).flatten()
    tensor([0, 1, 2, 3])
    """
    chunks = x.chunk(2 * ranks, 2)
    return torch.cat([*chunks[0::2], *reversed(chunks[1::2])], 2)
