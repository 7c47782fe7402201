"""Portraits: every measure of every head in its cell."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import pandas as pd
import pytest

from sightline import plots
from sightline.errors import InputError

RECORDS = [
    {"layer": f"blocks.{layer}", "head": head, "entropy": 10 * layer + head, "note": "x", "first": 0.1 * head}
    for layer in range(3)
    for head in range(4)
]


def tables(figure: object) -> dict[str, list]:
    return {axes.get_title(): np.asarray(axes.images[0].get_array()) for axes in figure.axes if axes.get_title()}


def test_every_measure_in_its_cell() -> None:
    drawn = tables(plots.portraits(RECORDS, title="a model"))
    assert list(drawn) == ["entropy", "first"]
    for record in RECORDS:
        layer = int(record["layer"][-1])
        assert drawn["entropy"][layer, record["head"]] == record["entropy"]
        assert drawn["first"][layer, record["head"]] == record["first"]


def test_a_table_of_pandas_and_a_choice_of_measures() -> None:
    drawn = tables(plots.portraits(pd.DataFrame(RECORDS), measures=["first"]))
    assert list(drawn) == ["first"]
    np.testing.assert_array_equal(drawn["first"], tables(plots.portraits(RECORDS))["first"])


def test_heads_that_are_missing_are_blank() -> None:
    drawn = tables(plots.portraits(RECORDS[:-1]))
    assert np.isnan(np.ma.filled(drawn["entropy"].astype(float), np.nan)[2, 3])


def test_portraits_of_a_watched_model() -> None:
    """What `seen.portraits()` gives: named tuples, some measures None, layers by their path."""

    class Portrait(NamedTuple):
        layer: str
        head: int
        first: float | None
        induction: float | None

    names = [f"decoder.layers.{i}.attention" for i in range(2)]
    figure = plots.portraits([Portrait(name, head, None if head else 0.5, None) for name in names for head in (0, 1)])
    drawn = tables(figure)
    assert list(drawn) == ["first"]
    np.testing.assert_array_equal(np.ma.filled(drawn["first"], np.nan), [[0.5, np.nan]] * 2)
    assert [label.get_text() for label in figure.axes[0].get_yticklabels()] == ["0", "1"]


@pytest.mark.parametrize(
    "records, measures, words",
    [
        ([], None, "got: 0 records"),
        ([{"layer": 0}], None, "these are not portraits of heads"),
        ([{"layer": 0, "head": 0}], None, "the measures are not in every record"),
        (RECORDS, ["size"], "expected: entropy, first\n  got: size"),
    ],
)
def test_what_cannot_be_drawn_is_refused(records: list, measures: object, words: str) -> None:
    with pytest.raises(InputError, match=words):
        plots.portraits(records, measures=measures)
