"""A run of images: its tokens are the patches of a picture, beside those of a text where the model reads both.

Layers over the picture and layers over the text attend to different tokens: each is a part, shown as a run of its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from sightline.watching import Seen

# Tokens of a vision model that are no patch: one for the whole picture, and places to keep something.
OTHERS = ("image", "register")


class Layers:
    """Some layers of a run, with what else the run knows.

    `first` is where the patches begin among the tokens, `memory_first` among those of a memory; None where they are
    not.
    """

    def __init__(self, seen: Seen, layers: list[str], first: int | None, memory_first: int | None) -> None:
        self.seen, self.first, self.memory_first = seen, first, memory_first
        self.layers = layers
        if len(layers) < len(seen.layers):
            self.rollout = None  # it goes through all layers

    def __getitem__(self, name: str) -> Any:
        return self.seen[name]

    def __getattr__(self, name: str) -> Any:
        return getattr(self.__dict__["seen"], name)


@dataclass(frozen=True)
class Part:
    """One sequence of tokens that layers attend over: its layers, its tokens, its text if it has one."""

    account: Any
    tokens: Sequence[str]
    memory: Sequence[str] | None
    text: str | None
    named: str | None = None


def parts(seen: Seen, batch: int = 0) -> list[Part]:
    """The parts of one member of a batch; one, for a text or a picture alone."""
    row = seen.tokens[batch] if seen.tokens else None
    memory = seen.memory_tokens[batch] if seen.memory_tokens else None
    text, grid = seen.meta.get("text"), seen.grid
    if grid is None or grid.first + grid.rows * grid.columns > _longest(seen):
        return [Part(seen, row if row is not None else [""] * seen[0].shape[-2], memory, text)]
    patches = [f"{i},{j}" for i in range(grid.rows) for j in range(grid.columns)]
    starts: list[int | None] = seen.meta.get("patches") or []
    inside = starts[batch] if batch < len(starts) else None
    if inside is not None and inside + len(patches) > _longest(seen):
        inside = None
    whole = grid.first + len(patches)
    in_text = inside is not None and grid.first == inside  # no layer of the picture itself was watched
    of_picture = [name for name in seen.layers if _sizes(seen, name) == (whole, whole) and not in_text]
    of_text = [name for name in seen.layers if name not in of_picture]
    found = []
    if of_picture:
        # Words may stand before the patches, then one token for the whole, then registers.
        words = list(row) if row is not None and len(row) < grid.first else []
        others = _others(grid.first - len(words))
        own = list(row) if row is not None and len(row) == whole and inside is None else [*words, *others, *patches]
        named = f"picture, {grid.rows} × {grid.columns} patches"
        account = Layers(seen, of_picture, grid.first, None)
        ready = text if text and not of_text else None
        found.append(Part(account, own, None, "" if ready is None else ready, None if ready else named))
    if of_text:
        length = max(seen[name].shape[-2] for name in of_text)
        tokens = list(row) if row is not None else [""] * length
        if inside is not None:
            tokens[inside : inside + len(patches)] = patches[: max(0, len(tokens) - inside)]
        across = [name for name in of_text if seen.kind(name) == "cross"]
        looks = memory is None and any(_sizes(seen, name)[1] == whole for name in across)
        if looks:
            memory = [*_others(grid.first), *patches]
        account = Layers(seen, of_text, inside, grid.first if looks else None)
        found.append(Part(account, tokens, memory, text))
    return found


def _others(count: int) -> list[str]:
    return [OTHERS[min(i, 1)] for i in range(count)]


def _sizes(seen: Seen, name: str) -> tuple[int, int]:
    queries, keys = seen[name].shape[-2:]
    return queries, keys


def _longest(seen: Seen) -> int:
    return max(_sizes(seen, name)[1] for name in seen.layers)
