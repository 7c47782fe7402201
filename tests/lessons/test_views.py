"""Both views against plain numpy in column convention, and the shapes of S3.2."""

from __future__ import annotations

import math

import numpy as np

from lesson_cases import fixed, give, rows


def test_both_views() -> None:
    page, text = give("views")
    wanted = [("I", 6, 4), ("W^q", 3, 6), ("W^k", 3, 6), ("W^v", 2, 6), ("Q", 3, 4), ("K", 3, 4), ("V", 2, 4)]
    wanted += [("A", 4, 4), ("A'", 4, 4), ("O", 2, 4)]
    assert page.results["shapes"] == {name: (rows, columns) for name, rows, columns in wanted}
    m = {name: matrix.numpy() for name, matrix in page.results["matrices"].items()}
    for name, wanted in (("Q", m["W^q"] @ m["I"]), ("K", m["W^k"] @ m["I"]), ("V", m["W^v"] @ m["I"])):
        np.testing.assert_allclose(m[name], wanted, atol=1e-12)
    scores = m["K"].T @ m["Q"] / math.sqrt(3)
    weights = np.exp(scores) / np.exp(scores).sum(0)
    np.testing.assert_allclose(m["A"], scores, atol=1e-12)
    np.testing.assert_allclose(m["A'"], weights, atol=1e-12)
    np.testing.assert_allclose(m["O"], m["V"] @ weights, atol=1e-12)
    # One vector at a time: b^1 in the table and in the list.
    b = [sum(weights[j, i] * m["V"][:, j] for j in range(4)) for i in range(4)]
    assert rows(text, "a¹")[-1] == ["sum", "1.0000", *(fixed(x, 4) for x in b[0])]
    for i in range(4):
        assert [f"b^{i + 1}", *(fixed(x, 4) for x in b[i])] in [line.split() for line in text.splitlines()]
    for shape in ("r x n", "q x r", "v x r", "q x n", "v x n", "n x n", "6 x 4", "2 x 6"):
        assert shape in text
