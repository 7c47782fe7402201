"""Attention inside compiled graphs: what torch.compile traces while a monitor listens gets operators that tell it.

The function mode of a monitor is traced with the model, so a model has one graph for the steps that are recorded and
one for all others. In the first, an operator beside each attention call is given q, k and the mask when the graph runs;
nothing else is changed. Where the operator cannot be given what it needs, another one says so.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch._higher_order_ops.flex_attention import flex_attention as flex_operator
from torch._higher_order_ops.wrap import tag_activation_checkpoint
from torch._ops import HigherOrderOperator
from torch.utils.checkpoint import checkpoint

from sightline.backends.api import attention
from sightline.masks import as_mask
from sightline.watching.intercept.mask_tables import numbered
from sightline.watching.intercept.tracer import enter, kind_of, leave, of_ours, operator_of, site

if TYPE_CHECKING:
    from sightline.masks import Mask

BY_HAND = "a softmax in a compiled graph, of no attention function: attention written by hand cannot be seen there"
SCORES = "FlexAttention with a score_mod in a compiled graph"
LONG = "FlexAttention or a mask of Sightline's over so many cells, in a compiled graph"
LAZY = "a bias that is a rule, in a compiled graph"
MORE_KEYS = "torch.nn.MultiheadAttention with keys of its own (bias_k, add_zero_attn), in a compiled graph"
FAST = "the fast path of torch's own layers, one operator for all of it, in a compiled graph"
BODY = "runs inside a part of a compiled graph that cannot be seen"
# A mask that is a function is written out for the operator, up to so many cells.
MOST_CELLS = 1 << 26

_ATTENDED = (
    "attended(Tensor(a!) slot, Tensor q, Tensor k, Tensor? table, Tensor? sinks, Tensor? v, Tensor? out, float? scale, "
    "float? softcap, str causal, int window, bool grouped, bool hides, bool trained, bool known, int number, "
    "str where) -> ()"
)
_UNHEARD = "unheard(Tensor(a!) slot, str where, str why) -> ()"
# The operators say that they change it, so that no compiler takes them for idle.
_SLOT = torch.zeros(())

Hear = Callable[..., None]
_hears: dict[str, list[Hear]] = {"attended": [], "unheard": []}


def _attended(slot: Tensor, *given: Any) -> None:
    for hear in _hears["attended"]:
        hear(*given)


def _unheard(slot: Tensor, where: str, why: str) -> None:
    for hear in _hears["unheard"]:
        hear(where, why)


def _nothing(*_: Any) -> None:
    """What the operators do to tensors without values."""


@functools.cache
def _library() -> torch.library.Library:
    """The operators, made once; they last as long as this is held."""
    library = torch.library.Library("sightline", "FRAGMENT")
    for schema, function in ((_ATTENDED, _attended), (_UNHEARD, _unheard)):
        library.define(schema)
        name = schema.partition("(")[0]
        library.impl(name, function, "CompositeExplicitAutograd")
        torch.library.register_fake(f"sightline::{name}", _nothing, lib=library)
    return library


def connect(attended: Hear, unheard: Hear) -> None:
    """Say who is told when a graph runs."""
    _library()
    for name, hear in (("attended", attended), ("unheard", unheard)):
        if hear not in _hears[name]:
            _hears[name].append(hear)


# What is traced: plain code that the compiler can follow.


def traced(mode: Any, func: Any, args: tuple, kwargs: dict[str, Any]) -> Any:
    """A call inside a graph that is being made, with the operator that tells of it."""
    if func is F.scaled_dot_product_attention:
        _sdpa(*args, **kwargs)
    elif func is F.multi_head_attention_forward:
        _multi_head(*args, **kwargs)
    elif func is flex_operator:
        _flex(*args, **kwargs)
    elif func is attention:
        _own(*args, **kwargs)
    elif func is checkpoint or func is tag_activation_checkpoint:
        return func(_heard_inside(args[0]), *args[1:], **kwargs)
    elif func is F.softmax or func is torch.softmax or func is torch.Tensor.softmax:
        if args and args[0].dim() > 2:
            _say(BY_HAND)
    elif args and isinstance(args[0], np.ndarray):
        return _of_numpy(func, args, kwargs)
    elif func is torch._transformer_encoder_layer_fwd or func is torch._native_multi_head_attention:
        _say(FAST)
    elif func is torch.Tensor.unflatten:
        return args[0].unflatten(*args[1:], **kwargs)  # the function itself, which calls super(), cannot be traced
    elif isinstance(func, HigherOrderOperator):
        _say(BODY)
    return func(*args, **kwargs)


def _of_numpy(func: Any, args: tuple, kwargs: dict[str, Any]) -> Any:
    """The compiler hands over operators between arrays as methods of tensors, which arrays do not have."""
    name, swapped = operator_of(func)
    if not name:
        return func(*args, **kwargs)
    return getattr(operator, name)(*(args[::-1] if swapped else args))


def _tell(
    q: Tensor,
    k: Tensor,
    table: Tensor | None = None,
    sinks: Tensor | None = None,
    scale: float | None = None,
    softcap: float | None = None,
    causal: str = "",
    window: int = 0,
    grouped: bool = True,
    hides: bool = False,
    v: Tensor | None = None,
    out: Tensor | None = None,
    known: bool = True,
) -> None:
    number = 0 if table is None else numbered()
    q, k = q.detach(), k.detach()
    table = None if table is None else table.detach()
    sinks = None if sinks is None else sinks.detach()
    trained = torch.is_grad_enabled()
    how = (scale, softcap, causal, window, grouped, hides, trained, known, number)
    torch.ops.sightline.attended.default(_SLOT, q, k, table, sinks, v, out, *how, site())


def _say(why: str) -> None:
    torch.ops.sightline.unheard.default(_SLOT, site(), why)


def _sdpa(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> None:
    _tell(query, key, attn_mask, scale=scale, causal="start" if is_causal else "", grouped=enable_gqa)


def _multi_head(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    embed_dim_to_check: int,
    num_heads: int,
    in_proj_weight: Tensor | None,
    in_proj_bias: Tensor | None,
    bias_k: Tensor | None,
    bias_v: Tensor | None,
    add_zero_attn: bool,
    dropout_p: float,
    out_proj_weight: Tensor,
    out_proj_bias: Tensor | None,
    training: bool = True,
    key_padding_mask: Tensor | None = None,
    need_weights: bool = True,
    attn_mask: Tensor | None = None,
    use_separate_proj_weight: bool = False,
    q_proj_weight: Tensor | None = None,
    k_proj_weight: Tensor | None = None,
    v_proj_weight: Tensor | None = None,
    static_k: Tensor | None = None,
    static_v: Tensor | None = None,
    average_attn_weights: bool = True,
    is_causal: bool = False,
) -> None:
    """torch.nn.MultiheadAttention: q and k are made once more, as it makes them. A mask of its says True = hidden."""
    if bias_k is not None or add_zero_attn or static_k is not None:
        _say(MORE_KEYS)
        return
    if in_proj_weight is not None and not use_separate_proj_weight:
        wide = in_proj_weight.shape[0] // 3
        of_q, of_k = in_proj_weight[:wide].detach(), in_proj_weight[wide : 2 * wide].detach()
    else:
        assert q_proj_weight is not None
        assert k_proj_weight is not None
        wide = q_proj_weight.shape[0]
        of_q, of_k = q_proj_weight.detach(), k_proj_weight.detach()
    more = (
        (None, None) if in_proj_bias is None else (in_proj_bias[:wide].detach(), in_proj_bias[wide : 2 * wide].detach())
    )
    batched = query.dim() == 3
    x, y = (query.detach(), key.detach()) if batched else (query.detach()[:, None], key.detach()[:, None])
    q, k = F.linear(x, of_q, more[0]), F.linear(y, of_k, more[1])  # [time, batch, width]
    q, k = (t.unflatten(-1, (num_heads, -1)).permute(1, 2, 0, 3) for t in (q, k))
    table = attn_mask
    if table is not None and table.dim() == 3:
        table = table.view(-1, num_heads, table.shape[1], table.shape[2])
    if key_padding_mask is not None:
        pad = key_padding_mask if batched else key_padding_mask[None]
        pad = pad[:, None, None, :]
        if table is None:
            table = pad
        elif table.dtype == torch.bool and pad.dtype == torch.bool:
            table = table | pad
        else:
            table = _added(table, q) + _added(pad, q)
    if table is not None and table.dtype == torch.bool:
        table = ~table
    _tell(q, k, table)


def _added(table: Tensor, q: Tensor) -> Tensor:
    if table.dtype != torch.bool:
        return table.to(q.dtype)
    return torch.zeros(table.shape, dtype=q.dtype, device=q.device).masked_fill(table, -torch.inf)


def _flex(
    query: Tensor, key: Tensor, value: Tensor, score_mod: Any, block_mask: tuple, scale: float, *rest: Any, **more: Any
) -> None:
    if getattr(score_mod, "__name__", "") != "_identity":
        _say(SCORES)
        return
    queries, keys = query.shape[-2], key.shape[-2]
    if queries * keys > MOST_CELLS:
        _say(LONG)
        return
    _tell(query, key, _written(block_mask[-1], query, keys), scale=scale)


def _written(visible: Any, q: Tensor, keys: int) -> Tensor | None:
    """A mask that is a function of cells, as a table."""
    if getattr(visible, "__name__", "") == "noop_mask":
        return None
    batch, heads, queries = q.shape[:3]
    b, h = torch.arange(batch, device=q.device), torch.arange(heads, device=q.device)
    i, j = torch.arange(queries, device=q.device), torch.arange(keys, device=q.device)
    table: Tensor = visible(b.view(-1, 1, 1, 1), h.view(1, -1, 1, 1), i.view(1, 1, -1, 1), j.view(1, 1, 1, -1))
    return table


def _own(q: Tensor, k: Tensor, v: Tensor, *, mask: Any = None, bias: Any = None, **options: Any) -> None:
    """`sl.attention`, called by anybody but a module of Sightline's, which has a tap."""
    if of_ours():
        return
    if options.get("normalizer", "softmax") != "softmax":
        _say(f"normaliser {options['normalizer']}, in a compiled graph")
        return
    if bias is not None and not isinstance(bias, Tensor):
        _say(LAZY)
        return
    queries, keys = q.shape[-2], k.shape[-2]
    table: Tensor | None = bias
    if mask is not None:
        if queries * keys > MOST_CELLS:
            _say(LONG)
            return
        rule: Mask = as_mask(mask)
        visible = rule.tile(slice(0, queries), slice(0, keys), queries, keys, q.device)
        table = visible if bias is None else torch.where(visible, bias, -torch.inf)
    _tell(q, k, table, options.get("sinks"), options.get("scale"), options.get("softcap"))


