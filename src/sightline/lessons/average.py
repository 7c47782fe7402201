"""Averages: every word becomes the mean of itself and its past, and what that loses (S0.1 to S0.3)."""

from __future__ import annotations

import torch

from sightline.backends import attention, reference
from sightline.lessons.page import Page
from sightline.masks import causal
from sightline.steps import embed_words, explain

TITLE = "The average of the past"
SOURCES = ("S0.1", "S0.2", "S0.3")
SENTENCE = "I am not interested in this workshop now"


def lesson(page: Page) -> None:
    words = SENTENCE.split()
    page.keep("sentence", SENTENCE)

    page.heading("What a word knows: its history")
    page.text(
        """A model that predicts the next word may look only at the words so far. Each position of a sentence is an
        exercise of its own: the context is the history, and the next word is what is to be predicted from it."""
    )
    page.table(
        ["position", "context", "next word"],
        [[i, " ".join(words[: i + 1]), words[i + 1] if i + 1 < len(words) else "?"] for i in range(len(words))],
    )

    page.heading("Communication by averaging")
    page.text(
        """The simplest way to use the context is to take its mean: every word becomes the average of itself and its
        past. That is one matrix product. The matrix is lower triangular, ones where a word may look, and every row is
        divided by its sum."""
    )
    count = len(words)
    x = embed_words(words, width=4)  # B, T, C = 1, 8, 4
    weights = reference.weights(x, x, mask=causal(), normalizer="uniform")
    hidden = ~causal().to_dense(count, count)
    page.heat(weights, words, hidden=hidden, caption="`weights = tril(1) / n`: a row for each word, its past in front.")
    page.keep("weights", weights)

    page.heading("Batch, sequence, channel")
    page.text(
        f"""The input is (B, T, C): batch, sequence, channel. Here B = 1 sentence, T = {count} words and
        C = {x.shape[1]} channels. A channel is only depth: the red, green and blue of a picture, the variables of a
        weather field, the numbers of an embedding. The same code serves all of them. (These embeddings are random:
        nothing was learned.)"""
    )
    averages = attention(x, x, x, mask=causal(), normalizer="uniform")
    page.table(
        ["word", "x (its channels)", "mean of itself and its past"],
        [[word, x[i], averages[i]] for i, word in enumerate(words)],
        digits=2,
    )
    page.agree("The matrix product and `sl.attention(…, normalizer='uniform')`", weights @ x, averages)
    page.keep("x", x)
    page.keep("averages", averages)
    page.text("One row, number by number:")
    page.steps(explain(x, mask=causal(), normalizer="uniform", labels=words).table("not"))

    page.heading("What the average loses")
    page.text(
        """An average treats all tokens alike. Turn the past round, and the last word's average is the same: the order
        is lost, and so is which word mattered."""
    )
    turned = x.flip(0)
    last = attention(turned, turned, turned, mask=causal(), normalizer="uniform")[-1]
    page.agree("The average of the sentence and of the sentence read backwards", averages[-1], last)

    page.heading("Weights from the data instead")
    page.text(
        """So the weights should depend on the words. Take logits, here the products of the words' vectors; mask the
        future with -inf; and let softmax make weights of each row. With logits that are all 0 this is the average
        again, so nothing is lost by it."""
    )
    logits = explain(x, mask=causal(), labels=words)
    page.heat(logits["masked_score"], words, hidden=hidden, digits=2, caption="Logits: `x_i . x_j`, the future masked.")
    page.heat(logits["weight"], words, hidden=hidden, caption="Softmax of each row: weights that depend on the words.")
    page.keep("data_weights", logits["weight"])
    zero = torch.zeros_like(x)
    page.agree("Softmax of logits that are all 0, and the average", attention(zero, zero, x, mask=causal()), averages)
