"""Where the points of a global grid look: fields on the sphere, with latitude and longitude as positions (S0.6).

Every field here is made here: a sum of random waves through the sphere, smooth, without a seam. Some of the grid's
points are hidden, and a small encoder has to say what was there, from the others. It knows a point only by its value
and by its place on the sphere, `sl.positions.LatLon`: for it the date line is no border, and at a pole all meridians
meet. After a short training, less than half a minute, the attention of a point beside the date line is drawn.

    python examples/globe.py --out globe.png

The model and its training are short: src/sightline/lessons/stations.py, which `sightline lesson stations` gives with
words, for stations that are scattered over the globe.

The fields are synthetic and the weights are a toy's: the example shows how to look, not how the weather works.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch
from torch import Tensor

from sightline import plots
from sightline.lessons import stations
from sightline.lessons.stations import NEAR

STEP = 15.0  # degrees between points
PLACES = torch.cartesian_prod(
    torch.arange(-90 + STEP / 2, 90, STEP), torch.arange(-180 + STEP / 2, 180, STEP)
)  # [288, 2] of (latitude, longitude)
QUERY = (52.5, 172.5)  # beside the date line


def fields(count: int, generator: torch.Generator) -> Tensor:
    """Random smooth fields on the grid, `[count, points]`."""
    return stations.fields(count, PLACES, generator)


def kilometres(place: tuple[float, float]) -> Tensor:
    """How far every point of the grid is from a place."""
    return stations.kilometres(PLACES, place)


def main(arguments: list[str] | None = None) -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--out", type=Path, default=Path("globe.png"), help="a .png, .svg or .pdf file")
    options.add_argument("--steps", type=int, default=400, help="of training")
    chosen = options.parse_args(arguments)
    field = fields(1, torch.Generator().manual_seed(1234))[0]  # not one of those it learns from
    query = int(kilometres(QUERY).argmin())
    before = stations.look(stations.Globe(PLACES).eval(), field, query)
    model, error = stations.train(PLACES, chosen.steps)
    weights = stations.look(model, field, query)
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
