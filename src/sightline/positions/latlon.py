"""Places on a sphere: the date line is no border, and at a pole every longitude is the same place."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch
from torch import nn

from sightline.errors import InputError
from sightline.positions.base import add, check_input, check_positions, positive, whole, wide

if TYPE_CHECKING:
    from jaxtyping import Float
    from torch import Tensor


def unit_vector(places: Float[Tensor, "*batch time 2"]) -> Float[Tensor, "*batch time 3"]:
    """(latitude, longitude) in degrees to the point (x, y, z) on the unit sphere.

    >>> unit_vector(torch.tensor([[90.0, 10.0], [90.0, -70.0]])).abs()
    tensor([[0., 0., 1.],
            [0., 0., 1.]])
    """
    latitude, longitude = places.unbind(-1)
    # cos(90 degrees) in floats is not 0, but sin(0) is: the distance from the pole makes the pole one exact point.
    ring = torch.deg2rad(90 - latitude.abs()).sin()
    # -180 and 180 are brought to the same number before they meet a sine.
    turn = torch.deg2rad(longitude.remainder(360))
    return torch.stack((ring * turn.cos(), ring * turn.sin(), torch.deg2rad(latitude).sin()), dim=-1)


class LatLon(nn.Module):
    """Adds waves of the point (x, y, z) on the unit sphere, so places that are near each other look alike.

    `at` is a tensor [*batch, time, 2] of (latitude, longitude) in degrees: latitudes -90 to 90, any longitude.
    The slowest wave tells every two places apart; the fastest turns by a quarter over `finest` degrees.

    >>> stations = torch.tensor([[52.5, 13.4], [-33.9, 151.2]])  # Berlin, Sydney
    >>> LatLon(64)(torch.zeros(7, 2, 64), at=stations).shape
    torch.Size([7, 2, 64])
    """

    acts_on = "input"

    def __init__(self, width: int, finest: float = 1.0) -> None:
        super().__init__()
        self.width = whole("width", width, least=3)  # sines of x, y and z: fewer would let places collide
        self.finest = positive("finest", finest)

    def forward(
        self, x: Float[Tensor, "*batch time width"], at: Float[Tensor, "*batch time 2"] | None = None
    ) -> Float[Tensor, "*batch time width"]:
        *batch, time, width = check_input("LatLon", x, f"[*batch, time, {self.width}]", self.width)
        point = unit_vector(self._places(at, batch, time, x.device).to(wide(x.device)))
        steps = -(-width // 6)  # sine and cosine of three coordinates for each frequency; the last may be cut short
        fastest = max(1.0, math.pi / 2 / math.radians(self.finest))
        ladder = torch.arange(steps, device=x.device, dtype=point.dtype) / max(1, steps - 1)
        angles = fastest ** ladder[:, None] * point[..., None, :]  # [*batch, time, steps, 3]
        return add(x, torch.cat((angles.sin(), angles.cos()), dim=-1).flatten(-2)[..., :width])

    def _places(self, at: object, batch: list[int], time: int, device: torch.device) -> Tensor:
        if at is None or (not isinstance(at, torch.Tensor) and hasattr(at, "__index__")):
            raise InputError(
                "places on a sphere have no order to count",
                expected="a tensor [*batch, time, 2] of (latitude, longitude) in degrees",
                got=f"at={at!r}",
                hint="at=torch.tensor([[latitude, longitude], ...])",
            )
        places = check_positions(at, batch, time, device, coordinates=2)
        latitude, longitude = places.unbind(-1)
        if not bool((latitude.abs() <= 90).all()):  # NaN is not <= 90 either
            raise InputError(
                "a latitude lies beyond the poles",
                expected="latitudes from -90 to 90 degrees",
                got=f"latitudes from {latitude.min().item():g} to {latitude.max().item():g}",
                hint="the order is (latitude, longitude), in degrees; at.flip(-1) turns it round",
            )
        if not bool(longitude.isfinite().all()):
            raise InputError(
                "a longitude is not a number",
                expected="finite longitudes in degrees",
                got="NaN or infinity",
                hint="leave the tokens without a place out",
            )
        return places

    def extra_repr(self) -> str:
        return f"{self.width}, finest={self.finest}"
