"""How fast each pair of channels turns: the plain rotary frequencies, and the ways to stretch them for long contexts.

`scaling` is `rope_scaling` or `rope_parameters` of a checkpoint's config.json. With f_i = base ** (-2i / dim):

| rope_type | frequencies | from |
| --- | --- | --- |
| default | f_i | arxiv.org/abs/2104.09864 |
| linear | f_i / factor | arxiv.org/abs/2306.15595 |
| dynamic | those of a larger base, once a sequence is longer than max_position_embeddings | "NTK-aware" scaling |
| llama3 | fast pairs f_i, slow pairs f_i / factor, between them a blend by wavelength | Llama 3.1 |
| yarn | the same with a blend by channel; q and k also grow by an attention factor | arxiv.org/abs/2309.00071 |
| longrope | f_i / short_factor_i, in long sequences / long_factor_i; attention factor | arxiv.org/abs/2402.13753 |

A sequence is as long as its last position says, each row of a batch for itself; nothing is remembered between calls.

Two numbers may stand outside of that dictionary in config.json: `max_position_embeddings` (dynamic, longrope and yarn
without a factor) and `original_max_position_embeddings` (Phi-3). Add them to it where an error asks for them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from sightline.errors import InputError, InputTypeError
from sightline.shapes import as_number

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class Turning:
    """The frequencies of the pairs in radians a step, and what becomes of them when a sequence is long.

    >>> read_scaling(4, 10000.0, None).frequencies
    (1.0, 0.01)
    """

    frequencies: tuple[float, ...]
    attention_factor: float = 1.0
    original: int = 0  # the length beyond which a sequence is long
    long_frequencies: tuple[float, ...] | None = None  # longrope
    growth: float | None = None  # dynamic: the factor

    @property
    def grows(self) -> bool:
        """Whether the frequencies depend on how far the sequence reaches."""
        return self.growth is not None or self.long_frequencies is not None

    def tensors(self, device: torch.device, dtype: torch.dtype) -> tuple[Tensor, Tensor | None]:
        """The frequencies, and those of long sequences where they are given, each [pairs]."""
        long = self.long_frequencies
        return (
            torch.tensor(self.frequencies, device=device, dtype=dtype),
            None if long is None else torch.tensor(long, device=device, dtype=dtype),
        )

    def stretched(self, frequencies: Tensor, long: Tensor | None, reach: Tensor) -> Tensor:
        """The frequencies [pairs] for sequences of lengths `reach` [*batch, 1, 1]: [*batch, 1, pairs]."""
        if long is not None:
            return torch.where(reach > self.original, long, frequencies)
        assert self.growth is not None
        # The base grows by g ** (dim / (dim - 2)); of f_i = base ** (-2i / dim) that leaves g ** (-2i / (dim - 2)).
        g = self.growth * reach.clamp(min=self.original) / self.original - (self.growth - 1)
        pairs = frequencies.shape[-1]
        exponents = torch.arange(pairs, device=frequencies.device, dtype=frequencies.dtype) / (pairs - 1)
        return frequencies * g**-exponents


def read_scaling(dim: int, base: float, scaling: Mapping[str, Any] | None) -> Turning:
    """The turning that a scaling dictionary describes, or an error that says what is missing in it.

    >>> read_scaling(4, 10000.0, {"rope_type": "linear", "factor": 2.0}).frequencies
    (0.5, 0.005)
    """
    plain = [base ** (-2 * i / dim) for i in range(dim // 2)]
    if scaling is None:
        return Turning(tuple(plain))
    if not isinstance(scaling, Mapping):
        raise InputTypeError(
            "scaling must be a dictionary",
            expected="rope_scaling of a config.json, or None",
            got=repr(scaling),
            hint='scaling={"rope_type": "linear", "factor": 2.0}',
        )
    given = {key: value for key, value in scaling.items() if value is not None}
    nested = [key for key, value in given.items() if isinstance(value, Mapping)]
    if nested:
        raise InputError(
            "scaling holds one dictionary per kind of layer",
            expected="the dictionary of one kind",
            got=f"scaling with {', '.join(map(repr, nested))}",
            hint=f"scaling[{nested[0]!r}]",
        )
    kind: Any = given.get("rope_type", given.get("type"))
    if kind is None and not set(given) - _EVERYWHERE:
        kind = "default"
    if not isinstance(kind, str) or kind not in _KINDS:
        raise InputError(
            "this kind of rotary scaling is not known",
            expected=f"rope_type as one of {', '.join(_KINDS)}",
            got=f"rope_type={kind!r}",
            hint='scaling=None, or {"rope_type": "linear", "factor": 2.0}',
        )
    build, known = _KINDS[kind]
    unknown = sorted(set(given) - known - _EVERYWHERE)
    if unknown:
        raise InputError(
            f"scaling of rope_type {kind!r} does not know every key",
            expected=f"keys out of {', '.join(sorted(known | _EVERYWHERE))}",
            got=", ".join(map(repr, unknown)),
            hint="leave them out if they do not change the angles",
        )
    return build(_Settings(kind, given), plain, base)


class _Settings:
    """The numbers of a scaling dictionary, asked for by name."""

    def __init__(self, kind: str, given: dict[str, Any]) -> None:
        self.kind, self.given = kind, given

    def get(self, key: str) -> float | None:
        value = self.given.get(key)
        if value is None:
            return None
        number = as_number(value)
        if number is None or not 0 <= number < float("inf"):
            raise InputError(
                f"scaling[{key!r}] cannot be used",
                expected="a finite number, 0 or more",
                got=repr(value),
                hint="copy the dictionary from config.json",
            )
        return number

    def need(self, *keys: str) -> float:
        """The first of the keys that is there, which must not be 0."""
        for key in keys:
            value = self.get(key)
            if value:
                return value
        raise InputError(
            f"scaling of rope_type {self.kind!r} misses a number",
            expected=" or ".join(map(repr, keys)) + ", above 0",
            got=f"scaling={self.given}",
            hint=f"add {keys[-1]!r} from config.json to scaling",
        )

    def original(self) -> int:
        return int(self.need("original_max_position_embeddings", "max_position_embeddings"))

    def factor(self) -> float:
        """`factor`, or how many times longer the context was made."""
        ratio = self.get("factor")
        if ratio:
            return ratio
        return self.need("factor", "max_position_embeddings") / self.need("original_max_position_embeddings")

    def factors(self, key: str, pairs: int) -> list[float]:
        values = self.given.get(key)
        if not isinstance(values, (list, tuple)) or len(values) != pairs or not all(map(_is_positive, values)):
            got = (
                f"{len(values)} numbers" if isinstance(values, (list, tuple)) and len(values) != pairs else repr(values)
            )
            raise InputError(
                f"scaling[{key!r}] cannot be used",
                expected=f"{pairs} numbers above 0, one for each pair of channels",
                got=got,
                hint="check dim and rotary_dim, and copy the list from config.json",
            )
        return [float(v) for v in values]


def _is_positive(value: object) -> bool:
    number = as_number(value)
    return number is not None and 0 < number < float("inf")


def _default(say: _Settings, plain: list[float], base: float) -> Turning:
    return Turning(tuple(plain))


def _linear(say: _Settings, plain: list[float], base: float) -> Turning:
    factor = say.need("factor")
    return Turning(tuple(f / factor for f in plain))


def _dynamic(say: _Settings, plain: list[float], base: float) -> Turning:
    if len(plain) < 2:
        raise InputError(
            "dynamic scaling needs more than one pair of channels",
            expected="rotary_dim of 4 or more",
            got=2 * len(plain),
            hint='"linear" scaling',
        )
    # In checkpoints of this kind max_position_embeddings is the length of pretraining.
    original = int(say.need("max_position_embeddings", "original_max_position_embeddings"))
    return Turning(tuple(plain), original=original, growth=say.need("factor"))


def _llama3(say: _Settings, plain: list[float], base: float) -> Turning:
    factor, original = say.need("factor"), say.original()
    low, high = say.need("low_freq_factor"), say.need("high_freq_factor")
    if high <= low:
        raise InputError(
            "the blend of llama3 scaling has no room",
            expected="high_freq_factor above low_freq_factor",
            got=f"high {high}, low {low}",
            hint="low_freq_factor=1.0, high_freq_factor=4.0",
        )

    def blend(f: float) -> float:
        turns = original * f / (2 * math.pi)  # how often the pair turns round in the original context
        keep = min(1.0, max(0.0, (turns - low) / (high - low)))
        return keep * f + (1 - keep) * f / factor

    return Turning(tuple(map(blend, plain)))


def _yarn(say: _Settings, plain: list[float], base: float) -> Turning:
    factor, original = say.factor(), say.original()
    if base == 1:
        raise InputError(
            "yarn needs pairs of different speed", expected="a base other than 1", got=base, hint="base=10000.0"
        )
    fast, slow = say.get("beta_fast") or 32.0, say.get("beta_slow") or 1.0
    dim = 2 * len(plain)

    def channel(turns: float) -> float:
        """Which pair turns round that often in the original context, as a fraction."""
        return dim * math.log(original / (turns * 2 * math.pi)) / (2 * math.log(base))

    first, last = channel(fast), channel(slow)
    if say.given.get("truncate", True):
        first, last = math.floor(first), math.ceil(last)
    first, last = max(first, 0), min(last, dim - 1)
    room = last - first or 0.001

    def blend(i: int, f: float) -> float:
        stretch = min(1.0, max(0.0, (i - first) / room))
        return (1 - stretch) * f + stretch * f / factor

    attention_factor = say.get("attention_factor")
    if attention_factor is None:
        mscale, mscale_all_dim = say.get("mscale"), say.get("mscale_all_dim")
        if mscale and mscale_all_dim:
            attention_factor = _yarn_mscale(factor, mscale) / _yarn_mscale(factor, mscale_all_dim)
        else:
            attention_factor = _yarn_mscale(factor, 1.0)
    return Turning(tuple(blend(i, f) for i, f in enumerate(plain)), attention_factor=attention_factor)


def _yarn_mscale(factor: float, mscale: float) -> float:
    return 1.0 if factor <= 1 else 0.1 * mscale * math.log(factor) + 1.0


def _longrope(say: _Settings, plain: list[float], base: float) -> Turning:
    original = say.original()
    short, long = say.factors("short_factor", len(plain)), say.factors("long_factor", len(plain))
    attention_factor = say.get("attention_factor")
    if attention_factor is None:
        factor = say.factor()
        attention_factor = 1.0 if factor <= 1 else math.sqrt(1 + math.log(factor) / math.log(original))
    return Turning(
        tuple(f / s for f, s in zip(plain, short, strict=True)),
        attention_factor=attention_factor,
        original=original,
        long_frequencies=tuple(f / s for f, s in zip(plain, long, strict=True)),
    )


_EVERYWHERE = {
    "rope_type",
    "type",
    "rope_theta",
    "partial_rotary_factor",
    "max_position_embeddings",
    "original_max_position_embeddings",
}
_KINDS: dict[Any, tuple[Callable[[_Settings, list[float], float], Turning], set[str]]] = {
    "default": (_default, set()),
    "linear": (_linear, {"factor"}),
    "dynamic": (_dynamic, {"factor"}),
    "llama3": (_llama3, {"factor", "low_freq_factor", "high_freq_factor"}),
    "yarn": (_yarn, {"factor", "attention_factor", "beta_fast", "beta_slow", "mscale", "mscale_all_dim", "truncate"}),
    "longrope": (_longrope, {"factor", "attention_factor", "short_factor", "long_factor"}),
    "su": (
        _longrope,
        {"factor", "attention_factor", "short_factor", "long_factor"},
    ),  # its name in early Phi-3 checkpoints
}
