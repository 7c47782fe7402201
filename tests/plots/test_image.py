"""Attention over a picture: the picture, the weights on its patches, a frame around the patch that looks."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from sightline import plots
from sightline.errors import InputError

PICTURE = torch.rand(32, 48, 3)


def test_the_weights_lie_on_their_patches() -> None:
    weights = torch.rand(4, 6)
    figure = plots.on_image(PICTURE, weights, query=(1, 2), title="a patch")
    shown, over = figure.axes[0], figure.axes[1]
    np.testing.assert_array_equal(shown.images[0].get_array(), PICTURE.double().numpy())
    np.testing.assert_array_equal(over.images[1].get_array(), weights.double().numpy())
    # Both fill the same rectangle, so every weight lies on its patch of 8 x 8 pixels.
    assert over.images[0].get_extent() == over.images[1].get_extent() == [0, 48, 32, 0]
    for axes in (shown, over):
        frame = axes.patches[0]
        assert (frame.get_x(), frame.get_y(), frame.get_width(), frame.get_height()) == (16, 8, 8, 8)


def test_a_panel_for_each_head_in_one_scale() -> None:
    heads = torch.rand(3, 4, 6)
    figure = plots.on_image(PICTURE[..., 0], heads)
    assert [axes.get_title() for axes in figure.axes[:4]] == ["the picture", "head 0", "head 1", "head 2"]
    assert {axes.images[1].get_clim() for axes in figure.axes[1:4]} == {(0.0, float(heads.max()))}


@pytest.mark.parametrize(
    "picture, weights, query, words",
    [
        (torch.rand(3, 32, 48), torch.rand(4, 6), None, r"try: image.permute\(1, 2, 0\)"),
        (torch.rand(32, 48) * 255, torch.rand(4, 6), None, "try: image / 255"),
        (torch.full((32, 48), float("nan")), torch.rand(4, 6), None, "expected: numbers from 0 to 1"),
        (PICTURE, torch.rand(24), None, "weights cannot be drawn"),
        (PICTURE, torch.rand(4, 6), (4, 0), "expected: rows 0 to 3, columns 0 to 5"),
    ],
)
def test_what_cannot_be_drawn_is_refused(picture: object, weights: object, query: object, words: str) -> None:
    with pytest.raises(InputError, match=words):
        plots.on_image(picture, weights, query=query)
