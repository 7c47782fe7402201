"""What the routes behind "why" answer, field by field, as `shapes` has it for the others."""

from __future__ import annotations

from typing_extensions import TypedDict  # that of typing lacks what pydantic needs before Python 3.12

from sightline.web.shapes import whole


@whole
class Grid(TypedDict):
    """One cell in every layer and head; null where it is hidden."""

    query: int
    key: int
    of: str
    heads: list[list[float | None]]


@whole
class Strongest(TypedDict):
    """What a query looks at most in every layer and head: keys and their weights, the strongest first."""

    query: int
    of: str
    heads: list[list[list[tuple[int, float]]]]


@whole
class PathStep(TypedDict):
    """One layer of a path: where it stands, the strongest sources (head, key, weight), and whether it goes on there."""

    layer: int
    query: int
    sources: list[tuple[int, int, float]]
    goes: bool


@whole
class Path(TypedDict):
    """The strongest sources of a token through the layers, from above."""

    query: int
    of: str
    least: float
    steps: list[PathStep]
