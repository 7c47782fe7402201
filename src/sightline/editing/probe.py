"""A run that is not changed, and whose heads' outputs are places where gradients arrive."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

from sightline.editing.apply import given_for, mean_of, patched_for
from sightline.editing.editor import Editor
from sightline.editing.edits import Edits
from sightline.editing.place import Place
from sightline.watching.intercept.caller import names_of
from sightline.watching.intercept.looked import Attended, Edited
from sightline.watching.seen import Seen


class Probe(Editor):
    """Hears every call, and keeps what its heads gave, other edits and all."""

    listens = True

    def __init__(self, model: nn.Module) -> None:
        super().__init__(model, names_of(model), Edits())
        self.heads: dict[str, int] = {}  # of each layer, in the order in which they ran
        self.calls: list[tuple[str, Place, Tensor, Tensor, Tensor | None]] = []

    def wants(self, name: str) -> bool:
        super().wants(name)
        return True

    def changes(self, module: object) -> bool:
        return self.names.get(id(module)) is not None

    def edit(self, name: str, attended: Attended, editing: list[tuple[Editor, str]]) -> Edited:
        others = [(editor, called) for editor, called in editing if editor is not self]
        if others:
            first, called = others[0]
            edited = first.edit(called, attended, others)
        else:
            edited = Edited(attended.given, attended.weights)
        place = self._place(name, attended)
        self.heads[name] = attended.call.sizes.heads
        # Nothing is added to it but a place in the graph: the model may be frozen.
        leaf = torch.zeros_like(edited.out, requires_grad=torch.is_grad_enabled())
        self.calls.append((name, place, edited.out.detach(), leaf, self.real))
        return edited._replace(out=edited.out + leaf)

    def places(self, count: int) -> Iterator[Place]:
        """A place for each layer, to ask for its heads."""
        for index, (name, heads) in enumerate(self.heads.items()):
            yield Place(name, index, 1, count, self.modules, 1, heads, 1, 1, 0, 0, 1, 1, False)

    def first_order(self, target: Tensor, by: Any) -> list[Tensor | None]:
        """For each layer the sum of g . (output - replacement), `[batch, heads]`."""
        leaves = [leaf for *_, leaf, _ in self.calls]
        grads = torch.autograd.grad(target, leaves, torch.ones_like(target), allow_unused=True)
        found: dict[str, Tensor | None] = dict.fromkeys(self.heads)
        with torch.no_grad():
            for (name, place, out, _, real), g in zip(self.calls, grads):
                if g is None:
                    g = torch.zeros_like(out)
                before = found[name]
                new = (g.double() * (out.double() - self._replaced(by, out, place, real))).sum((-1, -2)).cpu()
                found[name] = new if before is None else before + new
        return list(found.values())

    def _replaced(self, by: Any, out: Tensor, place: Place, real: Tensor | None) -> Tensor:
        if isinstance(by, Seen):
            return patched_for(by, out, place).double()
        if isinstance(by, str):
            return torch.zeros_like(out).double() if by == "zero" else mean_of(out, place, real).double()
        return given_for(by, out, place).double()
