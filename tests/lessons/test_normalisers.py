"""Each normaliser against its formula in numpy."""

from __future__ import annotations

import numpy as np
import pytest

from lesson_cases import give, softmax
from sightline.lessons import Page
from sightline.normalizers import NORMALIZERS


@pytest.fixture(scope="module")
def page() -> Page:
    return give("normalisers")[0]


@pytest.mark.parametrize("name", NORMALIZERS)
def test_weights(page: Page, name: str) -> None:
    scores, seen = page.results["scores"].numpy(), np.tril(np.ones((8, 8)))
    count = seen.sum(1, keepdims=True)
    expected = {
        "softmax": softmax(np.where(seen, scores, -np.inf)),
        "relu": np.maximum(scores, 0) * seen / count,
        "sigmoid": seen / (1 + np.exp(np.log(count) - scores)),
        "uniform": seen / count,
    }[name]
    np.testing.assert_allclose(page.results[name], expected, atol=1e-12)
    row = next(row for row in page.results["rows"] if row[0] == name)
    shares = expected[-1] / expected[-1].sum()
    entropy = -sum(p * np.log(p) for p in shares if p)
    assert row[1:] == pytest.approx([expected[-1].sum(), (expected[seen > 0] == 0).mean(), entropy], abs=1e-6)
