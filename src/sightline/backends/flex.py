"""The backend of torch's FlexAttention: structured masks, soft-cap, ALiBi and sinks in one compiled GPU kernel.

The tiles to visit come from our own masks, so a queries x keys table never exists. Needs a CUDA device and
torch.compile; the first call for a new kind of mask compiles for some seconds, and what was compiled does every length.

Left to itself torch goes on without compiling when it has compiled a function a few times, and then writes the whole
map out. So every kind of call has a function of its own to compile, and one that cannot be compiled is refused.

Limits: softmax, no dropout, no gradient for a dense bias. Its rules are tested on the CPU; with static shapes it ran on
an H200 with torch 2.11, with dynamic ones not yet.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from sightline import caches
from sightline.backends.cpu_bands import with_sinks
from sightline.backends.mask_cache import MOST, Kept
from sightline.errors import BackendError
from sightline.masks import EMPTY, FULL, Mask, edges

if TYPE_CHECKING:
    from jaxtyping import Float

    from sightline.backends.call import Call

_BLOCK = 128
# Kinds of calls that are remembered: one that comes back after so many others is compiled again.
_MOST = 256


def refuses(call: Call) -> str | None:
    """Why FlexAttention cannot do a call, or None if it can."""
    s = call.sizes
    if call.device.type != "cuda":
        return "FlexAttention needs a CUDA device to be worth compiling"
    if not call.normalizer.is_softmax:
        return f"FlexAttention has only softmax, not {call.normalizer.name}"
    if call.dropout:
        return "FlexAttention has no dropout"
    if call.q.dtype == torch.float64:
        return "FlexAttention has no float64"
    if call.mask is not None and not call.mask.compiles:
        return f"FlexAttention needs the mask {call.mask} as a rule of single cells"
    if call.bias is not None and not isinstance(call.bias, Tensor) and not call.bias.compiles:
        return "FlexAttention needs this bias as a rule of single cells"
    if isinstance(call.bias, Tensor) and call.bias.requires_grad:
        return "the gradient of a dense bias is the streaming backend's"
    if min(s.queries, s.keys, s.heads, *s.batch) == 0:
        return "FlexAttention takes no empty tensors"
    if min(s.dim, s.value_dim) < 16:
        return "FlexAttention needs a head of at least 16"
    if _refused and (why := _refused.get(_kind(call))) is not None:
        return f"torch.compile refused FlexAttention for such a call: {why}"
    return None


def run(call: Call) -> Float[Tensor, "*batch heads queries value_dim"]:
    """Attention by a compiled FlexAttention."""
    return run_with_lse(call)[0]


def run_with_lse(call: Call) -> tuple[Tensor, Float[Tensor, "*batch heads queries"]]:
    """The output and the lse (natural logarithm), sinks included."""
    s = call.sizes
    q, k, v = (t.reshape(-1, *t.shape[-3:]) for t in (call.q, call.k, call.v))
    kind = _kind(call)
    try:
        out, aux = _compiled(kind, call.scale)(
            q,
            k,
            v,
            score_mod=_score_mod(call),
            block_mask=_block_mask(call),
            enable_gqa=s.heads != s.kv_heads,
            **_with_lse(),
        )
    except _not_compiled() as error:
        why = (str(error).strip() or type(error).__name__).splitlines()[0]
        caches.put(_refused, kind, why, _MOST)
        raise NotCompiled(
            "torch.compile refused FlexAttention for this call",
            expected="a kernel for it",
            got=why,
            hint='backend="auto", which then chooses another one',
        ) from error
    lse = getattr(aux, "lse", aux)
    out, lse = out.reshape(*s.batch, *out.shape[1:]), lse.reshape(*s.batch, *lse.shape[1:])
    if call.sinks is not None:
        out, lse = with_sinks(call.sinks, out, lse)
    return out, lse


class NotCompiled(BackendError):
    """There is no compiled kernel for a call; run as it is, FlexAttention would write the whole map out."""


def _not_compiled() -> tuple[type[Exception], ...]:
    """What torch.compile raises: that it compiled something too often is an error of another family."""
    errors = torch._dynamo.exc
    return errors.TorchDynamoException, getattr(errors, "FailOnRecompileLimitHit", errors.TorchDynamoException)


# Kinds of calls that torch.compile has refused, and why.
_refused: dict[Hashable, str] = caches.held("backends.flex_refused", {}, _MOST)


def _kind(call: Call) -> Hashable:
    """What a compiled FlexAttention depends on: everything about a call but its lengths."""
    s, gradients = call.sizes, torch.is_grad_enabled() and any(t.requires_grad for t in (call.q, call.k, call.v))
    mods = tuple(None if mod is None else code_of(mod) for mod in (_score_mod(call), _mask_mod(call)))
    return call.q.dtype, call.device, s.dim, s.value_dim, s.heads == s.kv_heads, gradients, mods


def code_of(thing: Any, within: tuple[Any, ...] = ()) -> Hashable:
    """What a function does, as far as a compiler can tell: its code, and of what it refers to that, or the type."""
    if not callable(thing) or not hasattr(thing, "__code__"):
        kind: Hashable = (thing.dtype, thing.dim()) if isinstance(thing, Tensor) else type(thing).__name__
        return kind
    if thing.__code__ in within:
        return thing.__code__  # it refers to itself
    within = (*within, thing.__code__)
    return thing.__code__, *(code_of(x, within) for x in _captured(thing))


def _captured(function: Any) -> Iterator[Any]:
    """What a function refers to of what stands around it, as far as that is there yet."""
    for cell in function.__closure__ or ():
        try:
            yield cell.cell_contents
        except ValueError:
            yield None


@caches.memo("backends.flex_compiled", _MOST)
def _compiled(kind: Hashable, scale: float) -> Callable[..., Any]:
    """A compiled FlexAttention for one kind of call: torch counts what it compiles for each piece of code."""
    return torch.compile(_attend(scale), dynamic=True, fullgraph=True)


def _attend(scale: float) -> Callable[..., Any]:
    """FlexAttention at a scale, as a piece of code of its own.

    The scale is written into the code: beside it, it would be a number that may change, which FlexAttention does not
    take. The code says that it is from this file: what is from none, torch (before 2.12) compiles inside a function of
    its own, which is the same for all, and counts that.
    """
    from torch.nn.attention.flex_attention import flex_attention

    names: dict[str, Any] = {"flex_attention": flex_attention}
    text = f"def attend(*given, **options):\n    return flex_attention(*given, scale={scale!r}, **options)"
    exec(compile(text, __file__, "exec"), names)
    made: Callable[..., Any] = names["attend"]
    return made


def _with_lse() -> dict[str, Any]:
    """How FlexAttention is asked for the lse; before torch 2.9 it gave it by itself instead of in a tuple."""
    try:
        from torch.nn.attention.flex_attention import AuxRequest
    except ImportError:
        return {"return_lse": True}
    return {"return_aux": AuxRequest(lse=True)}


def _score_mod(call: Call) -> Callable[..., Tensor] | None:
    bias, s = call.bias, call.sizes
    if call.softcap is None and bias is None:
        return None
    cap = None if call.softcap is None else _number(call.softcap, call.device)
    table = lazy = None
    if isinstance(bias, Tensor):
        table = bias.expand(*s.batch, s.heads, s.queries, s.keys) if bias.dim() > 2 else bias.expand(s.queries, s.keys)
    elif bias is not None:
        lazy = bias.mod(s.batch, s.queries, s.keys, call.device, torch.float32)
    if table is not None and table.dim() > 3:
        table = table.reshape(-1, s.heads, s.queries, s.keys)

    def mod(score: Tensor, b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
        if cap is not None:
            score = torch.tanh(score / cap) * cap
        if table is not None:
            cell = table[i, j] if table.dim() == 2 else table[h, i, j] if table.dim() == 3 else table[b, h, i, j]
            score = score + cell
        elif lazy is not None:
            score = score + lazy(b, h, i, j)
        return score

    return mod


@caches.memo("backends.flex_numbers", 64)
def _number(value: float, device: torch.device) -> Tensor:
    """A number that may be another one next time: torch would compile anew for every value of its own."""
    with torch.inference_mode(False):  # what is made in inference mode could not be trained with later
        return torch.tensor(value, dtype=torch.float32, device=device)


def _mask_mod(call: Call) -> Callable[..., Tensor] | None:
    blocks = _block_mask(call)
    return None if blocks is None else blocks.mask_mod


def _block_mask(call: Call) -> Any:
    """Which blocks of keys each block of queries visits, from the mask's own kinds of tiles."""
    s = call.sizes
    return None if call.mask is None else _blocks(call.mask, s.batch, s.queries, s.keys, call.device)


