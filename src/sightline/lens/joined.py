"""One sight of heads that lie in several processes: their statistics are here, their q and k are where they were."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Protocol

import torch
from torch import Tensor

from sightline.errors import InputError
from sightline.lens import geometry
from sightline.lens.kept import KeptSight
from sightline.lens.readings import check_of

if TYPE_CHECKING:
    from jaxtyping import Float

    from sightline.lens.plan import Asked


class Holders(Protocol):
    """The processes that hold q and k. All of them must ask for the same, in the same order."""

    def compute(self, requests: Sequence[Asked]) -> dict[Any, Any]: ...

    def tile(self, rows: slice, columns: slice, of: str) -> Tensor: ...


class JoinedSight(KeptSight):
    """The heads of one layer, from several ranks, one after the other.

    What was computed while the model ran is here and is answered here. Anything else is fetched from the ranks that
    hold q and k: all ranks must ask for it.

    >>> import torch
    >>> import sightline as sl
    >>> layer = torch.nn.MultiheadAttention(16, 2, batch_first=True).eval()
    >>> x = torch.randn(1, 5, 16)
    >>> with sl.watch(layer) as seen:
    ...     _ = layer(x, x, x)
    >>> JoinedSight.joined([seen[0], seen[0]], None).shape
    (1, 4, 5, 5)
    """

    _holders: Holders | None = None

    @classmethod
    def joined(cls, parts: Sequence[KeptSight], holders: Holders | None) -> JoinedSight:
        """The sights of some heads each, put one after the other."""
        first, shapes = parts[0].call, {(*part.shape[:1], *part.shape[2:]) for part in parts}
        if len(shapes) > 1 or len({part.call.normalizer.name for part in parts}) > 1:
            raise InputError(
                "these are not the heads of one layer",
                expected="as many examples, queries and keys on every rank",
                got=", ".join(str(part.shape) for part in parts),
                hint="the group along which the heads are divided: seen.gather(mesh['tp'])",
            )
        kept: dict[Any, Any] = {}
        for request, value in parts[0].kept.items():
            values = [part.kept.get(request) for part in parts]
            if any(one is None for one in values):
                continue
            pairs = isinstance(value, tuple)
            kept[request] = (
                tuple(torch.cat([one[i] for one in values], 1) for i in range(len(value)))  # type: ignore[index]
                if pairs
                else torch.cat(values, 1)  # type: ignore[arg-type]
            )
        heads, kv_heads = (sum(getattr(part.call.sizes, name) for part in parts) for name in ("heads", "kv_heads"))
        sinks, lost = [part.call.sinks for part in parts], [part.call.lost for part in parts]
        if any(one is not None for one in lost):
            every = [part._levels.taken for part in parts]
            lost = [torch.zeros_like(part.row) if one is None else one for one, part in zip(every, parts)]
        shared = len(parts) == 1 or _of_all_heads(parts[0])
        call = first.replace(
            q=None,
            k=None,
            v=None,
            bias=None,
            sizes=first.sizes._replace(heads=heads, kv_heads=kv_heads),
            mask=first.mask if shared else None,
            sinks=None if any(one is None for one in sinks) else torch.cat(sinks, -1),  # type: ignore[arg-type]
            lost=None if any(one is None for one in lost) else torch.cat(lost, 1),  # type: ignore[arg-type]
        )
        sight = cls(call, torch.cat([part.row for part in parts], 1), kept)
        sight.mask_known = shared and all(part.mask_known for part in parts)
        sight._holders = holders
        return sight

    def compute(self, requests: Sequence[Asked]) -> dict[Any, Any]:
        """What follows from what is here, or else what those compute who hold q and k."""
        try:
            return super().compute(requests)
        except InputError:
            if self._holders is None:
                raise
        return self._holders.compute(requests)

    def tile(
        self, rows: slice | int, columns: slice | int, of: str = "weights"
    ) -> Float[Tensor, "batch heads rows columns"]:
        """The exact weights of any rectangle: of a small map from here, else from who holds q and k; all must ask."""
        s = self.call.sizes
        if self._holders is None or (of == "weights" and self._map() is not None):
            return super().tile(rows, columns, of)
        band, span = geometry.resolve("rows", rows, s.queries), geometry.resolve("columns", columns, s.keys)
        return self._holders.tile(band, span, check_of(of))


def _of_all_heads(part: KeptSight) -> bool:
    """Whether the mask says the same of every head, so that it is that of the others too."""
    mask, (_, _, queries, keys) = part.mask, part.shape
    if mask is None or mask.is_positional or not queries or not keys:
        return True
    cell = mask.tile(slice(0, 1), slice(0, 1), queries, keys, part.device)
    return cell.dim() < 3 or cell.shape[-3] == 1
