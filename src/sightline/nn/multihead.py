"""Multi-head attention: several heads side by side, concatenated and projected."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Self, TypeAlias

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sightline import normalizers
from sightline.biases import Bias
from sightline.errors import InputError, InputTypeError
from sightline.nn.cache import KVCache
from sightline.nn.checks import acts_on, check_positions_fit, check_sequence, share
from sightline.nn.fast.side_by_side import Affine, Joined, lay_side_by_side
from sightline.nn.from_torch import build, read_attention
from sightline.nn.intact import TakesCache
from sightline.nn.memory import Source
from sightline.nn.observe import is_observed, reads_cache
from sightline.nn.observe.attends import Attends
from sightline.positions import Alibi
from sightline.positions.base import whole

if TYPE_CHECKING:
    from jaxtyping import Float

    from sightline.backends.call import BiasLike, MaskLike

Memory: TypeAlias = Tensor | tuple[Tensor, Tensor] | None


class MultiHeadAttention(TakesCache, Attends):
    """Heads with weights of their own: Z_0, Z_1, ... are concatenated, and one more matrix makes the output of them.

    The weights of head h are rows `h * head_dim` to `(h + 1) * head_dim` of `query.weight`; `key.weight` and
    `value.weight` have `kv_heads` such blocks, and query head h reads block `h // (heads // kv_heads)`.

    Args:
        width: channels of a token, in and out.
        heads: how many heads.
        kv_heads: heads of keys and values, if fewer; each serves a group of query heads (Llama, Mistral).
        head_dim: channels of a query and of a key; width / heads if not given.
        value_dim: channels of a value; head_dim if not given.
        memory_width: channels of the memory's tokens, if not width; a pair if keys and values read different ones.
        bias: whether the four projections have one.
        positions: `sl.positions.Rotary(head_dim)` or `sl.alibi(heads)`. Schemes that are added to the input belong
            in front of the first layer: `Encoder` and `Decoder` take them.
        dropout: the share of weights dropped in training.
        softcap, normalizer, scale, backend: as in `sl.attention`.
        sinks: learn one logit per head that takes weight and has no value (gpt-oss).

    >>> import sightline as sl, torch
    >>> from sightline import nn as slnn
    >>> mha = slnn.MultiHeadAttention(64, heads=8, kv_heads=2, positions=sl.positions.Rotary(8))
    >>> mha(torch.randn(2, 5, 64), mask=sl.causal()).shape
    torch.Size([2, 5, 64])
    >>> cross = slnn.MultiHeadAttention(64, heads=8, memory_width=32)
    >>> cross(torch.randn(2, 5, 64), torch.randn(2, 7, 32)).shape
    torch.Size([2, 5, 64])
    """

    def __init__(
        self,
        width: int,
        heads: int,
        *,
        kv_heads: int | None = None,
        head_dim: int | None = None,
        value_dim: int | None = None,
        memory_width: int | tuple[int, int] | None = None,
        bias: bool = True,
        positions: nn.Module | Alibi | None = None,
        dropout: float = 0.0,
        softcap: float | None = None,
        sinks: bool = False,
        normalizer: str = "softmax",
        scale: float | None = None,
        backend: str = "auto",
    ) -> None:
        super().__init__()
        normalizers.get(normalizer)
        self.width, self.heads = whole("width", width), whole("heads", heads)
        self.kv_heads = self.heads if kv_heads is None else whole("kv_heads", kv_heads)
        if self.heads % self.kv_heads:
            raise InputError(
                "the heads cannot be put into equal groups",
                expected=f"heads as a multiple of kv_heads={kv_heads}",
                got=f"heads={heads}",
                hint="kv_heads=1, one group, or leave it out: each head its own",
            )
        self.head_dim = _split(self.width, self.heads) if head_dim is None else whole("head_dim", head_dim)
        self.value_dim = self.head_dim if value_dim is None else whole("value_dim", value_dim)
        pair = memory_width if isinstance(memory_width, tuple) else (memory_width, memory_width)
        self.memory_width = tuple(self.width if n is None else whole("memory_width", n) for n in pair)
        self.positions = positions
        check_positions_fit(positions, self.heads, self.head_dim)
        self.dropout = share("dropout", dropout)
        self.softcap, self.normalizer, self.scale, self.backend = softcap, normalizer, scale, backend
        self.query = nn.Linear(self.width, self.heads * self.head_dim, bias=bias)
        self.key = nn.Linear(self.memory_width[0], self.kv_heads * self.head_dim, bias=bias)
        self.value = nn.Linear(self.memory_width[1], self.kv_heads * self.value_dim, bias=bias)
        self.output = nn.Linear(self.heads * self.value_dim, self.width, bias=bias)
        self.sinks = nn.Parameter(torch.zeros(self.heads)) if sinks else None
        self._joined = Joined()
        self.reset_parameters()
        self._lay_out()

    def _lay_out(self) -> None:
        """Queries, keys and values are one product where no gradients flow: their weights lie side by side."""
        self._joined.forget()
        if self.memory_width == (self.width, self.width):
            lay_side_by_side(self.query, self.key, self.value)

    def _apply(self, fn: Callable[..., Any], recurse: bool = True) -> Self:
        """What `.to(…)`, `.cuda()`, `.half()` and the like do: parameters that move are laid out anew."""
        before = self.query.weight.dtype, self.query.weight.device
        super()._apply(fn, recurse)
        if before != (self.query.weight.dtype, self.query.weight.device):
            self._lay_out()
        return self

    def reset_parameters(self) -> None:
        """Draw the weights anew, so that every projection keeps the variance of its input."""
        for linear in (self.query, self.key, self.value, self.output):
            nn.init.xavier_uniform_(linear.weight)
            if linear.bias is not None:
                nn.init.zeros_(linear.bias)
        if self.sinks is not None:
            nn.init.zeros_(self.sinks)

    @classmethod
    def from_torch(cls, module: nn.MultiheadAttention) -> MultiHeadAttention:
        """The same attention with a copy of the weights of a torch.nn.MultiheadAttention.

        The input is always `[*batch, time, width]` here, whatever `batch_first` said there, and only the output is
        returned. Masks mean the opposite: convert them with `masks_from_torch`.

        >>> import torch
        >>> theirs = torch.nn.MultiheadAttention(32, 4, batch_first=True)
        >>> ours, x = MultiHeadAttention.from_torch(theirs), torch.randn(2, 5, 32)
        >>> torch.allclose(ours(x), theirs(x, x, x)[0], atol=1e-5)
        True
        """
        return build(cls, read_attention(module))

    def forward(
        self,
        x: Float[Tensor, "*batch time width"],
        memory: Memory = None,
        *,
        mask: MaskLike = None,
        bias: BiasLike = None,
        at: int | Float[Tensor, "*batch time"] | None = None,
        cache: KVCache | None = None,
    ) -> Float[Tensor, "*batch time width"]:
        """Attend from x to itself, or to a memory.

        Args:
            x: `[*batch, time, width]`, where the queries come from.
            memory: `[*batch, keys, memory_width]`, where keys and values come from, or a pair of tensors, one for
                the keys and one for the values; x itself if not given.
            mask: who may attend to whom, True = may. With a cache the keys are all tokens so far.
            bias: added to the scores, as in `sl.attention`.
            at: where the tokens of x stand, for rotary positions; where the cache ends if not given.
            cache: keys and values of the past; x is added to it. With a memory, the memory's keys and values are
                put there at the first call and taken from there afterwards, while the memory stays the same: for
                other numbers in the same shape they are made anew, another shape is refused.
        """
        check_sequence(self, "x", x, self.width)
        time = x.shape[-2]
        if memory is None:
            for size in self.memory_width:
                if size != self.width:
                    check_sequence(self, "memory (x, as none was given)", x, size)
            q, k, v = self._project_all(x)
            q, k = self._rotate(q, k, at, cache)
            if cache is not None:
                k, v = map(_to_save, _checked(cache).append(k, v))
        else:
            q = self._split_heads(self.query(x), self.heads, self.head_dim)
            k, v = self._read(memory, at, cache)
        bias = self._with_positions(bias, time, k.shape[-2], x.device)
        if cache is not None and is_observed():
            reads_cache(k)
        z = self._attend(q, k, v, mask, bias)  # [*batch, heads, time, value_dim]
        out: Tensor = self.output(z.transpose(-3, -2).flatten(-2))
        return out

    def _attend(self, q: Tensor, k: Tensor, v: Tensor, mask: MaskLike, bias: BiasLike) -> Tensor:
        """Attention itself, in one place: q is `[*batch, heads, time, head_dim]`, k and v have kv_heads."""
        return self._attention(
            q,
            k,
            v,
            mask=mask,
            bias=bias,
            scale=self.scale,
            softcap=self.softcap,
            sinks=self.sinks,
            normalizer=self.normalizer,
            dropout=self.dropout if self.training else 0.0,
            backend=self.backend,
        )

    def _project_all(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Queries, keys and values of one input, `[*batch, heads or kv_heads, time, dim]`."""
        joined = None if torch.is_grad_enabled() else self._joined.of(self.query, self.key, self.value)
        if joined is None:
            return self._split_heads(self.query(x), self.heads, self.head_dim), *self._project(x, x)
        return self._project_joined(x, joined)

    def _project_joined(self, x: Tensor, joined: Affine) -> tuple[Tensor, Tensor, Tensor]:
        if self.heads == self.kv_heads and self.head_dim == self.value_dim:
            # [*batch, time, 3, heads, dim]: three views in all instead of seven.
            together = F.linear(x, *joined).view(*x.shape[:-1], 3, self.heads, self.head_dim)
            q, k, v = together.transpose(-4, -2).unbind(-3)
            return q, k, v
        sizes = self.heads * self.head_dim, self.kv_heads * self.head_dim, self.kv_heads * self.value_dim
        q, k, v = F.linear(x, *joined).split(sizes, -1)
        return (
            self._split_heads(q, self.heads, self.head_dim),
            self._split_heads(k, self.kv_heads, self.head_dim),
            self._split_heads(v, self.kv_heads, self.value_dim),
        )

    def _project(self, for_keys: Tensor, for_values: Tensor) -> tuple[Tensor, Tensor]:
        """Keys and values, `[*batch, kv_heads, keys, dim]`."""
        k = self._split_heads(self.key(for_keys), self.kv_heads, self.head_dim)
        return k, self._split_heads(self.value(for_values), self.kv_heads, self.value_dim)

    def _split_heads(self, x: Tensor, heads: int, dim: int) -> Tensor:
        return x.view(*x.shape[:-1], heads, dim).transpose(-3, -2)

    def _read(self, memory: Memory, at: object, cache: KVCache | None) -> tuple[Tensor, Tensor]:
        """Keys and values of a memory; from the cache, if they are there."""
        if self.positions is not None or at is not None:
            raise InputError(
                "positions count along one sequence",
                expected="cross-attention without positions",
                got=f"a memory and positions={self.positions}, at={at}",
                hint="add positions to the memory before it is read, with an additive scheme",
            )
        pair = memory if isinstance(memory, tuple) else (memory, memory)
        for one, width in zip(pair, self.memory_width, strict=True):
            check_sequence(self, "memory", one, width)
        if cache is None:
            return self._project(*pair)  # type: ignore[arg-type]
        if _checked(cache).length:
            _check_shape(pair, cache)  # type: ignore[arg-type]
            if self._is_cached(pair, cache):  # type: ignore[arg-type]
                return cache.keys, cache.values
        return cache._fill(*self._project(*pair), Source(*pair))  # type: ignore[arg-type]

    def _is_cached(self, pair: tuple[Tensor, Tensor], cache: KVCache) -> bool:
        """Whether the cache holds what would be made of this memory, with the gradient that it would have."""
        if cache._source is None or not cache._source.is_of(*pair):
            return False
        if not torch.is_grad_enabled():
            return True
        made = zip((cache._keys, cache._values), pair, (self.key, self.value), strict=True)
        return all(
            (held is not None and held.requires_grad)
            or not (one.requires_grad or any(p.requires_grad for p in part.parameters()))
            for held, one, part in made
        )

    def _rotate(self, q: Tensor, k: Tensor, at: object, cache: KVCache | None) -> tuple[Tensor, Tensor]:
        if acts_on(self.positions) == "query_key":
            assert isinstance(self.positions, nn.Module)
            start = at if at is not None or cache is None else _checked(cache).length
            return self.positions(q, at=start), self.positions(k, at=start)
        if at is not None:
            raise InputError(
                "this attention does not use `at`",
                expected="at=None, or rotary positions",
                got=f"positions={self.positions}",
                hint="positions=sl.positions.Rotary(head_dim)",
            )
        return q, k

    def _with_positions(self, bias: BiasLike, queries: int, keys: int, device: torch.device) -> BiasLike:
        if not isinstance(self.positions, Bias):
            return bias
        if bias is None:
            return self.positions
        if not isinstance(bias, Tensor):
            raise InputTypeError(
                "this attention has a bias of its own",
                expected="a tensor, which is added to the positions",
                got=type(bias).__name__,
                hint="bias.to_dense(queries, keys)",
            )
        # A tensor is a table already: the sum of both is one more.
        return bias + self.positions.to_dense(queries, keys, device, bias.dtype)

    def extra_repr(self) -> str:
        groups = "" if self.kv_heads == self.heads else f", kv_heads={self.kv_heads}"
        return f"{self.width}, heads={self.heads}{groups}, head_dim={self.head_dim}"