def _make_blocks(mask: Mask, batch: tuple[int, ...], queries: int, keys: int, device: torch.device) -> Any:
    from torch.nn.attention.flex_attention import BlockMask

    kinds = mask.kinds(edges(queries, _BLOCK), edges(keys, _BLOCK), queries, keys).copy()
    # A block that reaches beyond the last key or query must be looked at cell by cell.
    if queries % _BLOCK:
        kinds[-1] = kinds[-1].clip(max=1)
    if keys % _BLOCK:
        kinds[:, -1] = kinds[:, -1].clip(max=1)
    mixed, full = ((kinds != EMPTY) & (kinds != FULL)), kinds == FULL
    # The lists are made on the CPU: they are short, and a GPU would take longer to be asked for each step. Of keys for
    # each block of queries, then of queries for each block of keys.
    lists = {"kv": mixed, "full_kv": full, "q": mixed.T, "full_q": full.T}
    given: dict[str, Any] = {}
    for name, which in lists.items():
        count, order = (torch.from_numpy(part).to(device) for part in _listed(which))
        given |= {f"{name}_num_blocks": count, f"{name}_indices": order}
    rule = mask.mod(batch, queries, keys, device)
    return BlockMask((queries, keys), BLOCK_SIZE=(_BLOCK, _BLOCK), mask_mod=rule, **given)


def _listed(which: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """How many blocks each row has, and their places, then all others."""
    order = np.argsort(~which, axis=-1, kind="stable")
    return which.sum(-1, dtype=np.int32)[None, None], order.astype(np.int32)[None, None]


_blocks: Kept[Any] = caches.held("backends.flex_blocks", Kept(_make_blocks), MOST)
