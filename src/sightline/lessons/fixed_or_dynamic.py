"""A feed-forward layer beside self-attention: a fixed weight matrix, and one that is made of the input (S1.6)."""

from __future__ import annotations

import torch
from torch import nn

from sightline.lessons.page import Page
from sightline.steps import embed_words, explain

TITLE = "Fixed or dynamic weights"
SOURCES = ("S1.6", "S3.4")
FIRST, SECOND = "the river bank was wet", "the bank gave no loan"
WIDTH = 32


def lesson(page: Page) -> None:
    generator = torch.Generator().manual_seed(0)
    count = len(FIRST.split())
    mixing = nn.Linear(count, count, bias=False, dtype=torch.float64)  # mixes positions: an output is a sum of inputs
    mixing.weight.data.copy_(torch.rand(count, count, generator=generator, dtype=torch.float64) / count)
    w_q, w_k, w_v = torch.randn(3, WIDTH, WIDTH, generator=generator, dtype=torch.float64) / WIDTH**0.5

    page.text(
        f"""Both layers make each output a weighted sum of the inputs. The question is where the weights come from. We
        give both layers two sentences of {count} words, `{FIRST}` and `{SECOND}`, and look at the matrix that was
        used. (Embeddings and weights are random: nothing was learned.)"""
    )
    for number, sentence in enumerate((FIRST, SECOND), start=1):
        words = sentence.split()
        x = embed_words(words, width=WIDTH)
        steps = explain(x, w_q=w_q, w_k=w_k, w_v=w_v, labels=words)
        with torch.no_grad():
            mixed = mixing(x.T).T
        page.heading(f"Sentence {number}: {sentence}")
        weight = mixing.weight.detach()
        page.heat(weight, words, largest=1.0, caption="Feed-forward layer: the matrix it was given once and for all.")
        page.heat(steps["weight"], words, largest=1.0, caption="Self-attention: the matrix it made of this sentence.")
        page.agree("The feed-forward output and its matrix times the input", weight @ x, mixed)
        page.agree("The attention output and its matrix times the values", steps["weight"] @ steps["v"], steps["sum"])
        page.keep(f"fixed {number}", weight.clone())
        page.keep(f"dynamic {number}", steps["weight"])
        page.keep(f"x {number}", x)
    page.keep("weights", (w_q, w_k))

    fixed = page.results["fixed 1"] - page.results["fixed 2"]
    dynamic = page.results["dynamic 1"] - page.results["dynamic 2"]
    page.heading("The difference")
    page.table(
        ["layer", "weights learned", "largest change of a weight from sentence 1 to 2"],
        [
            ["feed-forward", mixing.weight.numel(), float(fixed.abs().max())],
            ["self-attention", w_q.numel() + w_k.numel() + w_v.numel(), float(dynamic.abs().max())],
        ],
    )
    page.keep("change", float(dynamic.abs().max()))
    page.text(
        """A feed-forward layer that mixes positions has a **fixed** matrix: it treats the third word always alike, and
        it fits one length only. Self-attention has a **dynamic** one, computed from the input by W_q and W_k, which
        are what is learned: it fits any length, and a word is treated by what it is. Transformers use both, and let
        the feed-forward layer mix channels instead of positions."""
    )
