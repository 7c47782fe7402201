"""The alignment: what was read along the top, what was written down the side, the strongest link ringed."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from sightline import plots
from sightline.errors import InputError


def test_weights_words_and_marks() -> None:
    weights = torch.rand(10, 12).softmax(-1)
    figure = plots.alignment(weights, "2000-05-05", "May 5th 2000", title="a date")
    axes = figure.axes[0]
    np.testing.assert_array_equal(axes.images[0].get_array(), weights.double().numpy())
    assert "".join(label.get_text() for label in axes.get_yticklabels()) == "2000-05-05"
    assert "".join(label.get_text() for label in axes.get_xticklabels()) == "May␣5th␣2000"
    rings = axes.lines[0]
    assert rings.get_xdata().tolist() == weights.argmax(-1).tolist()
    assert rings.get_ydata().tolist() == list(range(10))
    assert figure.get_suptitle() == "a date"


def test_marks_can_be_left_out() -> None:
    assert not plots.alignment(torch.eye(2), "ab", "ab", mark=False).axes[0].lines


@pytest.mark.parametrize("shape, words", [((2, 3), "written do not fit"), ((3, 2), "read do not fit")])
def test_words_that_do_not_fit(shape: tuple[int, int], words: str) -> None:
    with pytest.raises(InputError, match=words):
        plots.alignment(torch.rand(shape), "abc", "abc")
