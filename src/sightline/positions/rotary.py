"""Rotary positions: queries and keys are turned by their position, so their product knows only the distance.

From https://arxiv.org/abs/2104.09864. How the speed of the turning is stretched for long contexts is in
`rotary_scaling`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor, nn

from sightline.errors import InputError
from sightline.positions.base import check_input, positive, spread, start_or_positions, whole, wide
from sightline.positions.rotary_scaling import read_scaling

if TYPE_CHECKING:
    from jaxtyping import Float


class Turns(NamedTuple):
    """Cosines and sines of the angles of some tokens, channel by channel: `[time, dim]` or `[*batch, 1, time, dim]`.

    A channel becomes cos * itself + sin * its partner, so the sine of each pair's first channel is negative.

    >>> Rotary(2).turns(0, (), 1, torch.device("cpu"), torch.float32)
    Turns(cos=tensor([[1., 1.]]), sin=tensor([[-0., 0.]]))
    """

    cos: Tensor
    sin: Tensor


class Rotary(nn.Module):
    """Turns pairs of channels of q and of k by an angle that grows with the position; called on each of them.

    By default channel i is paired with channel i + dim / 2, as in Llama checkpoints; `interleaved=True` pairs
    neighbours, as in GPT-J. `rotary_dim` turns only the first channels. `scaling` is `rope_scaling` or
    `rope_parameters` of a config.json, as it is (see `rotary_scaling`).

    `at` is None (positions 0, 1, ...), an int (they start there), or a tensor [*batch, time], the same for all heads;
    or what `turns` made of one of these, for all layers at once.

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
                "channels are turned in pairs",
                expected=f"an even rotary_dim of at most dim={self.dim}",
                got=f"rotary_dim={self.rotary_dim}",
                hint=f"rotary_dim={min(self.rotary_dim, self.dim) // 2 * 2}",
            )
        self._turning = read_scaling(self.rotary_dim, self.base, self.scaling)
        # No buffers: a cast of the model to half precision must not round the frequencies.
        self._frequencies, self._long = self._turning.tensors(torch.device("cpu"), torch.float64)

    @property
    def attention_factor(self) -> float:
        """What the turned channels of q and of k are multiplied by (1 but for yarn and longrope)."""
        return self._turning.attention_factor

    def forward(
        self, x: Float[Tensor, "*batch heads time dim"], at: int | Float[Tensor, "*batch time"] | Turns | None = None
    ) -> Float[Tensor, "*batch heads time dim"]:
        *batch_heads, time, _dim = check_input("Rotary", x, f"[*batch, heads, time, {self.dim}]", self.dim)
        turns = at if isinstance(at, Turns) else self.turns(at, batch_heads[:-1], time, x.device, x.dtype)
        if turns.cos.shape[-2] != time:
            raise InputError(
                "the turns were made for another input",
                expected=f"turns of {time} tokens",
                got=f"turns of {turns.cos.shape[-2]}",
                hint="at=…, or rotary.turns for this input",
            )
        part = x if self.rotary_dim == self.dim else x[..., : self.rotary_dim]
        wide_part = part.to(turns.cos.dtype)
        turned = torch.addcmul(wide_part * turns.cos, self._partners(wide_part), turns.sin).to(x.dtype)
        return turned if part is x else torch.cat((turned, x[..., self.rotary_dim :]), dim=-1)

    def turns(
        self,
        at: int | Float[Tensor, "*batch time"] | None,
        batch: Sequence[int],
        time: int,
        device: torch.device,
        dtype: torch.dtype,
    ) -> Turns:
        """How far the channels of tokens are turned: made once, it can be the `at` of q and k of many layers.

        >>> rotary, q = Rotary(64), torch.randn(2, 8, 5, 64)
        >>> turns = rotary.turns(3, q.shape[:-3], 5, q.device, q.dtype)
        >>> torch.equal(rotary(q, at=turns), rotary(q, at=3))
        True
        """
        angles = self._angles(start_or_positions(at, batch, time, device), time, device)
        if angles.dim() > 2:
            angles = angles.unsqueeze(-3)  # the same for all heads
        dtype = torch.promote_types(dtype, torch.float32)
        cos = (angles.cos() * self.attention_factor).to(dtype)
        sin = (angles.sin() * self.attention_factor).to(dtype)
        if self.interleaved:
            return Turns(cos.repeat_interleave(2, -1), torch.stack((-sin, sin), dim=-1).flatten(-2))
        return Turns(torch.cat((cos, cos), dim=-1), torch.cat((-sin, sin), dim=-1))

    def _partners(self, x: Tensor) -> Tensor:
        """For each channel the one it is paired with."""
        if self.interleaved:
            return x.unflatten(-1, (-1, 2)).flip(-1).flatten(-2)
        return x.roll(self.rotary_dim // 2, -1)

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
            f"{name} is said twice",
            expected=f"{name}={told}, as {key} in scaling says",
            got=f"{name}={given}",
            hint=f"leave {name} out, or {key} out of scaling",
        )
    return told
