"""What is looked at, as whoever writes it down as a program is told."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from sightline.errors import InputError
from sightline.explore.run import Layer, Run

# What can be shown beside the cells: of the Text (row, column, received, rollout), of the rail (link, path, effects),
# of all heads, of what was written, and of what comes next.
PARTS = ("row", "column", "received", "rollout", "link", "path", "effects", "heads", "written", "likely")


@dataclass(frozen=True)
class Walk:
    """A path: the token it begins at, and the sources that somebody chose, by the layer (its place in the run)."""

    origin: int
    taken: Mapping[int, int] = field(default_factory=dict)


@dataclass(frozen=True)
class Model:
    """How a program comes by the model of a run."""

    at_hand: bool = True  # it can be run once more on the same tokens
    held: bool = False  # it is there where the program runs: a notebook's own
    ids: Sequence[int] | None = None  # of the text, where it does not say them
    some: bool = False  # it has more layers than the run
    device: str = "cpu"  # where it is loaded


@dataclass(frozen=True)
class Screen:
    """A head, queries and a key if any, a rectangle if not, what else is shown, and the ids of the target."""

    layer: int
    head: int
    queries: Sequence[int] = ()
    key: int | None = None
    rows: slice | None = None
    columns: slice | None = None
    pool: str = "mean"
    parts: Sequence[str] = ()
    walk: Walk | None = None
    target: tuple[int, int | None, int] | None = None  # the token, the other one, and the position
    model: Model = field(default_factory=Model)


@dataclass(frozen=True)
class Beside:
    """The second of two maps that are compared, and whether they are subtracted."""

    run: Run
    screen: Screen
    difference: bool = False


def checked(run: Run, screen: Screen) -> Layer:
    """The layer that is looked at; all that is named is there."""
    about, view = run.layer(screen.layer), run.view(screen.layer, screen.head)
    view.inside("query", screen.queries or [0], about.queries)
    view.inside("key", [screen.key or 0], about.keys)
    for name, span, length in (("rows", screen.rows, about.queries), ("cols", screen.columns, about.keys)):
        if span is not None and not 0 <= span.start < span.stop <= length:
            got = f"{span.start}:{span.stop}"
            raise InputError(f"the {name} are not of this map", expected=f"inside 0:{length}", got=got, hint="0:1")
    if screen.walk is not None:
        view.inside("query", [screen.walk.origin], about.queries)
        for layer, key in screen.walk.taken.items():
            view.inside("key", [key], run.layer(layer).keys)
    return about
