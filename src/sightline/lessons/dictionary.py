"""Attention as a soft dictionary: look-up by an equal key, and by a key that is only similar (S1.2 to S1.4)."""

from __future__ import annotations

import torch

from sightline import lookup
from sightline.backends import attention
from sightline.lessons.page import Page
from sightline.steps import explain, explain_lookup, explain_record

TITLE = "The soft dictionary"
SOURCES = ("S1.2", "S1.3", "S1.4", "S1.5")

RECORD = {"Name": "Ada", "Address": "1 Elm Road", "Date of birth": "May 5th 2000", "Place of birth": "Bern"}

# The worked numbers (S1.4); then a fourth query, and the third key and value once more.
QUERIES = [(0.3, 1.2, 2.2), (0.1, 6.2, 2.1), (2.1, 2.5, 5.2), (1.1, 6.6, 4.3)]
KEYS = [(0.4, 1.4, 0.0), (0.2, -1.1, 0.0), (0.3, 1.2, 4.0), (0.3, 1.2, 4.0)]
VALUES = [(2.3, 1.1, 3.5), (3.0, 1.0, 0.5), (-2.2, 4.1, 2.5), (-2.2, 4.1, 2.5)]
TEMPERATURES = (10.0, 1.0, 0.3, 0.1, 0.03, 0.0)


def lesson(page: Page) -> None:
    exact(page)
    soft(page)
    numbers(page)


def exact(page: Page) -> None:
    page.heading("Look-up by an equal key")
    page.text(
        """A dictionary, or a JSON file, holds pairs of a key and a value. A query is compared with every key, and the
        value of the key that equals it comes back: `z = sum_j 1(q = k_j) v_j`, where `1(…)` is 1 if it is true and 0
        if not."""
    )
    page.steps(explain_record("Date of birth", RECORD.keys(), RECORD.values()))
    page.keep("answer", lookup.exact("Date of birth", RECORD.keys(), RECORD.values()))
    page.text("A key that is not there is an error that says so:")
    try:
        lookup.exact("Date of brith", RECORD.keys(), RECORD.values())
    except lookup.KeyNotFoundError as error:
        page.code(str(error))
        page.keep("error", str(error))
    page.text(
        """The same with vectors as keys and values. The sum is over all pairs, but only one weight is 1. Where no key
        is equal, the sum is the zero vector, if that is asked for."""
    )
    keys, values = torch.eye(3, dtype=torch.float64), torch.tensor(VALUES[:3], dtype=torch.float64)
    page.steps(explain_lookup(keys[1], keys, values, labels="k₂", key_labels="k₁ k₂ k₃").table(0), digits=1)
    nowhere = torch.full((3,), 0.5, dtype=torch.float64)
    page.keep("zero", lookup.exact(nowhere, keys, values, missing="zero"))
    page.code(f"lookup.exact((0.5, 0.5, 0.5), keys, values, missing='zero') = {page.results['zero'].tolist()}")


def soft(page: Page) -> None:
    page.heading("The relaxed query")
    page.text(
        """Let every key answer, as much as it resembles the query: `z = sum_j score_j v_j`, with
        `score = softmax_j(q . k_j / sqrt(d_k))`. A temperature stands between the two: the larger it is, the more
        alike all keys; towards 0 the strongest key takes all, and it is the exact look-up again."""
    )
    keys, values = torch.eye(3, dtype=torch.float64), torch.tensor(VALUES[:3], dtype=torch.float64)
    query = torch.tensor((0.1, 1.0, 0.2), dtype=torch.float64)
    rows = []
    for temperature in TEMPERATURES:
        steps = explain_lookup(query, keys, values, temperature=temperature)
        rows.append([f"{temperature:g}", *steps["weight"][0].tolist(), steps["sum"][0]])
        page.keep(f"soft {temperature:g}", steps["sum"][0])
    page.table(
        ["temperature", "k_1", "k_2", "k_3", "z"],
        rows,
        digits=4,
        caption="The query (0.1, 1, 0.2) among the keys (1, 0, 0), (0, 1, 0) and (0, 0, 1).",
    )
    page.agree("At temperature 0, the soft look-up and the exact one of `k_2`", page.results["soft 0"], values[1])


def numbers(page: Page) -> None:
    page.heading("Worked numbers")
    page.text(
        """Three queries, three keys, three values, each of three numbers. For every query there is a score with each
        key, divided by the root of 3; softmax makes weights of the scores, and the weights make one vector of the
        values."""
    )
    q, k, v = (torch.tensor(x, dtype=torch.float64) for x in (QUERIES, KEYS, VALUES))
    three = explain(q[:3], k[:3], v[:3], labels="q₁ q₂ q₃", key_labels="k₁ k₂ k₃")
    for table in three.tables():
        page.steps(table, digits=3)
    page.keep("weights 3", three["weight"])
    page.keep("z 3", three["sum"])
    page.agree("The soft look-up and `sl.attention`", lookup.soft(q[:3], k[:3], v[:3]), attention(q[:3], k[:3], v[:3]))

    page.heading("A fourth query, and the third pair twice")
    page.text(
        """In matrix form all queries are answered at once: `softmax(Q K^T / sqrt(d_k)) V`. A fourth query comes, and
        the third key and value stand there once more. Equal keys get equal weights: what one of them had before, two
        of them share now, and they take more together than the one had alone."""
    )
    four = explain(q, k, v, labels="q₁ q₂ q₃ q₄", key_labels="k₁ k₂ k₃ k₃")
    page.heat(four["scaled_score"], four.labels, four.key_labels, digits=4, caption="Scores: `Q K^T / sqrt(3)`.")
    page.heat(
        four["weight"], four.labels, four.key_labels, digits=4, caption="The attention matrix: every row sums to 1."
    )
    page.table(
        ["query", "z_1", "z_2", "z_3"], [[name, *row] for name, row in zip(four.labels, four["sum"].tolist())], digits=4
    )
    page.keep("weights 4", four["weight"])
    page.keep("z 4", four["sum"])
