"""Two views of the same thing: vector by vector, and as matrices in column convention (S3.1, S3.2, S3.4)."""

from __future__ import annotations

import math

import torch

from sightline.backends import attention, reference
from sightline.lessons.page import Page
from sightline.steps import explain

TITLE = "Vector view and matrix view"
SOURCES = ("S3.1", "S3.2", "S3.4")

R, N = 6, 4  # numbers in an input, and how many inputs
INDICES = "¹²³⁴"
DIM, VALUE_DIM = 3, 2  # numbers in a query or key, and in a value: they may differ


def lesson(page: Page) -> None:
    generator = torch.Generator().manual_seed(0)
    inputs = torch.randn(R, N, generator=generator, dtype=torch.float64)  # I: a column for each input
    w_q, w_k = torch.randn(2, DIM, R, generator=generator, dtype=torch.float64) / math.sqrt(R)
    w_v = torch.randn(VALUE_DIM, R, generator=generator, dtype=torch.float64) / math.sqrt(R)
    names = [f"a{index}" for index in INDICES]

    page.heading("Vector view: b^1 from a^1 to a^4")
    page.text(
        f"""Four inputs a^1 to a^4 of {R} numbers each. Each has a query q^i = W^q a^i and a key k^i = W^k a^i of {DIM}
        numbers, and a value v^i = W^v a^i of {VALUE_DIM}. The output b^1 comes about in three steps."""
    )
    queries, keys, values = w_q @ inputs, w_k @ inputs, w_v @ inputs  # columns: q^i, k^i, v^i
    steps = explain(inputs.T, w_q=w_q.T, w_k=w_k.T, w_v=w_v.T, labels=names)
    scores, weights = steps["scaled_score"], steps["weight"]
    page.code(
        "1. scores         alpha_1,j  = q^1 . k^j / sqrt(3)\n"
        "2. normalisation  alpha'_1,j = exp(alpha_1,j) / sum_m exp(alpha_1,m)\n"
        "3. weighted sum   b^1        = sum_j alpha'_1,j v^j"
    )
    page.steps(steps.table(0), digits=4)
    b = reference.vector_view(queries.T, keys.T, values.T)  # a row for each b^i
    page.table(["output", "value"], [[f"b^{i + 1}", b[i]] for i in range(N)], digits=4, caption="One after the other.")

    page.heading("Matrix view: all at once")
    page.text(
        """The inputs stand side by side as the columns of a matrix I. Then a few matrix products do for all columns
        what was done for one, and that is what parallel computers are good at. Column convention: a matrix stands in
        front of what it acts on."""
    )
    output = attention(queries.T, keys.T, values.T).T
    matrices = {
        "I": (inputs, "r x n", "the inputs, a column each"),
        "W^q": (w_q, "q x r", "learned"),
        "W^k": (w_k, "q x r", "learned"),
        "W^v": (w_v, "v x r", "learned"),
        "Q": (queries, "q x n", "W^q I"),
        "K": (keys, "q x n", "W^k I"),
        "V": (values, "v x n", "W^v I"),
        "A": (scores.T, "n x n", "K^T Q / sqrt(q)"),
        "A'": (weights.T, "n x n", "softmax of each column of A"),
        "O": (output, "v x n", "V A'"),
    }
    page.table(
        ["matrix", "is", "shape", "here"],
        [[name, how, shape, " x ".join(map(str, m.shape))] for name, (m, shape, how) in matrices.items()],
        caption=f"r = {R} numbers in an input, n = {N} inputs, q = {DIM} in a query, v = {VALUE_DIM} in a value.",
    )
    page.keep("shapes", {name: tuple(m.shape) for name, (m, _, _) in matrices.items()})
    page.keep("matrices", {name: m for name, (m, _, _) in matrices.items()})
    columns = [f"q{index}" for index in INDICES]
    page.heat(
        weights.T, [f"k{index}" for index in INDICES], columns, digits=4, caption="A': every **column** sums to 1."
    )

    page.heading("Both views, the same numbers")
    page.agree("The columns of O and the vectors b^1 to b^4", output.T, b)
    page.agree("O and the product V A'", output, values @ weights.T)
    page.text(
        """All operations happen inside I: the weights A' are made from the input itself. Only W^q, W^k and W^v are
        learned. (In code the inputs are usually rows, `x @ W`, which is the same with everything transposed.)"""
    )
