"""The account of attention written by hand: of the scores that its softmax was given, exact to the model's own numbers.

The model has written the scores out, so nothing has to be followed but where they lie. They stand for a bias over
products of nothing, which all that makes an account understands. If q and k are to be kept, they have to give these
scores, with a scale and with numbers that heads or texts share; where they do not, the account alone is kept.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, TypeAlias

import torch
from torch import Tensor, nn

from sightline.nn.observe.listener import in_checkpoint
from sightline.watching.intercept import active
from sightline.watching.intercept.caller import callers
from sightline.watching.intercept.changed import change
from sightline.watching.intercept.heads import Heads, check
from sightline.watching.intercept.torch_calls import look, position
from sightline.watching.record.slices import slice_of

if TYPE_CHECKING:
    from sightline.shapes import Sizes
    from sightline.watching.intercept.function_mode import Audience
    from sightline.watching.intercept.looked import Looked
    from sightline.watching.intercept.marks import Soft, Weighing

Way: TypeAlias = Callable[[Tensor], Tensor]

AXES = "its attention is written by hand: which axes of its scores are texts, heads, queries and keys is not known"
CHANNELS = "its attention is written by hand, and is between channels"
CHANGED = "its attention is written by hand: its weights are changed after the softmax"
GONE = "its attention is written by hand: its scores were gone when its weights were used"
VALUES = "its attention is written by hand: which axes of its values are texts, heads and keys is not known"
REASONS = (AXES, CHANNELS, CHANGED, GONE)
# What modules call the number of their heads.
_HEADS = ("num_heads", "num_attention_heads", "n_heads", "n_head", "heads", "num_head", "nhead", "nheads")
# And the scale of their scores, or what these are divided by.
_SCALES = ("scale", "scaling", "scale_attn", "norm_factor", "inv_norm_factor", "inv_sqrt_head_dim")
# Scores below are hidden: models write -1e4, -1e9 or the least number.
_LOW = -5e3
# Less than this many to the e: chances against dropping nothing.
_BY_CHANCE = 14.0
# In names of classes that attend between channels, where sizes do not tell.
_CHANNELS = ("xca", "channel", "covariance")


def looked(who: Audience, soft: Soft, weights: Tensor | None) -> Looked | str:
    """What a softmax was given, as an attention call; or why that cannot be told."""
    scores = soft.take()
    if scores is None:
        return GONE
    scores = scores.detach()
    with active.quiet(), torch.no_grad():
        given = _given(who.module)
        heads = _heads(who.module)
        if weights is not None:
            found = _as_used(scores, weights.detach())
            if found is None:
                return CHANGED
            scores = found
        batches = {x.shape[0] for x in given if x.dim()}
        if scores.dim() == 3 and heads is not None and len(batches) == 1:
            piece = slice_of(scores.shape[0], next(iter(batches)), heads, soft.q, soft.k)
            if piece is not None:
                return _looked(who, scores[:, None], scores.shape, None, None)._replace(piece=piece)
        four = in_four(scores, heads, batches)
        if four is None:
            return AXES
        if _between_channels(who.module, four, soft.q, given):
            return CHANNELS
        return _looked(who, four, scores.shape, soft.q, soft.k)


def edited(who: Audience, soft: Soft, weights: Tensor | None, weighing: Weighing) -> tuple[Looked | str, Tensor]:
    """What edits make of attention written by hand: its account, or why it cannot be edited; and its product's result.

    The scores stand for a bias over products of nothing, and the values are those of the product.
    """
    scores, plain = soft.scores, weighing.result
    before = looked(who, soft, weights)
    if isinstance(before, str) or scores is None:
        return (before if isinstance(before, str) else GONE), plain
    with active.quiet():
        ways = _in_order(weighing)
        if ways is None or scores.dim() > 4:
            return VALUES, plain
        used, values, result, back, _ = ways
        heads, batches = _heads(who.module), {x.shape[0] for x in _given(who.module) if x.dim()}
        values = values.expand(*used.shape[:-2], *values.shape[-2:])
        bias, v, out = (in_four(x, heads, batches) for x in (scores, values, result))
        if bias is None or v is None or out is None:
            return AXES, plain
        nothing = torch.zeros((), dtype=out.dtype, device=out.device)
        q, k = nothing.expand(*bias.shape[:3], 1), nothing.expand(*v.shape[:3], 1)
        how = "plain" if _is_plain(used, scores) else "dropped"
        found = change(who, q, k, v, out, None, bias, 1.0, before.first_query, row=before.row, by_hand=how)
        new = found.out
        if out.shape != result.shape or (result.dim() == 4 and out.stride() != result.stride()):
            new = new.transpose(0, 1) if result.dim() == 4 else new.reshape(result.shape)
    if found.call is not None and found.row is not None:
        key = before.call.k if before.key is None else before.key
        before = before._replace(call=found.call, row=found.row, key=key)
    result = back(new)
    if who.deep and (gave := gives(who, before, weighing, scores)) is not None:
        values = gave.v if found.values is None else found.values
        before = before._replace(heads=gave._replace(out=result, v=values))
    return before, result


def gives(who: Audience, found: Looked, weighing: Weighing, scores: Tensor) -> Heads | None:
    """What the heads of attention written by hand gave, and the values; None if it is not known how these lie.

    Whatever was found is tried out: the weights times these values are what the product gave, number by number.
    """
    if found.piece is not None or (not torch.is_grad_enabled() and in_checkpoint("forward")):
        return None  # what a reentrant checkpoint runs again is not heard
    with active.quiet(), torch.no_grad():
        ways = _in_order(weighing)
    if ways is None:
        return None
    used, values, result, _, forth = ways
    with active.quiet():
        check(who, 0.0 if _is_plain(used, scores) else "of some of its weights")
    with active.quiet(), torch.no_grad():
        heads, batches = _heads(who.module), {x.shape[0] for x in _given(who.module) if x.dim()}
        values = values.detach().expand(*used.shape[:-2], *values.shape[-2:])
        weights, v, out = (in_four(x.detach(), heads, batches) for x in (used, values, result))
        s = found.call.sizes
        if weights is None or v is None or out is None or not _fit(weights, v, out, (*s.batch, s.heads, s.queries)):
            return None

    def four(x: Tensor, s: Sizes) -> Tensor:
        laid = in_four(forth(x), heads, batches)
        assert laid is not None
        return laid.reshape(*s.batch, s.heads, s.queries, laid.shape[-1])

    return Heads(weighing.result, v, four)


def _fit(weights: Tensor, v: Tensor, out: Tensor, rows: tuple[int, ...]) -> bool:
    """Whether weights times values are an output, all `[batch, heads, time, …]`, as far as its precision goes."""
    if tuple(out.shape[:3]) != rows or weights.shape[:3] != out.shape[:3] or v.shape[:2] != out.shape[:2]:
        return False
    return _same(weights @ v, out)


def _same(one: Tensor, other: Tensor) -> bool:
    """Whether two tensors hold the same numbers, beside the largest of them."""
    if one.shape != other.shape:
        return False
    near = 2e-2 if other.dtype in (torch.float16, torch.bfloat16) else 1e-4
    size = other.detach().nan_to_num(0.0, 0.0, 0.0).abs().amax() if other.numel() else 0.0
    return torch.allclose(one, other, rtol=near, atol=float(near * size), equal_nan=True)


def _is_plain(weights: Tensor, scores: Tensor) -> bool:
    """Whether nothing was dropped of the weights since the softmax; rows may be gone as a whole."""
    with torch.no_grad():
        plain = scores.float().softmax(-1)
        near = 2e-2 if weights.dtype in (torch.float16, torch.bfloat16) else 1e-4
        if weights.numel() != plain.numel():
            return False
        used = weights.detach().reshape(plain.shape)
        off = (used - plain).abs() > near * plain.amax(-1, keepdim=True)
        return not bool((off & (used != 0).any(-1, keepdim=True)).any())


def _in_order(weighing: Weighing) -> tuple[Tensor, Tensor, Tensor, Way, Way] | None:
    """Weights, values and result as weights @ values = result, the way back and the way there; None if there is none.

    A product may have its axes in another order (einsum), or values on the left: which it is, is tried out on the
    numbers.
    """
    direct = _ordered(*weighing)
    if direct is not None or min(x.dim() for x in weighing) < 2:
        return direct
    found = _ordered(*(x.mT for x in weighing))
    return None if found is None else (*found[:3], lambda x: found[3](x).mT, lambda x: found[4](x.mT))


def _ordered(weights: Tensor, values: Tensor, result: Tensor) -> tuple[Tensor, Tensor, Tensor, Way, Way] | None:
    swaps: list[tuple[int, int] | None] = [None, *([(-3, -2)] if weights.dim() == 4 else [])]
    for one in swaps:
        for two in swaps:
            v = values if one is None else values.transpose(*one)
            out = result if two is None else result.transpose(*two)
            if v.dim() > weights.dim() or out.dim() != weights.dim() or v.shape[-2] != weights.shape[-1]:
                continue
            with torch.no_grad():
                try:
                    again = weights @ v
                except RuntimeError:
                    continue
                if _same(again, out):
                    turn: Way = (lambda x: x) if two is None else (lambda x: x.transpose(-3, -2))
                    return weights, v, out, turn, turn
    return None


def _looked(who: Audience, scores: Tensor, shape: torch.Size, q: Tensor | None, k: Tensor | None) -> Looked:
    batch, heads, queries, keys = scores.shape
    first = position(who, queries, keys, _is_causal(scores), None)
    q, k = _like(q, shape, scores.shape), _like(k, shape, scores.shape)
    real = _real(scores)
    if q is not None and k is not None and any(getattr(watcher, "keep", False) for watcher, _ in who.wanting):
        parts = split(who.module, scores, q, k)
        if parts is not None:
            scale, bias = parts
            return look(q, k, k, None, bias, scale, first, row=_rows(scores))._replace(real=real)
    nothing = torch.zeros((), dtype=scores.dtype, device=scores.device)
    zeros = nothing.expand(batch, heads, queries, 1), nothing.expand(batch, heads, keys, 1)
    found = look(*zeros, zeros[1], None, scores, 1.0, first, row=_rows(scores))
    return found._replace(real=real, key=nothing.expand(batch, 1, keys, 1) if k is None else k)


def _rows(scores: Tensor) -> Tensor:
    """The lse of every row, text by text: no second map in another precision."""
    high = torch.float64 if scores.dtype == torch.float64 else torch.float32
    return torch.stack([torch.logsumexp(one.to(high), -1) for one in scores])


def _is_causal(scores: Tensor) -> bool:
    """Whether queries see no key beyond their own, with the last query at the last key: by a few rows."""
    queries, keys = scores.shape[-2:]
    for row in {0, queries // 2, max(queries - 2, 0)}:
        beyond = scores[:, :, row, row + 1 + keys - queries :] if keys >= queries else scores[:, :, row, :0]
        largest = scores[:, :, row].amax(-1, keepdim=True)
        if beyond.numel() and bool(((beyond > _LOW) & (beyond > largest - 100)).any()):
            return False
    return queries > 1


def _real(scores: Tensor) -> Tensor | None:
    """Which keys are no padding, `[batch, keys]`: some query of some head may see them. None if all are."""
    if not scores.numel():
        return None
    real = ~(scores.amax((1, 2)) <= _LOW)
    return None if bool(real.all()) else real


def in_four(x: Tensor, heads: int | None, batches: set[int]) -> Tensor | None:
    """Scores as [batch, heads, queries, keys]; None if it is not known which axis is which.

    >>> in_four(torch.zeros(6, 5, 7), 3, {2}).shape
    torch.Size([2, 3, 5, 7])
    >>> in_four(torch.zeros(2, 4, 3, 5, 7), 3, {2}) is None  # pieces of a text that see more than themselves
    True
    """
    square = x.shape[-1] == x.shape[-2]
    match x.dim():
        case 2:
            return x[None, None] if heads in (None, 1) else None
        case 3 if x.shape[0] in batches and heads in (None, 1):
            return x[:, None]
        case 3 if heads is not None and _fits(x.shape[0], heads, batches):
            return x.unflatten(0, (-1, heads))
        case 3 if heads is None and len(batches) == 1 and x.shape[0] % max(batch := next(iter(batches)), 1) == 0:
            return x.unflatten(0, (batch, -1))
        case 4 if heads in (None, x.shape[1]):
            return x
        case 4 if heads == x.shape[0] and x.shape[1] in batches:
            return x.transpose(0, 1)
        case 5 if heads == x.shape[1] * x.shape[2]:
            return x.flatten(1, 2)
        case 5 if heads == x.shape[2] and square:
            return x.flatten(0, 1)
        case 5 if heads == x.shape[1] and square:
            return x.transpose(1, 2).flatten(0, 1)
    return None


def _fits(maps: int, heads: int, batches: set[int]) -> bool:
    """Whether so many maps are all heads of all texts, or of parts of these: of fewer it is not known which."""
    texts, rest = divmod(maps, heads)
    return not rest and (not batches or any(texts % batch == 0 for batch in batches if batch))


def _like(x: Tensor | None, shape: torch.Size, four: torch.Size) -> Tensor | None:
    """A factor of the product in four axes, if it lies as the scores do."""
    if x is None or x.shape[-2] not in four[-2:]:
        return None
    if x.dim() == len(shape) == 4 and (x.shape[0], x.shape[1]) in ((four[0], four[1]), (four[0], 1)):
        return x.expand(four[0], four[1], *x.shape[2:])
    lead = math.prod(x.shape[:-2])
    if lead == four[0] * four[1] and x.dim() == 3:
        return x.reshape(four[0], four[1], *x.shape[-2:])
    if lead == 1:
        return x.reshape(1, 1, *x.shape[-2:]).expand(four[0], four[1], *x.shape[-2:])
    return None


def _as_used(scores: Tensor, weights: Tensor) -> Tensor | None:
    """The scores of weights that something was done to after the softmax; None if that makes them others.

    Dropout by hand takes cells away and raises the rest. A row that was taken away as a whole sees nothing. Hiding once
    more what was hidden changes nothing.
    """
    if weights.numel() != scores.numel() or weights.shape[-2:] != scores.shape[-2:]:
        return None
    weights = weights.reshape(scores.shape).float()
    plain = scores.float().softmax(-1)
    used = (weights != 0) & (plain > 1e-6)
    if not bool(used.any()):
        return None
    ratio = (weights / plain)[used]
    factor = ratio.median()
    near = 2e-2 if scores.dtype in (torch.float16, torch.bfloat16) else 1e-4
    if bool(((ratio - factor).abs() > near * factor).any()):
        return None
    if float(factor) > 1 + near:
        # Dropout: that it left everything where it is and raised it all the same is beyond chance, but for a few cells.
        dropped = bool(((weights == 0) & (plain > 1e-6)).any())
        return scores if dropped or int(used.sum()) * math.log(float(factor)) < _BY_CHANCE else None
    gone = (weights == 0).all(-1, keepdim=True)
    if abs(float(factor) - 1) > near or bool((((weights - plain).abs() > near) & ~gone).any()):
        return None
    return scores.masked_fill(gone, -torch.inf) if bool(gone.any()) else scores


def _heads(module: nn.Module) -> int | None:
    """How many heads a module says that it has."""
    for name in _HEADS:
        said = getattr(module, name, None)
        if isinstance(said, int) and not isinstance(said, bool) and said > 0:
            return said
    return None


def _given(module: nn.Module) -> list[Tensor]:
    """The tensors that a running module was given."""
    for frame, first in callers(1):
        code = frame.f_code
        if first is module and code.co_name == "forward":
            named = [frame.f_locals.get(name) for name in code.co_varnames[1 : code.co_argcount]]
            return [x for x in named if isinstance(x, Tensor) and x.is_floating_point()]
    return []


def _between_channels(module: nn.Module, scores: Tensor, q: Tensor | None, given: list[Tensor]) -> bool:
    """Whether rows and columns are channels: the product sums over positions, and heads x rows are all channels."""
    _, heads, queries, keys = scores.shape
    if queries != keys or q is None:
        return False
    dim = q.shape[-1]
    if dim == queries:
        return any(word in type(module).__name__.lower() for word in _CHANNELS)
    width = heads * queries
    return any(
        (width == x.shape[-1] and math.prod(x.shape[1:-1]) == dim)
        or (x.dim() == 4 and width == x.shape[1] and math.prod(x.shape[2:]) == dim)
        for x in given
        if x.dim() > 2
    )


def split(module: nn.Module, scores: Tensor, q: Tensor, k: Tensor) -> tuple[float, Tensor] | None:
    """The scale of q and k that makes scores of them, and what is left, which heads or texts share; None if none."""
    high = torch.float64 if scores.dtype == torch.float64 else torch.float32
    hidden, dim = scores <= _LOW, q.shape[-1]
    product = (q.to(high) @ k.to(high).mT).masked_fill(hidden, 0.0)
    # Where nothing was added, the scale is what products have to be multiplied by.
    fitted = (product * scores.masked_fill(hidden, 0.0)).sum(dtype=torch.float64) / product.double().square().sum()
    said = [getattr(module, name, None) for name in _SCALES]
    scales = [float(x) for x in said if isinstance(x, int | float) or (isinstance(x, Tensor) and x.numel() == 1)]
    scales += [1 / x for x in scales if x] + [1.0, dim**-0.5, float(fitted)]
    near = 16 * torch.finfo(scores.dtype).eps
    for scale in dict.fromkeys(scales):
        if not 0 < scale < math.inf:
            continue
        rest = torch.where(hidden, scores.to(high), scores.to(high) - scale * product)
        size = (scale * product).abs().amax() + rest.abs().masked_fill(hidden, 0).amax()
        rest = rest.masked_fill((rest.abs() <= near * size) & ~hidden, 0.0)
        for axis in (1, 0):
            one = rest.narrow(axis, 0, 1)
            shared = (rest == one) | ((rest - one).abs() <= near * size)
            if bool(shared.all()) and (rest.shape[axis] > 1 or not bool((rest * ~hidden).any())):
                return scale, one.clone()
    return None
