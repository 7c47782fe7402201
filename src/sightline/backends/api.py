"""`sl.attention`: one function for every kind of attention."""

from __future__ import annotations

import math
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.overrides import handle_torch_function, has_torch_function_variadic

from sightline.backends import sdpa, streaming
from sightline.backends.call import make_call
from sightline.backends.choose import BACKENDS, Choice, choose, done
from sightline.backends.grouped_rows import HALF
from sightline.backends.nonfinite import LANES, finite, spoiled, unbounded, unreadable, zeros
from sightline.backends.valueless import blank, valueless
from sightline.kernels.native import tile as native_tile
from sightline.masks import Band

if TYPE_CHECKING:
    from jaxtyping import Float
    from torch import Tensor

    from sightline.backends.call import BiasLike, Call, MaskLike


def attention(
    q: Float[Tensor, "*batch heads queries dim"],
    k: Float[Tensor, "*batch kv_heads keys dim"],
    v: Float[Tensor, "*batch kv_heads keys value_dim"],
    *,
    mask: MaskLike = None,
    bias: BiasLike = None,
    scale: float | None = None,
    softcap: float | None = None,
    sinks: Float[Tensor, " heads"] | None = None,
    normalizer: str = "softmax",
    dropout: float = 0.0,
    backend: str = "auto",
) -> Float[Tensor, "*batch heads queries value_dim"]:
    """Attention: every query's weighted average of the values.

    score = scale * q.k, then the soft-cap, then + bias, then the mask; the normaliser makes weights of a row of
    scores, and the output is the weighted sum of the values. A row that may attend to nothing gives 0.

    Args:
        q, k, v: `[*batch, heads, time, dim]`; `[heads, time, dim]` and `[time, dim]` work too. q may have a
            multiple of the heads of k and v (grouped heads), and v may have another dim than q and k.
        mask: who may attend to whom: `sl.causal()`, `sl.window(…)`, `sl.prefix(…)`, `sl.documents(…)`,
            `sl.padding(…)`, combined with `& | ~`, or a boolean tensor. True = may attend.
        bias: added to the scores: a tensor that broadcasts to `[*batch, heads, queries, keys]`, or `sl.alibi(heads)`.
        scale: factor of q.k; 1 / sqrt(dim) if not given.
        softcap: scores become `softcap * tanh(score / softcap)` before the bias.
        sinks: one logit per head that takes weight but has no value.
        normalizer: `"softmax"`, `"relu"`, `"sigmoid"` or `"uniform"`.
        dropout: the share of weights dropped, whenever it is given.
        backend: `"auto"`, or one by name: `"sdpa"`, `"flex"`, `"streaming"`, `"reference"`.

    >>> import sightline as sl
    >>> q, k, v = torch.randn(2, 8, 5, 64), torch.randn(2, 2, 7, 64), torch.randn(2, 2, 7, 32)
    >>> sl.attention(q, k, v, mask=sl.causal()).shape
    torch.Size([2, 8, 5, 32])
    """
    if has_torch_function_variadic(q, k, v):
        # A function mode is on (`sl.watch`, a default device): it may look at the call, as at torch's own functions.
        options: dict[str, Any] = {"mask": mask, "bias": bias, "scale": scale, "softcap": softcap, "sinks": sinks}
        options |= {"normalizer": normalizer, "dropout": dropout, "backend": backend}
        seen: Tensor = handle_torch_function(attention, (q, k, v), q, k, v, **options)
        return seen
    usual = bias is None and scale is None and softcap is None and sinks is None and normalizer == "softmax"
    if usual and not dropout and backend == "auto" and not isinstance(q, FakeTensor):
        out = sdpa.shortcut(q, k, v, mask)
        if out is not None:
            if not out.is_cpu or torch.compiler.is_compiling():
                return out
            if mask is None and k.shape[-2] % LANES == 0 and out.dtype not in HALF:
                return out
            if unreadable(out) or not _doubtful(q, k, mask, out):
                return out
    call = make_call(
        q,
        k,
        v,
        mask=mask,
        bias=bias,
        scale=scale,
        softcap=softcap,
        sinks=sinks,
        normalizer=normalizer,
        dropout=dropout,
    )
    out = done(call, backend, partial(run, call))
    return out[0] if q.dim() == 2 else out


def which_backend(q: Tensor, k: Tensor, v: Tensor, *, backend: str = "auto", **options: Any) -> Choice:
    """Which backend `sl.attention` would use for these arguments, and why. Nothing is computed.

    Of large calls on a CPU it also says whether the account of `sl.observe` is made by a kernel in C, and if not, why.

    >>> import sightline as sl
    >>> q = torch.randn(1, 8, 16, 64)
    >>> sl.which_backend(q, q, q, mask=sl.causal())
    Choice(backend='sdpa', reason="torch's own kernel can express this call")
    >>> sl.which_backend(q, q, q, mask=sl.window(4)).backend
    'streaming'
    """
    call = make_call(q, k, v, **options)
    choice = choose(call, backend)
    more = [choice.reason]
    if not valueless(call.q):
        more += [sdpa.kernel(call)] if choice.backend == "sdpa" else []
        more.append(_account(call))
    return choice._replace(reason="; ".join(part for part in more if part))


def _account(call: Call) -> str:
    """By what the lens would look through such a call, where that depends on the machine: a kernel in C on a CPU."""
    s = call.sizes
    cells = math.prod(s.batch) * s.heads * s.queries * s.keys
    if call.device.type != "cpu" or call.compute_dtype != torch.float32 or cells < native_tile.CELLS:
        return ""
    kernel, said = native_tile.found()
    by = "torch's operations" if kernel is None else "the kernel in C"
    return f"an account of it by {by}: {said}"


def run(call: Call, backend: str) -> Tensor:
    """Do a checked call with a backend that can do it."""
    if valueless(call.q):
        return blank(call)
    out = BACKENDS[backend].run(call)
    # The others keep what is not finite where it belongs by themselves.
    out = streaming.run(call, careful=True) if backend == "sdpa" and spoiled(call, out) else out
    return out if out.requires_grad or not torch.is_grad_enabled() else _connected(call, out)


def _connected(call: Call, out: Tensor) -> Tensor:
    """The output as a function of every input that needs gradients, also where it depends on none of them."""
    given = (call.q, call.k, call.v, call.bias, call.sinks)
    for part in (t.flatten()[:0] for t in given if isinstance(t, torch.Tensor) and t.requires_grad):
        out = out + part.sum().to(out.dtype)
    return out


def _doubtful(q: Tensor, k: Tensor, mask: MaskLike, out: Tensor) -> bool:
    """The same as `spoiled` for what the shortcut did, where every operation counts."""
    seen, keys = out, k.shape[-2]
    if seen.requires_grad:
        # What is not finite in the values is seen in the output: here some row reads every key.
        if mask is not None and not finite(q, k):
            return True
        seen = seen.detach()
    if isinstance(mask, Band) and seen.shape[-2] == 1:
        # Nothing is hidden from it: it got the keys it sees.
        keys = keys if mask.left is None and mask.right == 0 else 1
    elif mask is not None:
        # The last row of a causal map reads all that there is: it tells for all rows. Of few rows, picking it out
        # costs more than to sum them all.
        row = seen.select(-2, -1) if isinstance(mask, Band) and seen.shape[-2] > 32 else seen
        total = row.sum(dtype=torch.float32) if row.dtype in HALF else row.sum()
        if not math.isfinite(total.item()):
            return True
    return (keys % LANES != 0 or seen.dtype in HALF) and zeros(seen) and unbounded(q, k)
