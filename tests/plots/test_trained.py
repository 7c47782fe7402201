"""What a monitor recorded, drawn: the numbers that it has, a panel for each layer and a line for each head."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import sightline as sl
from sightline import plots
from sightline.errors import InputError


def recorded(layers: int) -> sl.nn.Monitor:
    model = sl.nn.Decoder(16, heads=2, layers=layers)
    with sl.monitor(model, every=2) as monitor:
        for _ in range(5):
            model(torch.randn(3, 7, 16))
            monitor.step()
    return monitor


@pytest.mark.parametrize("what", ["entropy", "max_score", "first_share"])
@pytest.mark.parametrize("layers", [1, 5])
def test_lines_are_the_series(what, layers) -> None:
    monitor = recorded(layers)
    figure = plots.training(monitor, what, title="a training")
    figure.draw_without_rendering()
    assert len(figure.axes) == layers
    for axes in figure.axes:
        series = getattr(monitor.series(axes.get_title()), what)
        for head, line in enumerate(axes.lines):
            np.testing.assert_array_equal(line.get_xdata(), [0, 2, 4])
            np.testing.assert_array_equal(line.get_ydata(), series[:, head].numpy())
        assert len(axes.lines) == 2


def test_what_cannot_be_drawn() -> None:
    with pytest.raises(InputError, match="this is not recorded"):
        plots.training(recorded(1), "loss")
    with pytest.raises(InputError, match="nothing was recorded yet"):
        plots.training(sl.monitor(sl.nn.Decoder(16, heads=2, layers=1)))
