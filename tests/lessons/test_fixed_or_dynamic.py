"""One matrix stays, the other is made of the input: by numpy."""

from __future__ import annotations

import math

import numpy as np

from lesson_cases import give, softmax


def test_fixed_and_dynamic() -> None:
    page, text = give("fixed-or-dynamic")
    w_q, w_k = (w.numpy() for w in page.results["weights"])
    np.testing.assert_array_equal(page.results["fixed 1"], page.results["fixed 2"])
    made = []
    for n in (1, 2):
        x = page.results[f"x {n}"].numpy()
        made.append(softmax(x @ w_q @ (x @ w_k).T / math.sqrt(32)))
        np.testing.assert_allclose(page.results[f"dynamic {n}"], made[-1], atol=1e-12)
    change = np.abs(made[0] - made[1]).max()
    assert page.results["change"] > 0.1
    assert f"{change:.3f}" in text
