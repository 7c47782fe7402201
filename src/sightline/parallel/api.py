"""`sl.parallel.attention` and `sl.parallel.observe`: a sequence that lies on several ranks."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor

from sightline.backends.call import Call, check_bias, check_sinks, make_call
from sightline.backends.choose import BACKENDS
from sightline.backends.nonfinite import finite
from sightline.biases import Bias, as_bias
from sightline.errors import InputError
from sightline.lens.readings import VALUES, Extra, check_grad, dot, sizes_of_values
from sightline.lens.requests import parse
from sightline.lens.spread import RankSight, check_spread
from sightline.lens.unchanged import that_counts
from sightline.masks import as_mask
from sightline.parallel import torch_ring
from sightline.parallel.alike import summed
from sightline.parallel.places import Whole, check_balance, pieces
from sightline.parallel.ranks import Ranks
from sightline.parallel.ring import Attention, Layout, Rows
from sightline.parallel.stats import Around

if TYPE_CHECKING:
    from jaxtyping import Float

    from sightline.backends.call import BiasLike, MaskLike
    from sightline.lens import Sight
    from sightline.masks import Mask


def attention(
    q: Float[Tensor, "*batch heads queries dim"],
    k: Float[Tensor, "*batch kv_heads keys dim"],
    v: Float[Tensor, "*batch kv_heads keys value_dim"],
    *,
    group: Any = None,
    balance: str = "contiguous",
    mask: MaskLike = None,
    bias: BiasLike = None,
    scale: float | None = None,
    softcap: float | None = None,
    sinks: Float[Tensor, " heads"] | None = None,
    normalizer: str = "softmax",
    dropout: float = 0.0,
    backend: str = "auto",
) -> Float[Tensor, "*batch heads queries value_dim"]:
    """`sl.attention` of a sequence that lies on the ranks of a group: each gives its part, and gets the output of it.

    Keys and values go around a ring; no rank holds more than two parts of them. Every rank must call it, with the same
    options, and call backward where the others do. Mask, bias and sinks are those of the whole sequence, the same on
    every rank, counted by positions of the whole; their gradients are summed over the group. Parts may differ in
    length.

    Args:
        q, k, v: this rank's part of each, as in `sl.attention`.
        group: a process group of torch.distributed, a DeviceMesh of one axis, or None for the default group; a
            process without one is alone.
        balance: `"contiguous"`, or `"head-tail"`: of twice as many chunks as ranks each has one from the front and the
            one as far from the end, so that under a causal mask all have as much to do. `sl.parallel.shard` cuts so.
        mask, bias, scale, softcap, sinks, normalizer, dropout: as in `sl.attention`.
        backend: what does each rank's blocks, as in `sl.attention`.

    >>> import torch
    >>> import sightline as sl
    >>> q = torch.randn(2, 8, 100, 64)
    >>> out = sl.parallel.attention(q, q, q, mask=sl.causal())  # one process: as sl.attention
    >>> bool((out - sl.attention(q, q, q, mask=sl.causal())).abs().max() < 1e-6)
    True
    """
    given = _Given(mask, bias, sinks, group, balance, backend, "attention")
    call, layout = _prepare(q, k, v, given, scale=scale, softcap=softcap, normalizer=normalizer, dropout=dropout)
    out = _run(call, layout)[0]
    return out[0] if q.dim() == 2 else out


def observe(
    q: Float[Tensor, "*batch heads queries dim"],
    k: Float[Tensor, "*batch kv_heads keys dim"],
    v: Float[Tensor, "*batch kv_heads keys value_dim"],
    *,
    stats: Any = (),
    grad: Float[Tensor, "*batch heads queries value_dim"] | None = None,
    group: Any = None,
    balance: str = "contiguous",
    mask: MaskLike = None,
    bias: BiasLike = None,
    scale: float | None = None,
    softcap: float | None = None,
    sinks: Float[Tensor, " heads"] | None = None,
    normalizer: str = "softmax",
    dropout: float = 0.0,
    backend: str = "auto",
) -> tuple[Float[Tensor, "*batch heads queries value_dim"], Sight]:
    """The output of `sl.parallel.attention` up to rounding, and this rank's part of the sight.

    Statistics of the local queries are over the keys of all ranks, `received` is of the local keys over all queries,
    and a picture is of the whole map: see `sl.parallel.RankSight`. `stats` are computed in one pass around the ring.
    With `grad`, the gradient of some number y by this rank's part of the output, there is `sight.influence` of the
    local queries.

    >>> import torch
    >>> import sightline as sl
    >>> q = torch.randn(1, 8, 100, 64)
    >>> out, sight = sl.parallel.observe(q, q, q, mask=sl.causal(), stats=("entropy", "received", sl.Top(8)))
    >>> out.shape, sight.entropy.shape
    (torch.Size([1, 8, 100, 64]), torch.Size([1, 8, 100]))
    """
    with Ranks(group).refusing(_STEP):
        requests = parse(stats)
        check_spread(requests)
    given = _Given(mask, bias, sinks, group, balance, backend, f"observe {requests}", grad)
    call, layout = _prepare(q, k, v, given, scale=scale, softcap=softcap, normalizer=normalizer, dropout=dropout)
    out, rows = _run(call, layout)
    sinks = None if call.sinks is None else call.sinks.detach()
    still = that_counts(call.replace(q=call.q.detach(), k=call.k.detach(), v=call.k.detach(), sinks=sinks, dropout=0.0))
    if isinstance(layout.whole.bias, Tensor):
        layout = layout._replace(whole=layout.whole._replace(bias=layout.whole.bias.detach()))
    wide = still.replace(
        sizes=still.sizes._replace(keys=layout.whole.keys), mask=layout.whole.mask, bias=layout.whole.bias
    )
    grad = check_grad(grad, call, call.v, q.dim() == 2)
    extra = Extra(
        along=None if grad is None else dot(grad, out.detach()),
        sizes=sizes_of_values(call, call.v.detach()),
        norms_of=VALUES,
    )
    sight = RankSight(wide, rows.number, Around(still, layout, rows), q.dim() == 2, extra)
    sight.prepare(*requests)
    return out[0] if q.dim() == 2 else out, sight


# What ranks tell each other first; who refuses a call by itself says so in the same place.
_STEP = "what the call is"


class _Given(NamedTuple):
    """What is of the whole sequence, and who does it."""

    mask: MaskLike
    bias: BiasLike
    sinks: Tensor | None
    group: Any
    balance: str
    backend: str
    asked: str
    grad: Tensor | None = None


def _prepare(q: Tensor, k: Tensor, v: Tensor, given: _Given, **options: Any) -> tuple[Call, Layout]:
    """The local call, and where everything is. What does not fit is refused on every rank, before any work starts."""
    ranks = Ranks(given.group)
    with ranks.refusing(_STEP):
        balance, call = check_balance(given.balance), make_call(q, k, v, **options)
        if given.backend != "auto" and given.backend not in BACKENDS:
            raise InputError(
                "unknown backend",
                expected=f"auto, {', '.join(BACKENDS)}",
                got=repr(given.backend),
                hint='backend="auto"',
            )
        mask = None if given.mask is None else as_mask(given.mask)
        bias = None if given.bias is None else as_bias(given.bias)
        if given.sinks is not None:
            check_sinks(given.sinks, call.sizes, call.normalizer, call.device)
        check_grad(given.grad, call, call.v, q.dim() == 2)
        scale = call.scale if options["scale"] is None else float(options["scale"])  # its sign may be in q by now
        said = _said(ranks, call, given, balance, mask, bias, scale)
    heard = ranks.agree(_STEP, said)
    for rank, other in enumerate(heard):
        _same(ranks, rank, said["of the call"], other["of the call"])
    s, parts = call.sizes, [[int(one[name]) for one in heard] for name in ("queries", "keys")]
    queries, keys = map(sum, parts)
    if mask is not None:
        mask.check(s.batch, s.heads, queries, keys, call.device)
    if bias is not None:
        check_bias(bias, s._replace(queries=queries, keys=keys), call.device)
    whole = Whole(queries, keys, mask, bias)
    own, theirs = (pieces(lengths, balance) for lengths in parts)
    call = call.replace(sinks=given.sinks, bias=bias if isinstance(bias, Tensor) else None)
    by_torch = (
        given.asked == "attention"
        and all(one["finite"] for one in heard)
        and len({*parts[0], *parts[1]}) == 1
        and torch_ring.expresses(call.replace(bias=bias), ranks, whole, balance, given.backend)
    )
    seed = int(heard[0]["seed"]) + 7919 * ranks.rank
    return call, Layout(ranks, own, theirs, whole, balance, seed, given.backend, by_torch)


def _said(
    ranks: Ranks,
    call: Call,
    given: _Given,
    balance: str,
    mask: Mask | None,
    bias: Bias | Tensor | None,
    scale: float,
) -> dict[str, Any]:
    """What this rank says of its call; all but the lengths must be the same on every rank."""
    s, of_the_whole = call.sizes, {"mask": mask, "bias": bias, "sinks": given.sinks}
    learned = [isinstance(t, Tensor) and t.requires_grad for t in (call.q, call.k, call.v, bias, given.sinks)]
    gradients = torch.is_grad_enabled()
    return {
        "queries": s.queries,
        "keys": s.keys,
        "of the call": {
            "batch": list(s.batch),
            "heads": [s.heads, s.kv_heads],
            "dim": [s.dim, s.value_dim],
            "dtype": str(call.q.dtype),
            "balance": balance,
            "scale": scale,
            "softcap": call.softcap,
            "normalizer": call.normalizer.name,
            "dropout": call.dropout,
            "backend": given.backend,
            "asked for": given.asked if len(given.asked) < 500 else f"{given.asked[:400]}… {summed(given.asked)}",
            **{name: "none" if ranks.size == 1 else _known_by(x) for name, x in of_the_whole.items()},
            "gradients": bool(gradients and any(learned)),
            "gradients of the bias": bool(gradients and learned[3]),
        },
        "finite": ranks.size == 1 or finite(call.q, call.k, call.v),
        "seed": int(torch.randint(2**62, ())) if call.dropout else 0,
    }


def _known_by(thing: Mask | Bias | Tensor | None) -> str:
    """What other ranks compare with theirs: what it is, for a reader, and a sum of all that it holds."""
    if thing is None:
        return "none"
    shown = f"a table {tuple(thing.shape)}" if isinstance(thing, Tensor) else repr(thing)
    # An address is another one on every rank.
    return f"{type(thing).__name__ if '0x' in shown else shown[:80]} (sum {summed(thing)})"


def _same(ranks: Ranks, rank: int, mine: dict[str, Any], theirs: dict[str, Any]) -> None:
    other = [f"{name} {theirs.get(name)}" for name in mine if theirs.get(name) != mine[name]]
    if other:
        here = [f"{name} {mine[name]}" for name in mine if theirs.get(name) != mine[name]]
        raise InputError(
            "the ranks do not make the same call",
            expected=f"{', '.join(here)}, as on rank {ranks.members[ranks.rank]}",
            got=f"{', '.join(other)} on rank {ranks.members[rank]}",
            hint="the same options on every rank; only the lengths may differ",
        )


def _run(call: Call, layout: Layout) -> tuple[Tensor, Rows]:
    bias = call.bias if isinstance(call.bias, Tensor) else None
    with torch.autocast(call.device.type, enabled=False):
        out, number, rest = Attention.apply(call.q, call.k, call.v, bias, call.sinks, call, layout)
    return out, Rows(number, rest)


def shard(x: Tensor, group: Any = None, *, dim: int = -2, balance: str = "contiguous") -> Tensor:
    """This rank's part of a sequence that every rank has whole, along an axis.

    >>> import torch
    >>> import sightline as sl
    >>> sl.parallel.shard(torch.arange(6), dim=0)  # one process: all of it
    tensor([0, 1, 2, 3, 4, 5])
    """
    ranks = Ranks(group)
    if check_balance(balance) == "contiguous":
        return x.tensor_split(ranks.size, dim)[ranks.rank]
    chunks = x.tensor_split(2 * ranks.size, dim)
    return torch.cat([chunks[ranks.rank], chunks[2 * ranks.size - 1 - ranks.rank]], dim)


def unshard(x: Tensor, group: Any = None, *, dim: int = -2, balance: str = "contiguous") -> Tensor:
    """The whole sequence, on every rank, from the parts: what `shard` undoes. It carries no gradient.

    >>> import torch
    >>> import sightline as sl
    >>> sl.parallel.unshard(sl.parallel.shard(torch.arange(6), dim=0), dim=0)
    tensor([0, 1, 2, 3, 4, 5])
    """
    ranks, x, what = Ranks(group), x.detach(), "the lengths of the parts"
    with ranks.refusing(what):
        check_balance(balance)
        length, rest = x.shape[dim], list(x.shape)
        rest[dim] = -1
    like = {"shape": rest, "dtype": str(x.dtype), "balance": balance}
    heard = ranks.agree(what, {"length": length, "of the call": like})
    for rank, other in enumerate(heard):
        _same(ranks, rank, like, other["of the call"])
    lengths = [one["length"] for one in heard]
    parts, mine = {ranks.rank: x}, x
    for step in range(1, ranks.size):
        shape = list(x.shape)
        shape[dim] = lengths[ranks.source(step)]
        (mine,) = ranks.rotate(f"the parts, step {step} of {ranks.size - 1}", [mine], [shape])
        parts[ranks.source(step)] = mine
    found = [
        (piece.start, parts[rank].narrow(dim, piece.local.start, piece.length))
        for rank, own in enumerate(pieces(lengths, balance))
        for piece in own
    ]
    return torch.cat([part for _, part in sorted(found, key=lambda pair: pair[0]) if part.shape[dim]] or [x], dim)
