"""The labelled map shows the weights that are there, under the words they belong to."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import sightline as sl
from sightline import plots
from sightline.errors import InputError
from sightline.plots.heat import PIXELS

WORDS = ["I", "am", "not", "interested", "in", "this", "workshop", "now"]


def drawn(figure: object, panel: int = 0) -> np.ndarray:
    return np.asarray(figure.axes[panel].images[0].get_array())


def texts(labels: list) -> list[str]:
    return [label.get_text() for label in labels]


def test_a_sight_is_drawn_exactly_with_its_words() -> None:
    x = torch.randn(8, 16, dtype=torch.float64)
    figure = plots.map(sl.look(x, x, mask=sl.causal()), WORDS, title="who looks where")
    scores = (x @ x.T / 4).masked_fill(~torch.ones(8, 8).tril().bool(), -torch.inf)
    np.testing.assert_allclose(drawn(figure), scores.softmax(-1).numpy(), atol=1e-12)
    axes = figure.axes[0]
    assert texts(axes.get_xticklabels()) == texts(axes.get_yticklabels()) == WORDS
    assert (axes.get_xlabel(), axes.get_ylabel()) == ("key", "query")
    assert figure.get_suptitle() == "who looks where"


def test_small_maps_carry_their_numbers_and_hidden_cells_none() -> None:
    x = torch.randn(8, 16)
    figure = plots.map(sl.look(x, x, mask=sl.causal(), normalizer="uniform"), WORDS)
    written = texts(figure.axes[0].texts)
    assert written == [f"{1 / row:.2f}" for row in range(1, 9) for _ in range(row)]


def test_one_panel_for_each_head_or_one_head_alone() -> None:
    weights = torch.rand(3, 4, 5)
    figure = plots.map(weights)
    assert texts([axes.title for axes in figure.axes[:3]]) == ["head 0", "head 1", "head 2"]
    for head in range(3):
        np.testing.assert_array_equal(drawn(figure, head), weights[head].double().numpy())
        alone = plots.map(weights, head=head)
        np.testing.assert_array_equal(drawn(alone), weights[head].double().numpy())
    # All panels have one scale: the same colour is the same weight.
    assert {axes.images[0].get_clim() for axes in figure.axes[:3]} == {(0.0, float(weights.max()))}


def test_keys_of_their_own() -> None:
    figure = plots.map(torch.rand(2, 3), ["a", "b"], ["x", "y", "z"])
    assert texts(figure.axes[0].get_xticklabels()) == ["x", "y", "z"]
    assert texts(plots.map(torch.rand(2, 3), ["a", "b"]).axes[0].get_xticklabels()) != ["a", "b"]


def test_a_long_sight_is_a_picture_of_its_largest_weights() -> None:
    q, k = torch.randn(1, 2, 40, 8), torch.randn(1, 2, 2 * PIXELS, 8)
    sight = sl.look(q, k)
    figure = plots.map(sight)
    assert drawn(figure).shape == (40, PIXELS)
    whole = sight.tile(slice(None), slice(None))[0, 1].double()
    np.testing.assert_allclose(drawn(figure, 1), whole.view(40, PIXELS, 2).amax(-1).numpy(), rtol=1e-5)
    # The axes still count tokens.
    assert figure.axes[0].images[0].get_extent() == [-0.5, 2 * PIXELS - 0.5, 39.5, -0.5]


def test_of_many_tokens_some_are_named() -> None:
    names = [f"t{i}" for i in range(200)]
    figure = plots.map(torch.rand(200, 200), names)
    shown = texts(figure.axes[0].get_yticklabels())
    assert 10 < len(shown) <= 72
    assert shown == names[:: int(shown[1][1:])]


def test_nothing_attended_is_dark_and_nan_is_blank(tmp_path: object) -> None:
    assert plots.map(torch.zeros(2, 2)).axes[0].images[0].get_clim() == (0.0, 1.0)
    figure = plots.map(torch.tensor([[float("nan"), 0.5], [0.25, 0.25]]))
    assert figure.axes[0].images[0].get_clim() == (0.0, 0.5)


@pytest.mark.parametrize(
    "weights, options, words",
    [
        (torch.rand(2, 3, 4, 4), {}, r"expected: \[queries, keys\] or \[heads, queries, keys\]"),
        (torch.rand(17, 2, 2), {}, "too many heads for one picture"),
        (torch.rand(3, 2, 2), {"head": 3}, "expected: 0 to 2\n  got: 3"),
        (torch.rand(3, 2, 2), {"head": -1}, "there is no such head"),
        (torch.rand(2, 2), {"tokens": ["a"]}, "tokens do not fit the weights"),
        (torch.rand(2, 2), {"keys": ["a"]}, "keys do not fit the weights"),
        (sl.look(torch.rand(2, 1, 3, 4), torch.rand(2, 1, 3, 4)), {}, "this sight is of several sequences"),
    ],
)
def test_what_cannot_be_drawn_is_refused(weights: object, options: dict, words: str) -> None:
    with pytest.raises(InputError, match=words):
        plots.map(weights, **options)
