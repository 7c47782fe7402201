"""What the routes behind "why" answer, field by field, as `shapes` has it for the others."""

from __future__ import annotations

from typing_extensions import TypedDict  # that of typing lacks what pydantic needs before Python 3.12

from sightline.web.shapes import whole


@whole
class Token(TypedDict):
    """A token that might be written, and its probability."""

    id: int
    text: str
    p: float


@whole
class NextToken(TypedDict):
    """A token that may come next, its probability and its logit."""

    id: int
    text: str
    p: float
    logit: float


@whole
class Next(TypedDict):
    """What comes next: the likeliest tokens, the one asked about and another one; `value`: the difference of logits."""

    after: int
    tokens: list[NextToken]
    token: NextToken
    than: NextToken | None
    value: float


@whole
class Python(TypedDict):
    """What is on the screen, as a program."""

    python: str


@whole
class Effects(TypedDict):
    """What every head did for a token: the target `value` less what it is without that head, by layers and heads.

    `influence` is the first-order figure of the same. `ids` are those of the token and of the other one, and the place.
    """

    token: str
    than: str
    after: int | None
    ids: tuple[int, int | None, int]
    value: float
    exact: list[list[float]]
    influence: list[list[float]]


@whole
class WrittenToken(TypedDict):
    """A token that was written, and the likeliest of those that were not."""

    id: int
    text: str
    p: float
    others: list[Token]


@whole
class Written(TypedDict):
    """What a model wrote after a prompt of so many tokens; and whether it goes on, or waits."""

    prompt: int
    tokens: list[WrittenToken]
    total: int
    writing: bool
    paused: bool


@whole
class Mark(TypedDict):
    """A bookmark: a head by the model's own numbers, what is pinned in it, and a sentence."""

    layer: int
    head: int
    q: int | None
    k: int | None
    text: str


@whole
class Marks(TypedDict):
    """The bookmarks of a run; `saved` if they lie in its folder."""

    marks: list[Mark]
    saved: bool


@whole
class Links(TypedDict):
    """Links of a head, each a query, a key and their weight: the strongest, or those most like a pinned one, first."""

    links: list[tuple[int, int, float]]


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
