"""Anything, not only text: stations on the globe, each with a value and a place, and where one looks (S0.2, S0.6).

Every field here is made here: a sum of random waves through the sphere, smooth, without a seam. Some of the stations
say nothing, and a small encoder has to say what they would have measured, from the others.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sightline import plots
from sightline.lessons.page import Page
from sightline.nn import Encoder
from sightline.positions import LatLon
from sightline.positions.latlon import unit_vector
from sightline.watching import watch

TITLE = "Not only text: stations on the globe"
SOURCES = ("S0.2", "S0.6")
HIDDEN = 0.2  # the share of stations that say nothing
NEAR = 2500.0  # kilometres
STATIONS = 240
STEPS = 400  # of training
FRESH = 64  # fields to try it on
LINE = (50.0, 178.0)  # we look at the station nearest to this place, beside the date line


def lesson(page: Page) -> None:
    places = scattered(STATIONS)
    query = int(kilometres(places, LINE).argmin())
    here = (float(places[query, 0]), float(places[query, 1]))
    page.text(
        f"""A station on the globe is a token: its channel is what it measures, its position is latitude and longitude.
        {STATIONS} stations, scattered at random, are a sequence of T = {STATIONS} with C = 1: no grid, no order, no
        picture. The same encoder serves. A fifth of the stations say nothing, and it has to fill them in from the
        others, of a smooth field."""
    )
    page.text(
        """**Predict**: where does a silent station look? At its neighbours, if it has learnt what near means; and if
        positions are right, at those across the date line just as at the others, though their longitudes differ by
        almost 360 degrees."""
    )
    field = fields(1, places, torch.Generator().manual_seed(1234))[0]  # not one of those it learns from
    torch.manual_seed(0)
    before = look(Globe(places).eval(), field, query)
    model, _ = train(places, STEPS)
    weights = look(model, field, query)
    near = kilometres(places, here) < NEAR
    across = near & ((places[:, 1] < 0) != (here[1] < 0))
    for name, value in (("places", places), ("before", before), ("weights", weights)):
        page.keep(name, value)
    page.keep("near", near)
    page.table(
        ["head", "near, before", f"near, after {STEPS} steps", "of that, across the date line"],
        [
            [h, *(float(maps[h, near].sum()) for maps in (before, weights)), float(weights[h, across].sum())]
            for h in range(len(weights))
        ],
        caption=f"""Weight on the {int(near.sum())} stations within {NEAR:,.0f} km, of which {int(across.sum())} lie
        across the date line. Shared alike they would get {float(near.float().mean()):.3f}.""".replace(
            "\n        ", " "
        ),
    )
    best = int(weights[:, near].sum(-1).argmax())
    most = float(weights[best, near].sum())
    apart = torch.stack([kilometres(places, (float(a), float(b))) for a, b in places])
    around, shared = (everyone(model, field)[best] * (apart < NEAR)).sum(-1), (apart < NEAR).double().mean(-1)
    error, copied = errors(model, apart)
    for name, value in (("around", around), ("error", error), ("copied", copied)):
        page.keep(name, value)
    page.text(
        f"""The head that looks at its neighbours most, head {best}, gives them {most:.2f} of its weight. One station
        could be luck, so each of the {STATIONS} silent in turn: {float(around.mean()):.2f} ± {float(around.std()):.2f}
        of that head's weight lies within {NEAR:,.0f} km, where {float(shared.mean()):.3f} would if it were shared
        alike.""",
        f"""The squared error on silent stations of {FRESH} other fields is {error:.2f} of their variance. To say the
        mean everywhere would be 1; to repeat what the nearest station says that is not silent, {copied:.2f}.
        {beside(error, copied)}""",
    )
    page.picture(
        lambda: plots.on_map(weights, places, query=here, title="Where a silent station looks"),
        "The weights of the ringed station, head by head, on plain longitudes and latitudes.",
        width=60,
    )
    page.picture(
        lambda: plots.on_globe(weights.mean(0), places, query=here, title="The mean of the heads, from above it"),
        "The same on the sphere: the date line is no border.",
    )
    page.text(
        """The fields are synthetic and the weights are a toy's: the lesson shows how to look, not how the weather
        works. `examples/globe.py` is the same on a grid, as a script; the lesson `positions` says what `LatLon` is."""
    )


def scattered(count: int, seed: int = 0) -> Tensor:
    """Random places, evenly over the sphere: `[count, 2]` of (latitude, longitude)."""
    generator = torch.Generator().manual_seed(seed)
    height, turn = torch.rand(2, count, generator=generator)
    return torch.stack(((2 * height - 1).asin().rad2deg(), 360 * turn - 180), -1)


def fields(count: int, places: Tensor, generator: torch.Generator, waves: int = 24) -> Tensor:
    """Random smooth fields, `[count, places]`, of mean 0 and variance 1 over all fields."""
    directions = 3.5 * torch.randn(count, 3, waves, generator=generator)
    phases = 2 * math.pi * torch.rand(count, 1, waves, generator=generator)
    return (unit_vector(places) @ directions + phases).cos().sum(-1) * math.sqrt(2 / waves)


def kilometres(places: Tensor, place: tuple[float, float]) -> Tensor:
    """How far some places are from another, over the sphere."""
    cosine = unit_vector(places) @ unit_vector(torch.tensor([place])).T
    return 6371 * cosine[:, 0].clamp(-1, 1).acos()


class Globe(nn.Module):
    """Values at places in, values out; every place sees every other one."""

    def __init__(self, places: Tensor, width: int = 64, heads: int = 4, finest: float = 15.0) -> None:
        super().__init__()
        self.places = places
        self.embed = nn.Linear(1, width)
        self.unknown = nn.Parameter(torch.zeros(width))  # stands where a value is hidden
        self.encoder = Encoder(width, heads, layers=1, positions=LatLon(width, finest=finest))
        self.readout = nn.Linear(width, 1)

    def forward(self, values: Tensor, hidden: Tensor) -> Tensor:
        tokens = torch.where(hidden[..., None], self.unknown, self.embed(values[..., None]))  # [batch, places, width]
        out: Tensor = self.readout(self.encoder(tokens, at=self.places)).squeeze(-1)
        return out


def train(places: Tensor, steps: int, seed: int = 0) -> tuple[Globe, float]:
    """A model that fills in hidden places, and its squared error there; to say 0 everywhere would be an error of 1."""
    torch.manual_seed(seed)
    generator = torch.Generator().manual_seed(seed)
    model = Globe(places)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3, weight_decay=0.0)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=3e-3, total_steps=steps)
    for _ in range(steps):
        values = fields(16, places, generator)
        hidden = torch.rand(values.shape, generator=generator) < HIDDEN
        loss = F.mse_loss(model(values, hidden)[hidden], values[hidden])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
    return model.eval(), loss.item()


def beside(error: float, copied: float) -> str:
    """What the error is worth, beside that of the simplest guess."""
    if error < 0.9 * copied:
        return "So it does more than to copy its neighbour."
    if error < 1.1 * copied:
        return "So it guesses no better than that: to look near is what these few steps have taught it."
    return "So it guesses worse than that, and is not done learning."


def errors(model: Globe, apart: Tensor) -> tuple[float, float]:
    """The squared error of the model on fields it has not seen, and of repeating the nearest station that speaks."""
    generator = torch.Generator().manual_seed(4321)
    values = fields(FRESH, model.places, generator)
    hidden = torch.rand(values.shape, generator=generator) < HIDDEN
    far = apart.expand(FRESH, -1, -1).masked_fill(hidden[:, None], torch.inf)  # [fields, stations, those that speak]
    with torch.no_grad():
        guessed = model(values, hidden)
    copied = values.gather(1, far.argmin(-1))
    one, other = (F.mse_loss(guess[hidden], values[hidden]).item() for guess in (guessed, copied))
    return one, other


def everyone(model: Globe, field: Tensor, together: int = 48) -> Tensor:
    """The attention of each place, hidden alone, head by head: `[heads, places, places]`."""
    rows = []
    for hidden in torch.eye(len(field), dtype=torch.bool).split(together):
        with torch.no_grad(), watch(model) as seen:
            model(field.expand(len(hidden), -1), hidden)
        maps = seen[0].tile(slice(None), slice(None))  # [the one that is hidden, heads, queries, keys]
        rows.append(maps[torch.arange(len(hidden)), :, hidden.int().argmax(-1)])
    return torch.cat(rows).transpose(0, 1)


def look(model: Globe, field: Tensor, query: int) -> Tensor:
    """The attention of one place, hidden, head by head: `[heads, places]`."""
    hidden = torch.arange(len(field))[None] == query
    with torch.no_grad(), watch(model) as seen:
        model(field[None], hidden)
    return seen[0].tile(query, slice(None))[0, :, 0]
