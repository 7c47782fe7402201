"""Hidden cells become hugely negative and nothing else changes."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from cases import generator
from sightline.lens.cpu.hiding import LEAST, Limits, Shade
from sightline.lens.cpu.stretches import Stretches

ROWS, COLUMNS = 7, 12
FIRST, STOP = np.array([[0, 0, 2, 2, 5, 9, 12]]), np.array([[0, 3, 3, 8, 8, 12, 12]])
HOLES = torch.tensor([[False, True] * 6])


@pytest.fixture(params=[torch.float32, torch.float64])
def limits(request: pytest.FixtureRequest) -> Limits:
    return Limits.of(Stretches(FIRST, STOP, HOLES), COLUMNS, request.param)


def shades(limits: Limits) -> dict[str, tuple[Shade, torch.Tensor]]:
    """Each kind, over columns 3 to 11, and the cells it hides."""
    part, column = slice(3, 11), torch.arange(3, 11)
    assert limits.holes is not None
    zero = torch.zeros(ROWS, 1, dtype=limits.keys.dtype)
    return {
        "left": (Shade(part, limits.keys[part], limits.first[0]), column < torch.from_numpy(FIRST[0])[:, None]),
        "right": (Shade(part, limits.stop[0], limits.keys[part]), column >= torch.from_numpy(STOP[0])[:, None]),
        "holes": (Shade(part, limits.holes[0, part], zero), HOLES[0, part].expand(ROWS, 8)),
    }


@pytest.mark.parametrize("finite", [True, False])
@pytest.mark.parametrize("kind", ["left", "right", "holes"])
def test_logarithms_are_hidden(kind: str, finite: bool, limits: Limits) -> None:
    shade, cells = shades(limits)[kind]
    logs = torch.randn(ROWS, COLUMNS, generator=generator(0), dtype=limits.keys.dtype)
    if not finite:
        logs[:, 3:11] = logs[:, 3:11].masked_fill(cells, torch.nan)
    found = logs.clone()
    shade.hide(found, torch.empty_like(found), finite)
    assert bool((found[:, 3:11][cells] <= 0.4 * LEAST).all())
    found[:, 3:11][cells] = logs[:, 3:11][cells]
    assert torch.equal(found.nan_to_num(9.0), logs.nan_to_num(9.0))
    assert bool((torch.tensor(0.4 * LEAST, dtype=logs.dtype).exp2() == 0).all())


@pytest.mark.parametrize("kind", ["left", "right", "holes"])
def test_weights_are_marked(kind: str, limits: Limits) -> None:
    shade, cells = shades(limits)[kind]
    weights = torch.rand(ROWS, COLUMNS, generator=generator(0), dtype=limits.keys.dtype)
    weights[:, 3:11] *= ~cells
    found = weights.clone()
    shade.mark(found, torch.empty_like(found))
    assert bool((found[:, 3:11][cells] <= 0.4 * LEAST).all())
    assert torch.equal(found.clamp_min(0.0), weights)
    if kind != "holes":
        for row in found.tolist():
            hidden = [w for w in row if w < 0]
            assert len(set(hidden)) == len(hidden), "what is hidden is never equal"


def test_limits_hold_far_out() -> None:
    """A million keys: a limit is still between two keys."""
    place = 999_999
    far = Limits.of(Stretches(np.array([[place]]), np.array([[place + 1]]), None), place + 2, torch.float32)
    keys = far.keys[place - 1 :]
    assert (keys < far.first[0]).tolist() == [[True, False, False]]
    assert (far.stop[0] < keys).tolist() == [[False, False, True]]
