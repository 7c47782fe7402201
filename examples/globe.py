"""Where the points of a global grid look: fields on the sphere, with latitude and longitude as positions (S0.6).

Every field here is made here: a sum of random waves through the sphere, smooth, without a seam. Some of the grid's
points are hidden, and a small encoder has to say what was there, from the others. It knows a point only by its value
and by its place on the sphere, `sl.positions.LatLon`: for it the date line is no border, and at a pole all meridians
meet. After a short training, less than half a minute, the attention of a point beside the date line is drawn.

    python examples/globe.py --out globe.png

The fields are synthetic and the weights are a toy's: the example shows how to look, not how the weather works.
"""

from __future__ import annotations

import argparse
import math
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import sightline as sl
from sightline import plots
from sightline.positions.latlon import unit_vector
from sightline.watching import watch

STEP = 15.0  # degrees between points
PLACES = torch.cartesian_prod(
    torch.arange(-90 + STEP / 2, 90, STEP), torch.arange(-180 + STEP / 2, 180, STEP)
)  # [288, 2] of (latitude, longitude)
HIDDEN = 0.2  # the share of points that is hidden
QUERY = (52.5, 172.5)  # beside the date line
NEAR = 2500.0  # kilometres


def fields(count: int, generator: torch.Generator, waves: int = 24) -> Tensor:
    """Random smooth fields, `[count, points]`, of mean 0 and variance 1 over all fields."""
    directions = 3.5 * torch.randn(count, 3, waves, generator=generator)
    phases = 2 * math.pi * torch.rand(count, 1, waves, generator=generator)
    return (unit_vector(PLACES) @ directions + phases).cos().sum(-1) * math.sqrt(2 / waves)


def kilometres(place: tuple[float, float]) -> Tensor:
    """How far every point of the grid is from a place, over the sphere."""
    cosine = unit_vector(PLACES) @ unit_vector(torch.tensor([place])).T
    return 6371 * cosine[:, 0].clamp(-1, 1).acos()


class Globe(nn.Module):
    """Points of a grid in, values out; every point sees every other one."""

    def __init__(self, width: int = 64, heads: int = 4) -> None:
        super().__init__()
        self.embed = nn.Linear(1, width)
        self.unknown = nn.Parameter(torch.zeros(width))  # stands where a value is hidden
        self.encoder = sl.nn.Encoder(width, heads, layers=1, positions=sl.positions.LatLon(width, finest=STEP))
        self.readout = nn.Linear(width, 1)

    def forward(self, values: Tensor, hidden: Tensor) -> Tensor:
        tokens = torch.where(hidden[..., None], self.unknown, self.embed(values[..., None]))  # [batch, points, width]
        out: Tensor = self.readout(self.encoder(tokens, at=PLACES)).squeeze(-1)
        return out


def train(steps: int, seed: int = 0) -> tuple[Globe, float]:
    """A model that fills in hidden points, and its squared error there; to say 0 everywhere would be an error of 1."""
    torch.manual_seed(seed)
    generator = torch.Generator().manual_seed(seed)
    model = Globe()
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3, weight_decay=0.0)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=3e-3, total_steps=steps)
    for _ in range(steps):
        values = fields(16, generator)
        hidden = torch.rand(values.shape, generator=generator) < HIDDEN
        loss = F.mse_loss(model(values, hidden)[hidden], values[hidden])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
    return model.eval(), loss.item()


def look(model: Globe, field: Tensor) -> Tensor:
    """The attention of the point at QUERY, hidden, head by head: `[heads, points]`."""
    query = int(kilometres(QUERY).argmin())
    hidden = torch.zeros(1, len(PLACES), dtype=torch.bool)
    hidden[0, query] = True
    with torch.no_grad(), watch(model) as seen:
        model(field[None], hidden)
    return seen[0].tile(slice(query, query + 1), slice(None))[0, :, 0]


def main(arguments: list[str] | None = None) -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--out", type=Path, default=Path("globe.png"), help="a .png, .svg or .pdf file")
    options.add_argument("--steps", type=int, default=400, help="of training")
    chosen = options.parse_args(arguments)
    field = fields(1, torch.Generator().manual_seed(1234))[0]  # not one of those it learns from
    before = look(Globe().eval(), field)
    model, error = train(chosen.steps)
    weights = look(model, field)
    title = f"Where a hidden point looks, after {chosen.steps} steps"
    plots.save(plots.on_map(weights, PLACES, query=QUERY, title=title), chosen.out)
    beside = chosen.out.with_stem(f"{chosen.out.stem}-field")
    plots.save(
        plots.on_map(field, PLACES, query=QUERY, title="The field", label="value", colours="cividis", lowest=None),
        beside,
    )
    round_one = chosen.out.with_stem(f"{chosen.out.stem}-sphere")
    mean = "The same from above it: the mean of the heads"
    plots.save(plots.on_globe(weights.mean(0), PLACES, query=QUERY, title=mean), round_one)
    near, across = (
        kilometres(QUERY) < NEAR,
        PLACES[:, 1] < 0,
    )  # 172.5 degrees east: west of Greenwich is across the line
    print(f"error on hidden points: {error:.2f} of their variance")
    for name, maps in (("untrained", before), ("trained", weights)):
        shares = ", ".join(f"{share:.2f}" for share in maps[:, near].sum(-1).tolist())
        line = maps[:, near & across].sum(-1).max().item()
        print(f"{name}: points within {NEAR:,.0f} km get {shares} of the attention of the heads;")
        print(f"    those of them across the date line up to {line:.2f}")
    print(f"equal shares would be {near.float().mean():.3f}; drawn in {chosen.out}, {beside} and {round_one}")


if __name__ == "__main__":
    main()
