"""How a sight is asked: what was computed is kept, and what was not is computed in one pass."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from sightline.errors import InputError
from sightline.lens import geometry
from sightline.lens.facts import Facts
from sightline.lens.plan import compute
from sightline.lens.readings import VALUES, check_known, dot, no_influence, sizes_of_values
from sightline.lens.requests import Picture, of_what, parse, simplest
from sightline.lens.rows import output_and_rows

if TYPE_CHECKING:
    from typing import Self

    from jaxtyping import Float

    from sightline.backends.call import Call
    from sightline.lens.plan import Asked
    from sightline.lens.readings import Extra
    from sightline.lens.requests import Request


class Answers(Facts):
    """The part of every sight that computes."""

    @property
    def influence(self) -> Float[Tensor, "*batch heads queries"]:
        """How much each row raised y: the sum of its influence over all keys, which is g_i . o_i, without a pass.

        >>> import sightline as sl
        >>> q, k, v, g = (torch.randn(5, 8) for _ in range(4))
        >>> sight = sl.look(q, k, v, grad=g)
        >>> torch.allclose(sight.influence, sight.tile(slice(0, 5), slice(0, 5), of="influence").sum(-1), atol=1e-5)
        True
        """
        # A row that sees nothing has an output of 0, whatever g holds there.
        return self._shaped(torch.where(self._sees(), self._along(), 0.0))

    def prepare(self, *stats: Request) -> Self:
        """Compute several statistics in one pass, to be asked for later.

        >>> import sightline as sl
        >>> sight = sl.look(torch.randn(9, 8), torch.randn(9, 8)).prepare("entropy", "received", sl.Top(3))
        """
        missing: list[Asked] = []
        for stat in parse(stats):
            request = self._resolved(stat) if isinstance(stat, Picture) else stat
            if request == "lse":
                _ = self.lse  # known already, or an error
            elif request not in self._kept and request not in missing:
                missing.append(request)
        if missing:
            self._kept.update(self.compute(missing))
        return self

    def value(self, request: Request) -> Any:
        """What was computed for a request, as `kept` holds it; computed now if it was not yet.

        >>> import sightline as sl
        >>> sl.look(torch.randn(5, 8), torch.randn(7, 8)).value("received").shape
        torch.Size([1, 7])
        """
        request = self._resolved(request) if isinstance(request, Picture) else simplest(request)
        if request not in self._kept:
            self._kept.update(self.compute([request]))
        return self._kept[request]

    def compute(self, requests: Sequence[Asked]) -> dict[Any, Any]:
        """The values of some requests in one pass, kept nowhere."""
        self._readable("this statistic")
        for of in dict.fromkeys(map(of_what, requests)):
            self._know(of)
        return compute(self._levels, list(requests), self.extra)

    def _know(self, of: str) -> None:
        """Make sure that a reading can be made: what it needs is there, unchanged, and worked out."""
        if of == "weights":
            return
        check_known(of, self.call, self.extra)
        if of == "norms":
            self._extra_unchanged.check(("v",) if self.extra.sizes is None else ("sizes",))
        else:
            self._extra_unchanged.check(("v", "grad", "along") if of == "pull" else ("v", "grad"))
        if of == "norms" and self.extra.sizes is None:
            assert self.extra.v is not None
            self._learn("sizes", sizes_of_values(self.call, self.extra.v))
            self._extra = self._extra._replace(norms_of=VALUES)
        if of == "pull":
            self._along()

    def _along(self) -> Tensor:
        """g_i . o_i: as it is known, or by one more attention."""
        extra, call = self.extra, self.call
        if extra.along is None:
            if extra.v is None or extra.grad is None:
                raise no_influence(extra)
            self._extra_unchanged.check(("v", "grad"))
            call = self._readable("the influence of rows")
            sizes = call.sizes._replace(value_dim=extra.v.shape[-1])
            with torch.no_grad(), torch.autocast(call.device.type, enabled=False):
                out, _ = output_and_rows(call.replace(v=extra.v.to(call.q.dtype), sizes=sizes), "auto")
                found = dot(extra.grad, out)
                self._learn("along", found if call.lost is None else found * call.lost.neg().exp())
        self._extra_unchanged.check(("along",))
        assert self.extra.along is not None
        return self.extra.along

    def _to_save(self) -> Extra:
        """What a file holds beside the weights: of values their sizes, and themselves only beside a gradient."""
        extra = self._lasting()
        if extra.sizes is None and extra.v is not None:
            extra = extra._replace(sizes=sizes_of_values(self.call, extra.v))
        return extra if extra.sizes is not None else extra._replace(norms_of=None)

    def _learn(self, name: str, tensor: Tensor) -> None:
        new: dict[str, Any] = {name: tensor}
        self._extra = self._extra._replace(**new)
        self._extra_unchanged.also(name, tensor)

    def _resolved(self, picture: Picture) -> Picture:
        """The same picture with its rectangle spelled out, so that it is found again however it was asked for."""
        if picture.rows is None and picture.columns is None:
            return picture
        s = self.call.sizes
        spans: list[slice | None] = []
        for name, pair, length in (("rows", picture.rows, s.queries), ("columns", picture.columns, s.keys)):
            span = geometry.resolve(name, None if pair is None else slice(*pair), length)
            spans.append(None if span == slice(0, length) else span)
        return Picture(
            *(picture.size or (512, 512)),
            cell=picture.cell,
            rows=spans[0],
            columns=spans[1],
            reduce=picture.reduce,
            visible_only=picture.visible_only,
            of=picture.of,
        )

    def _readable(self, what: str) -> Call:
        if self.call.q is None:
            raise InputError(
                f"{what} needs q and k, which were not kept",
                expected="a sight with q and k",
                got="one without" if self._lacks is None else f"one without, from a file of {self._lacks}",
                hint="save with keep_qk=True, or prepare(…) it before saving",
            )
        self._unchanged.check()
        return self.call
