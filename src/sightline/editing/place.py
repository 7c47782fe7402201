"""Where one call stands in a run: its layer, its heads, and which columns its queries and keys are."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from sightline.errors import InputError
from sightline.nn.observe.select import chooses

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class Place:
    """One attention call among those of a run. Positions are columns as they were given to the model."""

    name: str
    index: int  # in the order in which layers run
    number: int  # of the call among those of this layer in a pass, from 1 on
    layers: int | None  # how many there are, if that is known
    modules: list[str]
    batch: int
    heads: int
    queries: int
    keys: int
    first_query: int
    first_key: int
    query_end: int  # of the prompt: where negative columns count from
    key_end: int
    cross: bool
    given: int | None = None  # members of the batch that the model was given, where that is known
    means: dict[str, Tensor] = field(default_factory=dict)  # of the heads of a layer in the prompt

    def is_layer(self, layer: int | str) -> bool:
        """Whether this is the layer of an index, a name, or a pattern."""
        if isinstance(layer, str):
            base, _, number = layer.rpartition("#")
            if base and number.isdigit():
                return int(number) == self.number and chooses(base, self.name, self.modules)
            return chooses(layer, self.name, self.modules)
        if layer >= 0:
            return layer == self.index
        if self.layers is None:
            raise InputError(
                "layers that are counted from the end are known only when all have run",
                expected="an index from the front, a name, or a model that has run inside sl.edit before",
                got=layer,
                hint="run the model once inside the block before adding this edit",
            )
        return layer + self.layers == self.index