def _split(width: int, heads: int) -> int:
    if width % heads:
        raise InputError(
            "the width cannot be split into equal heads",
            expected=f"a width that is a multiple of heads={heads}",
            got=f"width={width}",
            hint=f"width={-(-width // heads) * heads}, or say head_dim",
        )
    return width // heads


def _to_save(held: Tensor) -> Tensor:
    """What a cache holds, for autograd to save if it likes: the next step writes to the memory of plain numbers."""
    return held.clone() if torch.is_grad_enabled() and not held.requires_grad else held


def _check_shape(pair: tuple[Tensor, Tensor], cache: KVCache) -> None:
    """Another shape is another memory for sure, and the past in a decoder's other caches has read the one before."""
    assert cache._keys is not None
    expected = (*cache._keys.shape[:-3], cache.length)
    for one in pair:
        if one.shape[:-1] != expected:
            raise InputError(
                "the cache holds another memory",
                expected=f"batch {expected[:-1]} and {cache.length} tokens, as at the first call",
                got=f"a memory of shape {tuple(one.shape)}",
                hint="a new cache for a new memory, or cache.reset()",
            )


def _checked(cache: object) -> KVCache:
    if not isinstance(cache, KVCache):
        raise InputTypeError(
            "this is not a cache", expected="KVCache", got=type(cache).__name__, hint="cache=sl.nn.KVCache()"
        )
    return cache
