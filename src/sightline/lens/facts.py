"""What a sight says without another pass over its map: its call, the number of each row, and what was computed."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from sightline.errors import InputError
from sightline.lens.copies import alone
from sightline.lens.levels import Levels
from sightline.lens.readings import Extra
from sightline.lens.unchanged import Unchanged

if TYPE_CHECKING:
    from jaxtyping import Float

    from sightline.backends.call import Call
    from sightline.masks import Mask


# What a copy makes for itself.
_MADE_ANEW = ("_levels", "_unchanged", "_extra_unchanged")


class Facts:
    """The part of every sight that needs no pass over its map."""

    mask_known = True  # False where a folder was too small for the mask's table

    def __init__(self, call: Call, row: Tensor, flat: bool = False, extra: Extra | None = None) -> None:
        self._levels, self._flat, self._unchanged = Levels(call, row), flat, Unchanged(call, row)
        self._extra = Extra() if extra is None else extra
        self._extra_unchanged = Unchanged.of(self._extra.tensors())
        self._kept: dict[Any, Any] = {}
        self._lacks: str | None = None  # what a file of an older format did not hold

    @property
    def call(self) -> Call:
        """The call that it is a sight of: q and k (None if they were not kept), mask, bias, scale and all else."""
        return self._levels.call

    @property
    def row(self) -> Float[Tensor, "*batch heads queries"]:
        """One number for each row: the lse of its keys alone; for other normalisers than softmax its visible keys."""
        return self._levels.row

    @property
    def kept(self) -> Mapping[Any, Any]:
        """What was computed, by request, as it is held: `[*batch, heads, …]`. To be read, not to be written to.

        >>> import sightline as sl
        >>> list(sl.look(torch.eye(3), torch.eye(3), stats=("entropy", sl.Top(2))).kept)
        ['entropy', Top(n=2)]
        """
        return MappingProxyType(self._kept)

    @property
    def extra(self) -> Extra:
        """What is known beside the weights: v, g, and what follows from them; all None if nothing is."""
        return self._extra

    @property
    def norms_of(self) -> str | None:
        """What the reading `norms` is of, in words; None where it is not known.

        >>> import sightline as sl
        >>> sl.look(torch.eye(3), torch.eye(3), torch.eye(3)).norms_of
        '|v|: the values as they enter attention, without an output projection'
        """
        return self.extra.norms_of

    @property
    def mask(self) -> Mask | None:
        """Which keys each query may see; None: all."""
        return self.call.mask

    @property
    def has_qk(self) -> bool:
        """Whether q and k were kept, so that any tile can be computed exactly."""
        return self.call.q is not None

    @property
    def has_cells(self) -> bool:
        """Whether `tile` can tell any cell."""
        return self.has_qk

    @property
    def shape(self) -> tuple[int, ...]:
        """(*batch, heads, queries, keys)"""
        s = self.call.sizes
        return (s.queries, s.keys) if self._flat else (*s.batch, s.heads, s.queries, s.keys)

    @property
    def device(self) -> torch.device:
        """Where the results are."""
        return self.row.device

    @property
    def lse(self) -> Float[Tensor, "*batch heads queries"]:
        """The natural logarithm of the sum of exp(score) over each row, the sink included; -inf for an empty row."""
        if not self.call.normalizer.is_softmax:
            raise InputError(
                "only softmax has a log-sum-exp",
                expected='normalizer="softmax"',
                got=repr(self.call.normalizer.name),
                hint="sight.total is the sum of each row's weights",
            )
        taken = self._levels.taken
        if taken is None:
            return self._shaped(self.row.clone())  # a copy: weights are computed from it
        # Of a row that sees no key the sink is all there is.
        empty: Any = -torch.inf if self.call.sinks is None else self.call.sinks[..., None].to(self.row.dtype)
        return self._shaped(torch.where(self.row == -torch.inf, empty, self.row + taken))

    @property
    def sink_share(self) -> Float[Tensor, "*batch heads queries"]:
        """How much of each row's weight went to the sink; 0 without sinks."""
        return self._shaped(self._sink())

    def __getstate__(self) -> dict[str, Any]:
        """What `copy` and `pickle` take along: tensors without their graph, and without what they are views of."""
        self._unchanged.check()
        rest = {name: value for name, value in self.__dict__.items() if name not in _MADE_ANEW}
        return alone(rest | {"call": self.call, "row": self.row, "_extra": self._lasting()})

    def __setstate__(self, state: dict[str, Any]) -> None:
        call, row = state.pop("call"), state.pop("row")
        self.__dict__.update(state, _levels=Levels(call, row), _unchanged=Unchanged(call, row))
        self.__dict__.setdefault("_extra", Extra())
        self._extra_unchanged = Unchanged.of(self._extra.tensors())

    def __repr__(self) -> str:
        call = self.call
        kept = ", ".join(sorted({k if isinstance(k, str) else type(k).__name__ for k in self._kept}))
        about = f"shape={self.shape}, normalizer={call.normalizer.name!r}, mask={call.mask}"
        return f"Sight({about}, computed: {kept or 'lse'})"

    def _lasting(self) -> Extra:
        """What is known beside the weights and was not changed since: no reading is made of anything else."""
        return self._extra._replace(**dict.fromkeys(self._extra_unchanged.changed()))

    def _sees(self) -> Tensor:
        """Which rows see a key."""
        return self.row > (-torch.inf if self.call.normalizer.is_softmax else 0.0)

    def _sink(self) -> Tensor:
        taken, sinks = self._levels.taken, self.call.sinks
        if taken is None or sinks is None:
            return torch.zeros_like(self.row)
        alone = (sinks[..., None] > -torch.inf).to(self.row.dtype)
        if self.call.lost is None:
            share = -torch.expm1(-taken)
        else:
            share = (sinks[..., None].to(self.row.dtype) - self.row - taken).exp()
        return torch.where(self.row == -torch.inf, alone, share)

    def _shaped(self, x: Tensor) -> Tensor:
        return x[0] if self._flat else x
