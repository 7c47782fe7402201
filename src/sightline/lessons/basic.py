"""The basic mechanism: context-aware vectors without any weights to learn (S4.1 to S4.3)."""

from __future__ import annotations

import torch

from sightline.backends import attention
from sightline.lessons.page import Page
from sightline.steps import explain

TITLE = "Self-attention without weights"
SOURCES = ("S4.1", "S4.2", "S4.3")

# Five words with three numbers each, small enough to follow with a pencil.
INPUTS = {
    "rain": (1.0, 0.0, 0.5),
    "falls": (0.5, 1.0, 0.0),
    "on": (0.0, 0.5, 0.0),
    "dry": (-1.0, 0.5, 1.0),
    "ground": (0.0, 1.0, 1.0),
}


def lesson(page: Page) -> None:
    words = list(INPUTS)
    x = torch.tensor(list(INPUTS.values()), dtype=torch.float64)
    names = [f"x{index} {word}" for index, word in zip("₁₂₃₄₅", words, strict=True)]

    page.heading("The inputs")
    page.text(
        f"""T = {len(x)} inputs, each a vector. On their own they know nothing of each other. We want z_i, a vector for
        the word i that knows its context: `z_i = sum_j alpha_ij x_j`, a weighted sum of all inputs."""
    )
    page.table(["input", "x_j"], [[name, x[i]] for i, name in enumerate(names)], digits=1)

    steps = explain(x, labels=names)
    page.heading("For i = 2, number by number")
    page.text(
        """How much should each input count for the second one? As much as it resembles it: omega_2j = x_2 . x_j, the
        product of the two vectors. The alphas are the softmax of the omegas over j, so none is below 0 and together
        they are 1."""
    )
    table = steps.table(1)
    page.steps(table, digits=4)
    page.keep("omega", steps["score"])
    page.keep("alpha", steps["weight"])
    page.keep("z", steps["sum"])
    page.text(f"The alphas of the row sum to {table.total:.4f}. One of them, as Python that runs on its own:")
    page.code(steps.to_python(1, 4))

    page.heading("For every i at once")
    page.text("What was done for i = 2 is done for each input: five rows of alphas, and every one of them sums to 1.")
    page.heat(steps["weight"], names, words, digits=4, caption="The alphas: a row for each i, a column for each j.")
    page.table(
        ["i", "sum of the alphas", "z_i"],
        [[name, float(steps["weight"][i].sum()), steps["sum"][i]] for i, name in enumerate(names)],
        digits=4,
    )
    page.agree("These z and `sl.attention(x, x, x, scale=1.0)`", steps["sum"], attention(x, x, x, scale=1.0))

    page.heading("What is still missing")
    page.text(
        """Nothing here can be learned: how much one word counts for another is fixed by the inputs alone. The next
        step is the same with three matrices, which turn each input into a query, a key and a value:
        `sightline lesson table`."""
    )
