"""The fast path of torch's own transformer layers: one operator for a whole layer, which a mode would turn off.

In evaluation `torch.nn.TransformerEncoderLayer` and `torch.nn.MultiheadAttention` hand everything to one operator, but
only if `torch.overrides.has_torch_function` sees nobody who might look: it is blind to watches (`state.BLIND`). The
operators themselves are seen by the watches' mode, and q and k follow from what goes into them.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sightline.backends.call import make_call
from sightline.lens.rows import output_and_rows
from sightline.masks import Mask, dense, documents, padding
from sightline.watching.intercept import active
from sightline.watching.intercept.caller import callers
from sightline.watching.intercept.heads import Heads, heads_first
from sightline.watching.intercept.torch_calls import look

if TYPE_CHECKING:
    from sightline.watching.intercept.function_mode import Audience

_LAYER = (
    "src",
    "embed_dim",
    "num_heads",
    "qkv_weight",
    "qkv_bias",
    "proj_weight",
    "proj_bias",
    "use_gelu",
    "norm_first",
    "eps",
    "norm_weight_1",
    "norm_bias_1",
    *("norm_weight_2", "norm_bias_2", "ffn_weight_1", "ffn_bias_1", "ffn_weight_2", "ffn_bias_2"),
    "mask",
    "mask_type",
)
_HEADS = (
    "query",
    "key",
    "value",
    "embed_dim",
    "num_heads",
    "qkv_weight",
    "qkv_bias",
    "proj_weight",
    "proj_bias",
    "mask",
    "need_weights",
    "average_attn_weights",
    "mask_type",
)


def attends_by(module: nn.Module) -> nn.Module:
    """The module that attends, of one whose forward is running: the layer's operator does its attention's work."""
    return module.self_attn if isinstance(module, nn.TransformerEncoderLayer) else module


def is_plain_layer(module: nn.Module) -> bool:
    """Whether a module is torch's encoder layer: it leaves its fast path if it, or a part of it, has a hook."""
    return isinstance(module, nn.TransformerEncoderLayer) and (
        type(module).forward is nn.TransformerEncoderLayer.forward
    )


def layer(func: Any, args: tuple, kwargs: dict, who: Audience) -> Any:
    """torch._transformer_encoder_layer_fwd."""
    given = dict(zip(_LAYER, args)) | kwargs
    return _run(func, args, kwargs, who, given["src"], given)


def heads(func: Any, args: tuple, kwargs: dict, who: Audience) -> Any:
    """torch._native_multi_head_attention."""
    given = dict(zip(_HEADS, args)) | kwargs
    return _run(func, args, kwargs, who, given["query"], given)


def _run(func: Any, args: tuple, kwargs: dict, who: Audience, x: Tensor, given: dict) -> Any:
    with active.quiet():
        out = func(*args, **kwargs)
        with torch.no_grad():
            real = None
            if x.is_nested:
                x, real = _unpacked(x)
            if not who.wanting:
                who.note(0, x.shape[1])
                return out
            q, k, v = _projected(x, given, 3 if who.deep else 2)
            mask = _mask(given, real)
            heads = None
            if who.deep:
                # The operator does not say what its heads gave.
                made, _ = output_and_rows(make_call(q, k, v, mask=mask), "auto")
                heads = Heads(made, v, heads_first, (given["proj_weight"], f"out_proj of {who.name}"))
    who.record(look(q, k, k, mask, None, 1 / math.sqrt(q.shape[-1]), 0, heads=heads))
    return out


def _projected(x: Tensor, given: dict, parts: int) -> tuple[Tensor, Tensor, Tensor]:
    """Queries, keys, and of three parts the values; of two the keys stand in for them."""
    size, count = given["embed_dim"], given["num_heads"]
    if given.get("norm_first"):
        x = F.layer_norm(x, (size,), given["norm_weight_1"], given["norm_bias_1"], given["eps"])
    made = F.linear(x, given["qkv_weight"][: parts * size], given["qkv_bias"][: parts * size])
    found = [part.unflatten(-1, (count, -1)).transpose(1, 2) for part in made.chunk(parts, -1)]
    return found[0], found[1], found[-1]


def _unpacked(x: Tensor) -> tuple[Tensor, Tensor]:
    """A batch of sequences that were packed without their padding, padded again; and what is real of it."""
    lengths = x._nested_tensor_size()[:, 0].tolist()
    count = max(lengths, default=0)
    for frame, first in callers():
        if isinstance(first, nn.TransformerEncoder) and isinstance(src := frame.f_locals.get("src"), Tensor):
            count = max(count, src.shape[1])
            break
    padded = x.to_padded_tensor(0.0, (len(lengths), count, x.size(2)))
    place = torch.arange(count, device=padded.device)
    return padded, place < torch.tensor(lengths, device=padded.device)[:, None]


def _mask(given: dict, real: Tensor | None) -> Mask | None:
    if real is not None:
        # What is padding is no query either.
        return documents(torch.where(real, 0, -1), torch.where(real, 0, -2))
    table, kind = given.get("mask"), given.get("mask_type")
    if table is None:
        return None
    # The operator takes every number but 0 for "hidden", -inf as well as a bias.
    visible = ~table.bool()
    if bool(visible.all()):
        return None
    if kind == 1:
        return padding(visible)
    return dense(visible)
