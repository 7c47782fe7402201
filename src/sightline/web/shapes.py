"""What the API answers, field by field: its routes say so, the page's types are made of it, a test holds answers to it.

Raw numbers (tiles, rows, columns, thumbnails, tracks, rollout) and files have no shape.
"""

from __future__ import annotations

from typing import Literal, NotRequired

from pydantic import ConfigDict, with_config
from typing_extensions import TypedDict  # that of typing lacks what pydantic needs before Python 3.12

# Nothing is answered that is not described; but the lines of the steps have a field for every column of their table.
whole = with_config(ConfigDict(extra="forbid"))
with_more = with_config(ConfigDict(extra="allow"))

# Fields named by Python's own words cannot be written in a class.
Problem = TypedDict("Problem", {"error": str, "expected": str, "got": str, "try": str})
Tokens = TypedDict("Tokens", {"from": int, "to": int, "texts": list[str], "kinds": list[int]})


@whole
class Model(TypedDict):
    """A model that can be run here."""

    name: str
    title: str
    causal: NotRequired[bool]
    image: NotRequired[bool]


@whole
class Limits(TypedDict):
    """What the server allows."""

    text_bytes: int
    image_bytes: int
    image_pixels: int
    runs: int
    queued: int
    tokens_a_page: int
    waiting_tiles: int
    tile: int
    models: list[Model]


@whole
class Order(TypedDict):
    """Where an order stands."""

    id: str
    state: Literal["queued", "running", "done", "failed", "cancelled"]
    stage: str
    done: int
    total: int
    position: int
    problem: Problem | None
    model: str
    title: str


@whole
class RunInShort(TypedDict):
    """A run, as the list of runs has it."""

    id: str
    model: str | None
    origin: str
    title: str
    tokens: int
    layer_numbers: list[int]
    growing: bool
    revision: int


@whole
class Runs(TypedDict):
    """All runs, the orders of runs that wait or run, and the last runs that made room for others."""

    runs: list[RunInShort]
    orders: list[Order]
    closed: list[RunInShort]


@whole
class Ordered(TypedDict):
    """An order that was taken: the id of its run, and its place in the queue."""

    id: str
    position: int


@whole
class Layer(TypedDict):
    """One attention layer, by its place in the run and its number in the model.

    `floor` are the lowest levels of its map that can be shown, if any.
    """

    index: int
    number: int
    name: str
    heads: int
    numbers: list[int]
    queries: int
    keys: int
    cross: bool
    exact: bool
    causal: bool
    normalizer: str
    floor: tuple[int, int] | None


@whole
class Image(TypedDict):
    """The patches of a picture: rows, columns, and where they begin among the tokens or the memory, if there.

    `alone`: there are no words beside them.
    """

    rows: int
    columns: int
    first: int | None
    memory: int | None
    alone: bool


@whole
class Aim(TypedDict):
    """What is asked about: a token, another one instead, after a position."""

    token: str
    than: str
    after: int | None


@whole
class Run(TypedDict):
    """A run: its model, its text, its layers, and what attended without being caught.

    `prompt` is how many tokens stand before what the model wrote, if it did, and `asked` their text. A reading of a run
    is a run too: `of` is what its cells are, `base` the run, `most` its largest cell, `aim` what it is for, `value` its
    value. `own` are readings that the run has by itself, `why_not` the reason why no others can be made.
    """

    id: str
    state: Literal["done"]
    model: str | None
    origin: str
    title: str
    text: str
    tokens: int
    memory_tokens: int | None
    layers: list[Layer]
    layer_numbers: list[int]
    unseen: dict[str, str]
    revision: int
    growing: bool
    prompt: int | None
    asked: str | None
    edits: list[str]
    base: str
    of: Literal["weights", "norms", "influence", "pull"]
    signed: bool
    most: float | None
    aim: Aim | None
    value: float | None
    own: list[str]
    image: Image | None
    why_not: str | None


@whole
class Text(TypedDict):
    """The whole text of a run."""

    text: str


@whole
class Measure(TypedDict):
    """How a number of a head is shown; `range` are the ends of its scale, if it has any."""

    name: str
    label: str
    unit: str
    about: str
    range: tuple[float, float] | None


@whole
class Portraits(TypedDict):
    """Every head by layer: its numbers as far as they are known, the heads most like it and how much.

    `measures` are what a portrait lists, in this order; `first` is the head to look at first.
    """

    heads: list[list[dict[str, float | None]]]
    measures: list[Measure]
    similar: list[list[list[tuple[int, int, float]]]]
    first: tuple[int, int]
    complete: bool


@whole
class RowValue(TypedDict):
    """A statistic of a row."""

    name: str
    label: str
    unit: str
    value: float | None


@whole
class Cell(TypedDict):
    """One cell of a map."""

    query: int
    key: int
    visible: bool
    weight: float | None
    rank: NotRequired[int]
    of: NotRequired[int]
    score: NotRequired[float | None]
    entropy: float | None
    reading: NotRequired[float | None]
    others: list[RowValue]


@whole
class Patch(TypedDict):
    """A rectangle of a map, and where its largest weight is, if any cell of it is visible."""

    visible: int
    cells: int
    mean: NotRequired[float]
    max: NotRequired[float]
    at: NotRequired[tuple[int, int]]


@whole
class Link(TypedDict):
    """The strongest link of a head that is not a matter of course: query, key, weight."""

    link: tuple[int, int, float] | None


@whole
class StepsColumn(TypedDict):
    """One column of the worked table."""

    name: str
    heading: str
    symbol: str
    kind: Literal["vector", "number", "weight"]


@with_more
class StepsLine(TypedDict):
    """One key of the worked table, or all the others together; and a number or vector for each column."""

    label: str
    key: int | None
    hidden: bool


@whole
class Steps(TypedDict):
    """How the output of one query comes about."""

    query: int
    label: str
    head: int
    heads: int
    folded: bool
    columns: list[StepsColumn]
    lines: list[StepsLine]
    q: list[float]
    total: float
    sum: list[float] | None
    output: list[float] | None
    difference: float | None
    has_values: bool
    python: NotRequired[str]
    python_key: NotRequired[int]
    projection: NotRequired[list[float]]
