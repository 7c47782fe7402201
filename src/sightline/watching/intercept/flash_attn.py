"""The functions of the flash-attn package, by their documented signatures; `[batch, time, heads, dim]`, end-aligned.

They were tried with a stand-in that computes what is documented: the package itself needs a GPU.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from sightline.masks import padding
from sightline.watching.intercept import active
from sightline.watching.intercept.torch_calls import look, position
from sightline.watching.intercept.varlen import PAGED, band, named, packed

if TYPE_CHECKING:
    from sightline.watching.intercept.function_mode import Audience

SLOPES = "given slopes for a bias by distance"
TURNED = "its queries are turned inside of its function"
LENGTHS = "given several queries for texts of different lengths in a cache"
_REST = "dropout_p softmax_scale causal window_size softcap alibi_slopes deterministic return_attn_probs"
_PACKED = "cu_seqlens_q cu_seqlens_k max_seqlen_q max_seqlen_k"
SIGNATURES = {
    "flash_attn_func": f"q k v {_REST}",
    "flash_attn_qkvpacked_func": f"qkv {_REST}",
    "flash_attn_kvpacked_func": f"q kv {_REST}",
    "flash_attn_varlen_func": f"q k v {_PACKED} {_REST} block_table",
    "flash_attn_varlen_qkvpacked_func": f"qkv cu_seqlens max_seqlen {_REST}",
    "flash_attn_varlen_kvpacked_func": f"q kv {_PACKED} {_REST}",
    "flash_attn_with_kvcache": (
        "q k_cache v_cache k v rotary_cos rotary_sin cache_seqlens cache_batch_idx cache_leftpad block_table "
        "softmax_scale causal window_size softcap rotary_interleaved alibi_slopes num_splits return_softmax_lse"
    ),
}


def flash(func: Any, args: tuple, kwargs: dict, who: Audience) -> Any:
    """Any of them but that with a cache."""
    given = named(SIGNATURES[func.__name__], args, kwargs)
    if "qkv" in given:
        q, k, _ = given["qkv"].unbind(-3)
    else:
        q, k = given["q"], given["k"] if "k" in given else given["kv"].unbind(-3)[0]
    ends = given.get("cu_seqlens", given.get("cu_seqlens_q"))
    keys = k.shape[0] if ends is not None else k.shape[1]
    rule = band(given.get("causal", False), given.get("window_size"))
    queries = q.shape[0] if ends is not None else q.shape[1]
    first = position(who, queries, keys, rule is not None and rule.follows_order, None)
    if not who.wanting:
        who.note(first, keys)
    with active.quiet():
        out = func(*args, **kwargs)
    if not who.wanting:
        return out
    if given.get("alibi_slopes") is not None:
        who.miss(SLOPES, first, keys)
    elif given.get("block_table") is not None:
        who.miss(PAGED, first, keys)
    elif ends is not None:
        packed(who, q, k, rule, ends, given.get("cu_seqlens_k", ends), given.get("softmax_scale"), softcap=_cap(given))
    else:
        q, k = (x.detach().transpose(1, 2) for x in (q, k))
        who.record(look(q, k, k, rule, None, given.get("softmax_scale"), first, softcap=_cap(given)))
    return out


def with_cache(func: Any, args: tuple, kwargs: dict, who: Audience) -> Any:
    """flash_attn_with_kvcache: it writes new keys into the cache, which holds them all afterwards."""
    given = named(SIGNATURES["flash_attn_with_kvcache"], args, kwargs)
    q, cache, new, held = given["q"], given["k_cache"], given.get("k"), given.get("cache_seqlens")
    more = 0 if new is None else new.shape[1]
    before = held.clone() if isinstance(held, Tensor) else held  # the function may count on
    with active.quiet():
        out = func(*args, **kwargs)
        lengths = cache.shape[1] if before is None else before + more
        keys = int(lengths.max()) if isinstance(lengths, Tensor) else int(lengths)
    batch, queries = q.shape[:2]
    uneven = isinstance(lengths, Tensor) and bool((lengths != keys).any())
    first = position(who, queries, keys, True, keys - queries)
    rule = band(given.get("causal", False), given.get("window_size"))
    why = None
    if given.get("alibi_slopes") is not None:
        why = SLOPES
    elif given.get("rotary_cos") is not None:
        why = TURNED
    elif given.get("block_table") is not None or given.get("cache_leftpad") is not None:
        why = PAGED
    elif uneven and (queries > 1 or given.get("window_size", (-1, -1)) != (-1, -1)):
        why = LENGTHS
    if not who.wanting:
        who.note(first, keys)
    elif why is not None:
        who.miss(why, first, keys)
    else:
        with active.quiet(), torch.no_grad():
            index = given.get("cache_batch_idx")
            k = cache[:batch] if index is None else cache[index.long()]
            q, k = q.detach().transpose(1, 2), k[:, :keys].detach().transpose(1, 2)
            if uneven:
                rule = padding(lengths.to(q.device).expand(batch))
        who.record(look(q, k, k, rule, None, given.get("softmax_scale"), first, softcap=_cap(given)))
    return out


def _cap(given: dict[str, Any]) -> float | None:
    return given.get("softcap") or None
