"""The look-up as tables: the real functions' weights, exact and soft."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

import sightline as sl
from sightline.steps import explain_lookup, explain_record

RECORD = {"Name": "Ada", "Address": "1 Elm Road", "Date of birth": "May 5th 2000", "Place of birth": "Bern"}


def test_a_record() -> None:
    table = explain_record("Date of birth", RECORD.keys(), RECORD.values())
    assert [line.label for line in table.lines] == list(RECORD)
    assert [line.cells["weight"] for line in table.lines] == [0, 0, 1, 0]
    assert [line.cells["answer"] for line in table.lines] == ["", "", "May 5th 2000", ""]
    assert "May 5th 2000" in str(table)
    with pytest.raises(sl.lookup.KeyNotFoundError):
        explain_record("Date of brith", RECORD.keys(), RECORD.values())


def test_exact_among_vectors() -> None:
    keys, values = (
        torch.tensor([[1.0, 0.0], [0.0, 1.0], [1.0, 0.0]]),
        torch.tensor([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]]),
    )
    steps = explain_lookup(torch.tensor([1.0, 0.0]), keys, values)
    assert steps["weight"].tolist() == [[1, 0, 1]]
    assert steps["sum"].tolist() == [[6, 8]]
    assert steps.difference == 0
    zero = explain_lookup(torch.tensor([9.0, 9.0]), keys, values, missing="zero")
    assert zero["sum"].tolist() == [[0, 0]]


@pytest.mark.parametrize("temperature", [0.0, 0.3, 1.0, 7.0])
def test_soft(temperature: float) -> None:
    query, keys, values = torch.randn(2, 3).double(), torch.randn(4, 3).double(), torch.randn(4, 5).double()
    steps = explain_lookup(query, keys, values, temperature=temperature)
    scores = query.numpy() @ keys.numpy().T / math.sqrt(3)
    if temperature:
        e = np.exp(scores / temperature)
        expected = e / e.sum(-1, keepdims=True)
    else:
        expected = np.eye(4)[scores.argmax(-1)]
    np.testing.assert_allclose(steps["weight"], expected, atol=1e-12)
    np.testing.assert_allclose(steps["sum"], expected @ values.numpy(), atol=1e-12)
    assert steps.table(1).difference < 1e-12
    there: dict[str, float] = {}
    exec(steps.to_python(1, 2), there)
    assert there["weight"] == pytest.approx(expected[1, 2], abs=1e-12)
