"""The lesson on averages, against plain numpy."""

from __future__ import annotations

import numpy as np
import pytest

from sightline.lessons import Page, run


@pytest.fixture(scope="module")
def page() -> Page:
    return run("average")


def test_the_triangular_table(page: Page) -> None:
    expected = np.tril(np.ones((8, 8)))
    expected /= expected.sum(1, keepdims=True)
    np.testing.assert_allclose(page.results["weights"], expected, atol=1e-12)
    text = page.to_html()
    for i in range(1, 9):
        assert f"{1 / i:.3f}" in text
    words = ["I", "am", "not", "interested", "in", "this", "workshop", "now"]
    for i in range(1, 8):
        assert f">{' '.join(words[:i])}</td>" in text


def test_averages_and_weights_from_the_data(page: Page) -> None:
    x = page.results["x"].numpy()
    means = np.stack([x[: i + 1].mean(0) for i in range(8)])
    np.testing.assert_allclose(page.results["averages"], means, atol=1e-12)
    logits = np.where(np.tril(np.ones((8, 8))), x @ x.T, -np.inf)
    weights = np.exp(logits - logits.max(1, keepdims=True))
    np.testing.assert_allclose(page.results["data_weights"], weights / weights.sum(1, keepdims=True), atol=1e-12)
    assert f"{means[7][0]:.2f}" in page.to_html()
