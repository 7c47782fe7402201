"""The computation, word by word: embeddings times three matrices, then the table for each word (S2.3, S2.4)."""

from __future__ import annotations

from sightline.backends import attention
from sightline.lessons.page import Page
from sightline.steps import explain_words

TITLE = "The table: one head, word by word"
SOURCES = ("S2.3", "S2.4")
SENTENCE = "Action gets results"


def lesson(page: Page) -> None:
    steps = explain_words(SENTENCE)
    x, q, k, v = (steps[name] for name in ("embeddings", "q", "k", "v"))

    page.heading("From words to queries, keys and values")
    page.text(
        f"""Every word of `{SENTENCE}` has an embedding of {x.shape[1]} numbers. Three matrices, W_q, W_k and W_v, make
        a query, a key and a value of {q.shape[1]} numbers out of each. (Embeddings and matrices are random here: who
        looks at whom means nothing, how it is computed does.)"""
    )
    shapes = {"x": x, "W_q": steps["w_q"], "W_k": steps["w_k"], "W_v": steps["w_v"], "q": q, "k": k, "v": v}
    page.table(
        ["name", "shape", "made by"],
        [
            [name, " x ".join(map(str, t.shape)), f"x times W_{name}" if name in "qkv" else "drawn at random"]
            for name, t in shapes.items()
        ],
    )
    page.table(
        ["word", "q", "k", "v"],
        [[word, q[i, :3], k[i, :3], v[i, :3]] for i, word in enumerate(steps.labels)],
        digits=2,
        caption=f"The first 3 of {q.shape[1]} numbers.",
    )

    page.heading("The table, once for every word")
    page.text(
        f"""The query of one word is compared with the key of each: the score q_i . k_j. Scores are divided by 8, the
        root of {q.shape[1]}, so that longer vectors do not make sharper weights. Softmax turns a column of scores into
        weights x_ij that sum to 1. Each weight times its value, added up, is z_i."""
    )
    for table in steps.tables():
        page.steps(table)

    page.heading("All of it at once")
    page.heat(steps["weight"], steps.labels, caption="softmax(Q K^T / 8): a row for each query, a column for each key.")
    page.agree("The sums of the three tables and `sl.attention(q, k, v)`", steps["sum"], attention(q, k, v))
    for name in ("score", "scaled_score", "weight", "weighted_value", "sum"):
        page.keep(name, steps[name])
    page.keep("steps", steps)
