"""ALiBi: a score loses with distance, each head at its own rate (https://arxiv.org/abs/2108.12409)."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar

import torch

from sightline.biases import Bias, BiasMod
from sightline.errors import InputError
from sightline.portable import Reading, Writing, restored
from sightline.positions.base import whole

if TYPE_CHECKING:
    from collections.abc import Sequence

    from jaxtyping import Float
    from torch import Tensor


def alibi(heads: int) -> Alibi:
    """A bias of -slope * distance for every head, never written out as queries x keys.

    >>> alibi(2).to_dense(3, 3)[0]  # the first head's slope is 2 ** -4
    tensor([[ 0.0000, -0.0625, -0.1250],
            [-0.0625,  0.0000, -0.0625],
            [-0.1250, -0.0625,  0.0000]])
    """
    return Alibi(heads)


@dataclass(frozen=True)
class Alibi(Bias):
    """The bias -slope * |p_i - j| of query i and key j.

    p_i = i + keys - queries is where query i stands among the keys: the last query stands at the last key.

    With 2 queries, 4 keys and slope 1:

    ```
    -2 -1  0 -1
    -3 -2 -1  0
    ```

    >>> alibi(8).slopes[:3].tolist()  # in float64; a tile has the precision it is asked for
    [0.5, 0.25, 0.125]
    >>> alibi(8).tile(slice(100, 102), slice(0, 3), queries=4096, keys=4096).shape
    torch.Size([8, 2, 3])
    """

    acts_on: ClassVar[str] = "score"
    saved_as: ClassVar[str | None] = "alibi"
    saved_fields: ClassVar[tuple[str, ...]] = ("alibi",)
    holds: ClassVar[tuple[str, ...]] = ("heads", "slopes")
    grows: ClassVar[bool] = True

    heads: int
    slopes: Float[Tensor, " heads"] = field(init=False, compare=False, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "heads", whole("heads", self.heads))
        object.__setattr__(self, "slopes", torch.tensor(_slopes(self.heads), dtype=torch.float64, device="cpu"))

    def tile(
        self,
        rows: slice,
        columns: slice,
        queries: int,
        keys: int,
        device: torch.device | str | None = None,
        dtype: torch.dtype = torch.float32,
    ) -> Float[Tensor, "heads r c"]:
        """The bias of queries `rows` and keys `columns`, in a call of `queries` x `keys`.

        >>> alibi(1).tile(slice(1, 2), slice(2, 4), queries=2, keys=4)
        tensor([[[-0.0039,  0.0000]]])
        """
        row = torch.arange(rows.start, rows.stop, device=device) + (keys - queries)
        column = torch.arange(columns.start, columns.stop, device=device)
        # Half precision cannot count past 2048 (float16) or 256 (bfloat16): the product is rounded, not the distance.
        exact = torch.promote_types(dtype, torch.float32)
        distance = (row[:, None] - column).abs()  # [r, c]
        slopes = self.slopes.to(device=device, dtype=exact)
        return (slopes[:, None, None] * (-distance).to(exact)).to(dtype)

    def to_dense(
        self, queries: int, keys: int, device: torch.device | str | None = None, dtype: torch.dtype = torch.float32
    ) -> Float[Tensor, "heads queries keys"]:
        """The whole bias, for looking at and for tests.

        >>> alibi(4).to_dense(3, 5).shape
        torch.Size([4, 3, 5])
        """
        return self.tile(slice(0, queries), slice(0, keys), queries, keys, device, dtype)

    def check(self, batch: tuple[int, ...], heads: int, queries: int, keys: int) -> None:
        """Raise an error when a call with these sizes cannot use this bias.

        >>> alibi(8).check((2,), 8, 5, 5)
        """
        if heads != self.heads:
            raise InputError(
                "the bias was made for another number of heads",
                expected=f"{self.heads} heads in q, as in alibi({self.heads})",
                got=f"{heads} heads, in a call of batch {tuple(batch)}, {queries} queries, {keys} keys",
                hint=f"alibi({heads})",
            )

    def mod(self, batch: tuple[int, ...], queries: int, keys: int, device: torch.device, dtype: torch.dtype) -> BiasMod:
        """The bias of single cells, `mod(b, h, i, j)`."""
        slopes, offset = self.slopes.to(device, dtype), keys - queries
        return lambda b, h, i, j: -slopes[h] * (i + offset - j).abs()

    def select(self, member: tuple[int, ...] | None = None, heads: Sequence[int] | None = None) -> Alibi:
        """The bias of some of the heads, with their slopes; it is the same for all of the batch."""
        if heads is None:
            return self
        return restored(Alibi(len(heads)), {"slopes": self.slopes[list(heads)]})

    def to(self, device: torch.device | str, copy: bool = False) -> Alibi:
        """Its few numbers go wherever a tile of it is asked for."""
        return self

    def flattened(self, batch: tuple[int, ...]) -> Alibi:
        """It has no batch axes."""
        return self

    def unsaved(self) -> str | None:
        """A file says its number of heads alone: the slopes of some heads of a larger model are others."""
        return None if torch.equal(self.slopes.cpu(), Alibi(self.heads).slopes) else "slopes"

    def to_file(self, file: Writing) -> dict[str, int]:
        """Its number of heads."""
        return {"alibi": self.heads}

    @classmethod
    def from_file(cls, file: Reading) -> Any:
        """The bias of so many heads, which are those of the map."""
        heads = file.whole("alibi", 1, 1 << 40)
        if heads != file.heads:
            raise ValueError(f"bias.alibi: {heads} heads for {file.heads}")
        return cls(heads)


def _slopes(heads: int) -> list[float]:
    """2 ** (-8 i / heads); other counts than powers of two take every second slope of the next power for the rest."""
    power = 2 ** math.floor(math.log2(heads))
    slopes = [2 ** (-8 * i / power) for i in range(1, power + 1)]
    between = [2 ** (-8 * i / (2 * power)) for i in range(1, 2 * power + 1, 2)]
    return slopes + between[: heads - power]
