"""What each attention function means, in Sightline's words: one handler for each.

A handler runs the call as the model would have it, takes the log-sum-exp beside the output, and tells the watches.
The output is that of torch's own kernel, to the bit.
"""

from __future__ import annotations

import inspect
import math
import re
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from sightline.backends.call import make_call
from sightline.lens.rows import output_and_rows, rows_only
from sightline.masks import Mask, as_mask, causal
from sightline.portable import one_batch_axis
from sightline.watching.intercept import active
from sightline.watching.intercept.changed import change, tell
from sightline.watching.intercept.distributed import is_distributed, whole
from sightline.watching.intercept.edited_heads import edited_heads
from sightline.watching.intercept.heads import Heads, before_projection, check, heads_first
from sightline.watching.intercept.looked import Looked
from sightline.watching.intercept.lse_capture import Catch
from sightline.watching.intercept.transformers_masks import LazyMask

if TYPE_CHECKING:
    from torch import nn

    from sightline.backends.call import BiasLike, Call
    from sightline.watching.intercept.function_mode import Audience
    from sightline.watching.intercept.looked import Looked

# In names of modules that attend to another sequence than their own.
_CROSS = re.compile("cross|encdec|encoder_attn|encoder_attention|src_attn|attn2")


def sdpa(func: Any, args: tuple, kwargs: dict, who: Audience) -> Any:
    """F.scaled_dot_product_attention."""
    given = dict(zip(("query", "key", "value", "attn_mask", "dropout_p", "is_causal", "scale", "enable_gqa"), args))
    given |= kwargs
    q, k, v, table = given["query"], given["key"], given["value"], given.get("attn_mask")
    if q.is_nested or k.is_nested:
        who.miss("given nested tensors", -1, 0)
        with active.quiet():
            return func(**given)
    if is_distributed(q) or is_distributed(k):
        return _distributed(func, given, who)
    queries, keys = q.shape[-2], k.shape[-2]
    flag = bool(given.get("is_causal", False))
    if isinstance(table, LazyMask):
        if who.compact:
            return compact(who, q, k, v, table, given.get("scale"), given.get("dropout_p", 0.0))
        given["attn_mask"] = table = table.written()
    rule = who.tables.rule(table, q, k)
    span = active.known_span() if rule is None else rule.span
    if span is not None and (span.queries, table is None) != (queries, False):
        span = None
    first, first_key = (None, 0) if span is None else (span.first_query, span.first_key)
    if not who.wanting:
        end = keys if span is None else span.first_key + span.keys
        who.note(position(who, queries, keys, flag if table is None else None, first), end)
        with active.quiet():
            return func(**given)
    check(who, given.get("dropout_p", 0.0))
    run, out, lse = partial(func, **given), None, None
    if table is not None or span is not None or not _may_wait(who, q, k, v, given.get("dropout_p", 0.0)):
        with active.quiet(), Catch() as caught:
            out = run()
        lse = caught.lse
    k, repeated = active.one_for_all_groups(k), k
    if k is not repeated:
        v = v[:, :: repeated.shape[1] // k.shape[1]]
    plain = table is None and span is None and not flag and queries == 1
    if plain and who.goes_on(q, k, v, lse, given.get("scale")):
        return out
    if span is not None and span.keys < keys:
        # A static cache is longer than what it holds.
        k, v, keys = k[..., : span.keys, :], v[..., : span.keys, :], span.keys
        table = table[..., :keys] if table is not None and table.shape[-1] > 1 else table
    q, k, v, table, lse = one_head(q, k, v, table, lse, bool(given.get("enable_gqa", False)))
    if rule is not None and table is not None and table.dtype == torch.bool:
        mask, bias, sees, said = rule.mask, None, rule.sees, None
    else:
        mask, bias, sees = _read(who, table, q, k)
        # A table may be causal, and say nothing of it; padding alone is not.
        is_dense = mask is not None and mask.is_large
        said = flag if table is None else None if is_dense or bias is not None else mask == causal()
    if flag:
        mask = causal("end" if queries == keys else "start")
    first = position(who, queries, keys, said, first)
    edited, meant = None, (mask, bias, given.get("scale"), first, first_key)
    if who.editing:
        more = {"row": lse, "sees": sees, "dropout": given.get("dropout_p", 0.0), "run": run}
        edited = change(who, q, k, v, out, *meant, fresh=True, **more)
        out = edited.out
    heads = Heads(out, v, heads_first) if who.deep and out is not None else None
    if not tell(who, edited, first, first_key, heads):
        who.record(look(q, k, k, *meant, lse, sees, heads))
    return out


def _may_wait(who: Audience, q: Tensor, k: Tensor, v: Tensor, dropout: float) -> bool:
    """Whether the model's kernel may wait until edits have said what they leave of it."""
    learns = torch.is_grad_enabled() and any(x.requires_grad for x in (q, k, v))
    plain = q.dim() == 4 and not dropout and not torch.is_autocast_enabled(q.device.type)
    return bool(who.editing) and not who.watching and plain and not learns


def _distributed(func: Any, given: dict[str, Any], who: Audience) -> Any:
    """The same of tensors that lie on several ranks."""
    check(who, given.get("dropout_p", 0.0))
    with active.quiet():
        out = func(**given)
    if not who.wanting:
        return out
    found = whole(who, given)
    if isinstance(found, str):
        who.miss(found, -1, 0)
        return out
    q, k = found
    flag = bool(given.get("is_causal", False))
    mask = causal("end" if q.shape[-2] == k.shape[-2] else "start") if flag else None
    first = position(who, q.shape[-2], k.shape[-2], flag, None)
    who.record(look(q, k, k, mask, None, given.get("scale"), first))
    return out


def one_head(
    q: Tensor, k: Tensor, v: Tensor, table: Tensor | None, lse: Tensor | None, grouped: bool
) -> tuple[Tensor, Tensor, Tensor, Tensor | None, Tensor | None]:
    """Torch's attention over [batch, time, dim] or [time, dim] has one head: all of it in four axes."""
    if max(q.dim(), k.dim(), v.dim()) > 3 or (grouped and q.dim() == 3 and q.shape[0] != k.shape[0]):
        return q, k, v, table, lse  # the axis before time is of heads
    four = [t[:, None] if t.dim() == 3 else t[None, None] for t in (q, k, v)]
    if table is not None and table.dim() == 3:
        table = table[:, None]
    if lse is not None and lse.dim() < 3:
        lse = lse[:, None] if lse.dim() == 2 else lse[None, None]
    return four[0], four[1], four[2], table, lse


def compact(
    who: Audience | None,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: LazyMask | None,
    scale: float | None,
    dropout: float,
    **more: Any,
) -> Tensor:
    """Attention with a mask that stays a rule: output, and account if it is for anyone, by Sightline's functions."""
    rule, first, first_key = None, None, 0
    if mask is not None:
        span, rule = mask.span, mask.mask
        first, first_key = span.first_query, span.first_key
        k, v = k[..., : span.keys, :], v[..., : span.keys, :]
        if "bias" in more:
            more["bias"] = more["bias"][..., : span.keys]
    if who is not None:
        check(who, dropout)
    with active.quiet(compiled=q.is_cuda):
        call = make_call(q, k, v, mask=rule, scale=scale, dropout=dropout, **more)
        out, row = output_and_rows(call, "auto")
    if who is None:
        return out
    first_query = position(who, q.shape[-2], k.shape[-2], None if mask is not None else False, first)
    return _told(who, call, out, row, first_query, first_key)


def _told(who: Audience, call: Call, out: Tensor, row: Tensor, first_query: int, first_key: int = 0) -> Tensor:
    """The output of a call of Sightline's own functions, as edits have it, of which the watches have been told."""
    edited = None
    if who.editing:
        more: dict[str, Any] = {"softcap": call.softcap, "sinks": call.sinks, "dropout": call.dropout}
        more["normalizer"] = call.normalizer.name
        options = (call.mask, call.bias, call.scale, first_query, first_key)
        edited = change(who, call.q, call.k, call.v, out, *options, row=row, fresh=True, **more)
        out = edited.out
    heads = Heads(out, call.v, heads_first) if who.deep else None
    if not tell(who, edited, first_query, first_key, heads):
        who.record(_looked(call, row, first_query, first_key, heads))
    return out


def own(func: Any, args: tuple, kwargs: dict, who: Audience) -> Any:
    """`sl.attention`."""
    q, k, v = (args[i] if len(args) > i else kwargs[name] for i, name in enumerate(("q", "k", "v")))
    mask = kwargs.get("mask")
    rule = None if mask is None else as_mask(mask)
    is_causal = None if rule is not None and rule.follows_order else False
    first_query = position(who, q.shape[-2], k.shape[-2], is_causal, None)
    if not who.wanting:
        who.note(first_query, k.shape[-2])
        with active.quiet(compiled=q.is_cuda):
            return func(*args, **kwargs)
    options = {name: value for name, value in kwargs.items() if name not in ("q", "k", "v", "backend")}
    check(who, options.get("dropout", 0.0))
    with active.quiet(compiled=q.is_cuda):
        call = make_call(q, k, v, **options)
        out, row = output_and_rows(call, kwargs.get("backend", "auto"))
    out = _told(who, call, out, row, first_query)
    return out[0] if q.dim() == 2 else out


def multi_head(func: Any, args: tuple, kwargs: dict, who: Audience) -> Any:
    """F.multi_head_attention_forward: what torch.nn.MultiheadAttention calls.

    With need_weights it leaves the fused kernel. The model keeps what it asked for; the account is of the same call
    without weights.
    """
    given = dict(zip(inspect.signature(func).parameters, args)) | kwargs
    query, key = given["query"], given["key"]
    own_sequence = query is key or query.data_ptr() == key.data_ptr()
    queries, keys = query.shape[0], key.shape[0]
    if not who.wanting:
        who.note(0 if own_sequence else -1, keys)
        with active.quiet():
            return func(*args, **kwargs)
    check(who, given["dropout_p"] if given.get("training", True) else 0.0)
    if who.editing:
        return edited_heads(func, given, who, 0 if own_sequence and queries == keys else -1, _read, look)
    taken: list[Heads] = []
    with active.quiet():
        with Catch() as caught:
            out = (before_projection(func, who.name, taken) if who.deep else func)(*args, **kwargs)
        if caught.lse is None:
            plain = given | {"need_weights": False, "training": False, "dropout_p": 0.0}
            if given.get("need_weights", True):
                plain["is_causal"] = False  # a hint that it does not take: it reads the mask itself
            with torch.no_grad(), Catch() as caught:
                func(**plain)
    if caught.lse is None:
        who.miss("run by a kernel of torch that gives no log-sum-exp", 0 if own_sequence else -1, keys)
        return out
    used = caught.arguments
    table = used.get("attn_mask", used.get("attn_bias"))
    q, k = used["query"], used["key"]
    mask, bias, sees = _read(who, table, q, k)
    if used.get("is_causal"):
        mask = causal("end" if q.shape[-2] == k.shape[-2] else "start")
    first = 0 if own_sequence and queries == keys else -1
    # The fused kernels have their own names for a scale that was not given; 1 / sqrt(dim) of the true head.
    width = given["embed_dim_to_check"] // given["num_heads"]
    heads = taken[0]._replace(v=used["value"]) if taken else None
    who.record(look(q, k, used["value"], mask, bias, 1 / math.sqrt(width), first, 0, caught.lse, sees, heads))
    return out


def look(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: Mask | None,
    bias: BiasLike,
    scale: float | None,
    first_query: int,
    first_key: int = 0,
    row: Tensor | None = None,
    sees: Tensor | None = None,
    heads: Heads | None = None,
    **more: Any,
) -> Looked:
    """The account of a call whose output somebody else computed."""
    # Only rows that nobody has computed may take compiled code.
    with active.quiet(compiled=q.is_cuda and row is None), torch.no_grad():
        if q.shape[:-3] != k.shape[:-3]:
            batch = torch.broadcast_shapes(q.shape[:-3], k.shape[:-3])
            q, k, v = (t.expand(*batch, *t.shape[-3:]) for t in (q, k, v))
        call = make_call(q, k, v, mask=mask, bias=bias, scale=scale, **more)
        if row is None:
            # A kernel that gives no lse takes every finite number for one, which torch's fused CUDA kernels do not.
            plain = q.is_cuda and isinstance(bias, Tensor)
            row = rows_only(call, "streaming" if plain else "auto")
        elif sees is not None:
            # Torch's kernels give a row that sees nothing an lse of their liking.
            row = row.masked_fill(~sees.expand(row.shape), -torch.inf)
        return _looked(call, row, first_query, first_key, heads)


def _looked(call: Call, row: Tensor, first_query: int, first_key: int, heads: Heads | None = None) -> Looked:
    """Four axes: [batch, heads, time, dim], whatever came."""
    s = call.sizes
    batch = (math.prod(s.batch),)
    q, k, row = call.q.detach(), call.k.detach(), row.detach()
    if s.batch != batch:
        q, k = (t.reshape(*batch, *t.shape[-3:]) for t in (q, k))
        row = row.reshape(*batch, s.heads, s.queries)
    sinks = None if call.sinks is None else call.sinks.detach()
    call = call.replace(
        q=q,
        k=k,
        v=k,
        sizes=s._replace(batch=batch, value_dim=s.dim),
        mask=None if call.mask is None else call.mask.flattened(s.batch),
        bias=_one_batch_axis(call.bias, s.batch),
        sinks=sinks,
        dropout=0.0,
    )
    return Looked(call, row, first_query, first_key, heads=heads)


def _one_batch_axis(bias: BiasLike, batch: tuple[int, ...]) -> BiasLike:
    """A bias for one batch axis; without a gradient."""
    if bias is None or not isinstance(bias, Tensor):
        return bias if bias is None else bias.flattened(batch)
    return one_batch_axis(bias.detach(), batch, 3)


def position(who: Audience, queries: int, keys: int, is_causal: bool | None, first: int | None) -> int:
    """Where the first query stands among all keys; -1 if the keys are another sequence's.

    `is_causal` is None where nobody says.
    """
    if is_cross(who.name, who.module):
        return -1
    if first is not None:
        return first
    if queries == 1 < keys and not who.is_step(keys):
        return -1
    return aligned(queries, keys, is_causal)


def aligned(queries: int, keys: int, is_causal: bool | None) -> int:
    """Where the first query stands if the last one stands at the last key; -1 where it cannot."""
    return -1 if queries > keys or (1 < queries < keys and is_causal is False) else keys - queries


def is_cross(name: str, module: nn.Module) -> bool:
    """Whether a module attends to another sequence, by what it says or how it is called."""
    said = getattr(module, "is_cross_attention", None)
    if isinstance(said, bool) and said:
        return True
    return _CROSS.search(name.rpartition(".")[2].lower()) is not None


def _read(
    who: Audience, table: Tensor | None, q: Tensor, k: Tensor
) -> tuple[Mask | None, Tensor | None, Tensor | None]:
    if table is None:
        return None, None, None
    shape = (*q.shape[:-1], k.shape[-2])
    while len(shape) < 4:
        shape = (1, *shape)
    with active.quiet():
        found = who.tables.read(table, shape)
    return found.mask, found.bias, found.sees
