"""Attention without weights, T = 5 and i = 2, by plain numpy."""

from __future__ import annotations

import numpy as np

from lesson_cases import fixed, give, rows, softmax


def test_every_digit() -> None:
    page, text = give("basic")
    x = np.array([[1.0, 0.0, 0.5], [0.5, 1.0, 0.0], [0.0, 0.5, 0.0], [-1.0, 0.5, 1.0], [0.0, 1.0, 1.0]])
    omega = x @ x.T
    alpha = softmax(omega)
    np.testing.assert_allclose(page.results["omega"], omega, atol=1e-12)
    np.testing.assert_allclose(page.results["alpha"], alpha, atol=1e-12)
    np.testing.assert_allclose(page.results["z"], alpha @ x, atol=1e-12)
    np.testing.assert_allclose(page.results["alpha"].sum(-1), 1, atol=1e-12)
    *lines, last = rows(text, "x₂ falls")
    assert len(lines) == 5
    for j, line in enumerate(lines):
        vectors = [fixed(value, 1) for vector in (x[1], x[j]) for value in vector]
        numbers = [fixed(omega[1, j], 4), fixed(alpha[1, j], 4), *(fixed(alpha[1, j] * a, 4) for a in x[j])]
        assert line[2:] == [*vectors, *numbers]
    assert last == ["sum", "1.0000", *(fixed(a, 4) for a in alpha[1] @ x)]
    assert "The alphas of the row sum to 1.0000" in text


def test_the_python_on_the_page_gives_the_alpha() -> None:
    page, text = give("basic")
    code = text.split("import math")[1].split("print(weight)")[0]
    there: dict[str, float] = {}
    exec("import math\n" + "\n".join(line.strip() for line in code.splitlines()), there)
    assert abs(there["weight"] - page.results["alpha"][1, 4].item()) < 1e-12
