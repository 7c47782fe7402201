"""Readings of cells that were named in `stats=`: computed while q, k, v and the gradient are there."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torch import Tensor

from sightline.lens import Sight
from sightline.lens.readings import SIGNED, Extra

if TYPE_CHECKING:
    from sightline.backends.call import Call
    from sightline.watching.record.layer import Part


class Asked:
    """What is asked of one call beside its weights, and what it takes to answer."""

    def __init__(self, requests: list[Any], call: Call | None, row: Tensor | None, v: Tensor | None) -> None:
        self.signed = [request for request in requests if request.of in SIGNED]
        self.norms = [request for request in requests if request.of == "norms"]
        self.call, self.row, self.v = call, row, v

    def read(self, part: Part, grad: Tensor, along: Tensor) -> None:
        """The gradient is there."""
        self._answer(part, self.signed, Extra(v=self.v, grad=grad, along=along))

    def read_norms(self, part: Part, sizes: Tensor, words: str) -> None:
        """The sizes of what keys carry are there."""
        self._answer(part, self.norms, Extra(sizes=sizes, norms_of=words))

    def _answer(self, part: Part, requests: list[Any], extra: Extra) -> None:
        if not requests:
            return
        assert self.call is not None
        assert self.row is not None
        sight = Sight(self.call, self.row, extra=extra).prepare(*requests)
        found = part.extra.setdefault("kept", {})
        for request in requests:
            value = sight.value(request)
            found[request] = tuple(x.cpu() for x in value) if isinstance(value, tuple) else value.cpu()
