"""How scores become weights is a choice: softmax, ReLU, or others (S3.3)."""

from __future__ import annotations

import torch

from sightline.backends import attention
from sightline.lens import look
from sightline.lessons.page import Page
from sightline.masks import causal
from sightline.normalizers import NORMALIZERS
from sightline.steps import embed_words, explain

TITLE = "Normalisers: softmax is a choice"
SOURCES = ("S3.3",)
SENTENCE = "I am not interested in this workshop now"

ABOUT = {
    "softmax": "exp(score), divided by the sum of the row. Every key gets something, and the row sums to 1.",
    "relu": "The score if it is above 0, else 0; divided by the number of keys the row may see. Most keys get nothing.",
    "sigmoid": "sigmoid(score - log n), with n the keys the row may see. Keys do not compete: each answers for itself.",
    "uniform": "1 / n for each of the n keys the row may see: the average of the past, whatever the scores.",
}


def lesson(page: Page) -> None:
    words = SENTENCE.split()
    x = embed_words(words, width=16)
    generator = torch.Generator().manual_seed(1)
    w_q, w_k, w_v = torch.randn(3, 16, 16, generator=generator, dtype=torch.float64) / 4

    page.text(
        """Between the scores and the weighted sum stands one step: making weights of scores. Softmax is the usual
        choice. Nothing else in attention changes when another is taken."""
    )
    first = explain(x, w_q=w_q, w_k=w_k, w_v=w_v, mask=causal(), labels=words)
    q, k, v = first["q"], first["k"], first["v"]
    hidden = ~causal().to_dense(len(words), len(words))
    page.heat(first["masked_score"], words, hidden=hidden, digits=2, caption="The same scores for all: q_i . k_j / 4.")
    page.keep("scores", first["scaled_score"])

    rows = []
    for name in NORMALIZERS:
        steps = explain(q, k, v, mask=causal(), normalizer=name, labels=words)
        page.heading(name)
        page.text(ABOUT[name])
        page.heat(steps["weight"], words, hidden=hidden, caption=f"`normalizer='{name}'`")
        page.keep(name, steps["weight"])
        sight = look(q, k, mask=causal(), normalizer=name)
        nothing = float(((steps["weight"] == 0) & ~hidden).sum() / (~hidden).sum())
        rows.append([name, float(sight.total[-1]), nothing, float(sight.entropy[-1])])
        out = attention(q, k, v, mask=causal(), normalizer=name)
        page.agree(f"The table's sums with {name} and `sl.attention`", steps["sum"], out)

    page.heading("Side by side")
    page.table(
        ["normaliser", "sum of the last row", "weights that are 0", "entropy of the last row"],
        rows,
        caption="Entropy in nats, of the weights divided by their sum: 0 is one key, log 8 = 2.079 is all alike.",
    )
    page.keep("rows", rows)
    page.text("One row with ReLU, number by number:")
    page.steps(explain(q, k, v, mask=causal(), normalizer="relu", labels=words).table("interested"))