def _heard_inside(function: Callable) -> Callable:
    """What a checkpoint runs: the mode, which is off while it handles a call, is on inside of it."""

    def body(*args: Any, **kwargs: Any) -> Any:
        if not enter():
            _say(BODY)
            return function(*args, **kwargs)
        out = function(*args, **kwargs)
        leave()
        return out

    return body


def attending(function: Callable, name: str) -> Callable:
    """An attention function of transformers as a graph is to have it."""
    kind = kind_of(function, name)
    if not kind:
        return function

    @functools.wraps(function)
    def beside(
        module: nn.Module, query: Tensor, key: Tensor, value: Tensor, attention_mask: Any, *args: Any, **kwargs: Any
    ) -> Any:
        result = function(module, query, key, value, attention_mask, *args, **kwargs)
        table, causal, window = None, "", 0
        if isinstance(attention_mask, Tensor) and attention_mask.dim() == 4:
            table = attention_mask[..., : key.shape[-2]]
        elif kind == "flex" and attention_mask is not None:
            if query.shape[-2] * key.shape[-2] > MOST_CELLS:
                _say(LONG)
                return result
            table = _written(attention_mask.mask_mod, query, key.shape[-2])
        elif kind == "flash" or kind == "unknown":
            said = kwargs.get("is_causal")
            if getattr(module, "is_causal", True) if said is None else said:
                causal, window = "end", kwargs.get("sliding_window") or 0
            if isinstance(attention_mask, Tensor) and attention_mask.dim() == 2:
                table = attention_mask[:, None, None, -key.shape[-2] :].bool()
        bias = kwargs.get("position_bias")
        if bias is not None:
            table = bias if table is None else bias + (table if table.dtype != torch.bool else _added(~table, query))
        dropout = kwargs.get("dropout", 0.0)
        if dropout and kind == "unknown":
            _say("its function is not known, and under dropout its output says nothing about it")
            return result
        out = result[0] if isinstance(result, tuple) else result
        exact = not dropout and kind != "flash" and kind != "flex"
        _tell(
            query,
            key,
            table,
            kwargs.get("s_aux"),
            kwargs.get("scaling"),
            kwargs.get("softcap"),
            causal,
            window,
            hides=kind == "eager",
            v=value.detach() if exact else None,
            out=out.detach() if exact else None,
            known=kind != "unknown",
        )
        return result

    return beside
