"""Head portraits: what each head does, in six numbers."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor, nn

from sightline.errors import InputError, MissingExtraError
from sightline.lens.statistics import DISTANCE, ENTROPY, Shown, kept_rows
from sightline.watching.read.html import portraits_svg
from sightline.watching.read.measures import named
from sightline.watching.record.shares import real_keys

if TYPE_CHECKING:
    from sightline.watching.seen import LayerLike, Seen


class Portrait(NamedTuple):
    """One head: mean shares of the previous, the first and the same token, mean distance and entropy, induction.

    Means are over all queries that are not padding, in all sequences of the batch. What has no meaning (the previous
    token in cross-attention) or was not computed is None.

    >>> Portrait("encoder.0", 3, 0.9, 0.05, 0.01, 1.2, 0.4, None).previous
    0.9
    """

    layer: str
    head: int
    previous: float | None
    first: float | None
    same: float | None
    distance: float | None
    entropy: float | None
    induction: float | None


# How a portrait's numbers are shown.
MEASURES = named("previous", "first", "same", DISTANCE.name, ENTROPY.name, "induction")


class Portraits(list[Portrait]):
    """The portraits of all heads, layer by layer: a list, a table, and a picture.

    `others` are the means of the other row statistics that were computed, declared ones included, one for each head.

    >>> Portraits([Portrait("encoder.0", 3, 0.9, 0.05, 0.01, 1.2, 0.4, None)])[0].head
    3
    """

    def __init__(self, portraits: Iterable[Portrait] = (), others: Iterable[dict[str, float | None]] = ()) -> None:
        super().__init__(portraits)
        self.others: list[dict[str, float | None]] = list(others)

    def measures(self) -> dict[str, tuple[Shown, list[float | None]]]:
        """Every measure with how it is shown and its value for each head."""
        found = {shown.name: (shown, [getattr(one, shown.name) for one in self]) for shown in MEASURES}
        for shown in kept_rows(dict.fromkeys(name for one in self.others for name in one)).values():
            found[shown.name] = (shown, [one.get(shown.name) for one in self.others])
        return found

    def table(self) -> Any:
        """A pandas DataFrame with one row for every head."""
        try:
            import pandas
        except ImportError as error:
            raise MissingExtraError(
                "a table needs pandas",
                expected="pandas to be installed",
                got="no such package",
                hint="pip install pandas; the portraits are a list of named tuples without it",
            ) from error
        table = pandas.DataFrame(self, columns=list(Portrait._fields))
        for name, (_, values) in self.measures().items():
            if name not in table.columns:
                table[name] = values
        return table

    def svg(self) -> str:
        """One picture: a small map of layers x heads for every measure."""
        return portraits_svg(self)

    def _repr_html_(self) -> str:
        return self.svg()


def portraits(seen: Seen, model: nn.Module | None = None) -> Portraits:
    """The portraits of all watched heads; with a model, induction is measured on a repeated random sequence."""
    measured = {} if model is None else induction(model)
    found = Portraits()
    for layer in seen._layers.values():
        _add_layer(found, layer, measured, model is not None)
    return found


def _add_layer(found: Portraits, layer: LayerLike, measured: dict[tuple[str, int], float], instead: bool) -> None:
    sight = layer.sight()
    heads = sight.shape[1]
    numbers = range(heads) if layer.heads is None else layer.heads
    seen = (sight.row > -torch.inf) & (sight.row < torch.inf)  # rows that see something
    real = layer.rows("real")
    if real is not None:
        seen = seen & real[:, None]
    means: dict[str, list[float] | None] = {}
    for name in ("previous", "first", "same"):
        means[name] = _mean(layer.rows(name), seen, after_first=name == "previous")
    for name in kept_rows([ENTROPY.name, DISTANCE.name, *sight.kept]):
        means[name] = _mean(sight.kept.get(name), seen)
    if means[DISTANCE.name] is None and layer.kind == "self":
        means[DISTANCE.name] = _distance(layer)
    repeated, looks = layer.rows("repeated"), layer.rows("induction")
    means["induction"] = None
    if repeated is not None and looks is not None:
        means["induction"] = _mean(looks, seen & repeated[:, None])
    others = means.keys() - set(Portrait._fields)
    for i, head in enumerate(numbers):
        values = {name: None if mean is None or mean[i] != mean[i] else mean[i] for name, mean in means.items()}
        if instead:
            values["induction"] = measured.get((layer.name, head))
        found.others.append({name: values.pop(name) for name in means if name in others})
        found.append(Portrait(layer.name, head, **values))


def _mean(rows: Tensor | None, seen: Tensor, after_first: bool = False) -> list[float] | None:
    """The mean over rows of each head, over the batch; NaN where there is no row."""
    if rows is None:
        return None
    seen = seen.clone()
    if after_first and seen.shape[-1] > 1:
        # The first token has no previous one.
        first = seen.int().argmax(-1, keepdim=True)
        seen.scatter_(-1, first, False)
    total = torch.where(seen, rows.double(), 0.0).sum((0, 2))
    return (total / seen.sum((0, 2))).tolist()


def _distance(layer: LayerLike) -> list[float] | None:
    """The mean distance, from what each key received: a query that does not look ahead stands after what it looks at.

    The sum over queries of (place - key) is the sum of places less the sum over keys of key x received.
    """
    sight = layer.sight()
    received = sight.kept.get("received")
    _, _, queries, keys = sight.shape
    if received is None or real_keys(sight.mask, keys, received.device) is not None:
        return None
    if sight.call.sinks is not None or sight.call.lost is not None:
        return None  # a sink takes more of one row than of another: what keys received is no mean over rows
    weights = sight.due.double()
    places = torch.arange(queries, dtype=torch.float64) + keys - queries
    looks = (received.double() * torch.arange(keys)).sum(-1)
    rows = (weights * places).sum(-1) - looks
    return (rows.sum(0) / weights.sum(-1).sum(0)).tolist()


@torch.no_grad()
def induction(
    model: nn.Module, vocabulary: int | None = None, length: int = 64, batch: int = 4, seed: int = 0
) -> dict[tuple[str, int], float]:
    """Induction scores of all heads, measured: the model reads random tokens twice over.

    In the second half, the score is the mean weight of the token that came after the same token in the first half.

    >>> from sightline.nn import Decoder
    >>> model = nn.Sequential(nn.Embedding(50, 16), Decoder(16, heads=2, layers=1)).eval()
    >>> sorted(induction(model, length=8))
    [('1.layers.0.attention', 0), ('1.layers.0.attention', 1)]
    """
    from sightline.watching.api import watch

    if vocabulary is None:
        table = next((m for m in model.modules() if isinstance(m, nn.Embedding)), None)
        size = getattr(getattr(model, "config", None), "vocab_size", None) or getattr(table, "num_embeddings", None)
        if size is None:
            raise InputError(
                "how many tokens the model knows is not to be seen",
                expected="an embedding, or a config with vocab_size",
                got=type(model).__name__,
                hint="induction(model, vocabulary=50_000)",
            )
        vocabulary = int(size)
    first = next(model.parameters(), torch.zeros(()))
    draw = torch.Generator().manual_seed(seed)
    half = torch.stack([torch.randperm(vocabulary, generator=draw)[:length] for _ in range(batch)])
    ids = torch.cat([half, half], -1).to(first.device)
    training = model.training
    model.eval()
    try:
        with watch(model, stats=("shares",)) as seen:
            model(ids)
    finally:
        model.train(training)
    return {(p.layer, p.head): p.induction for p in seen.portraits() if p.induction is not None}
