"""Rotary positions: queries and keys are turned by their position, so their product knows only the distance.

From https://arxiv.org/abs/2104.09864. How the speed of the turning is stretched for long contexts is in
`rotary_scaling`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from sightline.errors import InputError, explain
from sightline.positions.base import check_input, positive, spread, start_or_positions, whole, wide
from sightline.positions.rotary_scaling import read_scaling

if TYPE_CHECKING:
    from jaxtyping import Float
    from torch import Tensor


class Rotary(nn.Module):
    """Turns pairs of channels of q and of k by an angle that grows with the position; called on each of them.

    By default channel i is paired with channel i + dim / 2, as in Llama checkpoints; `interleaved=True` pairs
    neighbours, as in GPT-J. `rotary_dim` turns only the first channels. `scaling` is `rope_scaling` or
    `rope_parameters` of a config.json, as it is (see `rotary_scaling`).

    `at` is None (positions 0, 1, ...), an int (they start there), or a tensor [*batch, time], the same for all heads.

    >>> rotary = Rotary(64)
    >>> q, k = torch.randn(2, 8, 5, 64), torch.randn(2, 2, 5, 64)
    >>> rotary(q).shape, rotary(k).shape
    (torch.Size([2, 8, 5, 64]), torch.Size([2, 2, 5, 64]))
    >>> llama = Rotary(
    ...     128,
    ...     base=500000.0,
    ...     scaling={
    ...         "rope_type": "llama3",
    ...         "factor": 8.0,
    ...         "low_freq_factor": 1.0,
    ...         "high_freq_factor": 4.0,
    ...         "original_max_position_embeddings": 8192,
    ...     },
    ... )
    """

    acts_on = "query_key"

    def __init__(
        self,
        dim: int,
        base: float = 10000.0,
        scaling: Mapping[str, Any] | None = None,
        interleaved: bool = False,
        rotary_dim: int | None = None,
    ) -> None:
        super().__init__()
        self.dim = whole("dim", dim, least=2)
        self.scaling = dict(scaling) if isinstance(scaling, Mapping) else scaling
        self.interleaved = interleaved
        # rope_parameters of newer checkpoints also say the base and the part of the channels that turns.
        told = self.scaling if isinstance(self.scaling, dict) else {}
        self.base = positive("base", _agree("base", base, 10000.0, "rope_theta", told.get("rope_theta")))
        part = told.get("partial_rotary_factor")
        told_dim = None if part is None else int(self.dim * positive("partial_rotary_factor", part))
        rotary_dim = _agree("rotary_dim", rotary_dim, None, "partial_rotary_factor", told_dim)
        self.rotary_dim = whole("rotary_dim", self.dim if rotary_dim is None else rotary_dim, least=2)
        if self.rotary_dim % 2 or self.rotary_dim > self.dim:
            raise InputError(
                explain(
                    "channels are turned in pairs",
                    expected=f"an even rotary_dim of at most dim={self.dim}",
                    got=f"rotary_dim={self.rotary_dim}",
                    hint=f"rotary_dim={min(self.rotary_dim, self.dim) // 2 * 2}",
                )
            )
        self._turning = read_scaling(self.rotary_dim, self.base, self.scaling)
        # No buffers: a cast of the model to half precision must not round the frequencies.
        self._frequencies, self._long = self._turning.tensors(torch.device("cpu"), torch.float64)

    @property
    def attention_factor(self) -> float:
        """What the turned channels of q and of k are multiplied by (1 but for yarn and longrope)."""
        return self._turning.attention_factor

    def forward(
        self, x: Float[Tensor, "*batch heads time dim"], at: int | Float[Tensor, "*batch time"] | None = None
    ) -> Float[Tensor, "*batch heads time dim"]:
        *batch_heads, time, _dim = check_input("Rotary", x, f"[*batch, heads, time, {self.dim}]", self.dim)
        where = start_or_positions(at, batch_heads[:-1], time, x.device)
        angles = self._angles(where, time, x.device)  # [time, pairs] or [*batch, time, pairs]
        if angles.dim() > 2:
            angles = angles.unsqueeze(-3)  # the same for all heads
        dtype = torch.promote_types(x.dtype, torch.float32)
        cos = (angles.cos() * self.attention_factor).to(dtype)
        sin = (angles.sin() * self.attention_factor).to(dtype)
        turned, rest = x[..., : self.rotary_dim].to(dtype), x[..., self.rotary_dim :]
        a, b = (turned[..., 0::2], turned[..., 1::2]) if self.interleaved else turned.chunk(2, dim=-1)
        # a cos - b sin and b cos + a sin; addcmul saves a pass over memory for each.
        pair = torch.addcmul(a * cos, b, sin, value=-1), torch.addcmul(b * cos, a, sin)
        turned = torch.stack(pair, dim=-1).flatten(-2) if self.interleaved else torch.cat(pair, dim=-1)
        turned = turned.to(x.dtype)
        return torch.cat((turned, rest), dim=-1) if rest.shape[-1] else turned

    def _angles(self, where: int | Tensor, time: int, device: torch.device) -> Tensor:
        positions = spread(where, time, device)
        if self._frequencies.device != device:
            self._frequencies, self._long = self._turning.tensors(device, wide(device))
        frequencies = self._frequencies
        if self._turning.grows and time:
            # How far this sequence reaches; of each row for itself, so that a batch equals its members.
            reach = positions.amax(dim=-1)[..., None, None] + 1  # [*batch, 1, 1]
            frequencies = self._turning.stretched(frequencies, self._long, reach)
            if positions.dim() == 1:
                frequencies = frequencies[0]
        return positions[..., None] * frequencies

    def extra_repr(self) -> str:
        return (
            f"{self.dim}, base={self.base}, scaling={self.scaling}, "
            f"interleaved={self.interleaved}, rotary_dim={self.rotary_dim}"
        )


def _agree(name: str, given: Any, default: Any, key: str, told: Any) -> Any:
    """The value from the argument or from the scaling, which may not contradict each other."""
    if told is None:
        return given
    if given not in (default, told):
        raise InputError(
            explain(
                f"{name} is said twice",
                expected=f"{name}={told}, as {key} in scaling says",
                got=f"{name}={given}",
                hint=f"leave {name} out, or {key} out of scaling",
            )
        )
    return told
