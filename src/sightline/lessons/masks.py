"""One head, two kinds: bidirectional as in BERT, masked as in GPT; and the other rules for who may look (S0.4)."""

from __future__ import annotations

import torch

from sightline.lessons.page import Page
from sightline.masks import Mask, causal, documents, padding, prefix, window
from sightline.nn import AttentionHead
from sightline.steps import embed_words, explain

TITLE = "Masks: who may look at whom"
SOURCES = ("S0.4",)
SENTENCE = "I am not interested in this workshop now"
WIDTH, HEAD_SIZE = 32, 16


def lesson(page: Page) -> None:
    words = SENTENCE.split()
    x = embed_words(words, width=WIDTH)[None]  # [batch, time, channels]
    bidirectional, masked = make_heads()

    page.heading("A head with a head size")
    page.text(
        f"""A self-attention head makes queries, keys and values directly from its input: {WIDTH} channels in,
        {HEAD_SIZE} out, the head size. There are two kinds. In a **bidirectional** head, as in BERT, every word sees
        every word. In a **masked** or causal head, as in GPT, a word sees itself and its past, because it has to
        predict what comes next."""
    )
    page.code(str(masked))
    hidden = ~causal().to_dense(len(words), len(words))
    maps = {}
    for name, head in (("bidirectional", bidirectional), ("masked", masked)):
        steps = explain(head, x, labels=words)
        maps[name] = steps["weight"][0]
        page.heat(maps[name], words, hidden=hidden if name == "masked" else None, caption=f"The {name} head.")
        page.keep(name, maps[name])
    page.text(
        """Both have the same weights. The mask puts -inf in the place of the scores of the future, and softmax makes 0
        of it; what is left of a row is divided by a smaller sum, so the masked map is not a part of the other one."""
    )

    page.heading("Nothing comes back from the future")
    page.text("Change the last word to `later`, and see which outputs change:")
    changed = embed_words([*words[:-1], "later"], width=WIDTH)[None]
    with torch.no_grad():
        moves = {
            name: (head(x) - head(changed)).abs().amax(-1)[0]
            for name, head in (("bidirectional", bidirectional), ("masked", masked))
        }
    page.table(
        ["output of", "bidirectional", "masked"],
        [[word, float(moves["bidirectional"][i]), float(moves["masked"][i])] for i, word in enumerate(words)],
        caption="The largest change of a channel.",
    )
    page.keep("moves", moves)

    page.heading("Other rules")
    page.text(
        "A mask says who **may** look: 1 = may. A row is a query, a column a key. They combine with `&`, `|`, `~`."
    )
    ids = torch.tensor([0, 0, 0, 1, 1, 1])
    rules: dict[str, tuple[Mask, str]] = {
        "causal()": (causal(), "itself and the past"),
        "window(2)": (window(2), "itself and the two before it: a sliding window"),
        "window(1, 1)": (window(1, 1), "itself and one neighbour on each side"),
        "prefix(3)": (prefix(3), "causal, and everyone sees the first three: a prompt that is read both ways"),
        "padding([4])": (padding([4]), "the sequence has four tokens, the rest is filling"),
        "documents(ids)": (documents(ids), "only inside the same document: several texts in one row"),
        "documents(ids) & causal()": (documents(ids) & causal(), "both rules at once"),
    }
    for name, (mask, about) in rules.items():
        dense = mask.to_dense(6, 6).reshape(6, 6).int()
        page.keep(name, dense)
        page.code(f"{name}: {about}\n" + "\n".join(" ".join(map(str, row)) for row in dense.tolist()))
    page.text(
        """With fewer queries than keys, as in a cache, the last query stands at the last key. Here two new words look
        at four:"""
    )
    late = causal().to_dense(2, 4).int()
    page.keep("late", late)
    page.code("\n".join(" ".join(map(str, row)) for row in late.tolist()))


def make_heads() -> tuple[AttentionHead, AttentionHead]:
    """A bidirectional and a masked head with the same random weights."""
    generator = torch.Generator().manual_seed(0)
    heads = [AttentionHead(WIDTH, HEAD_SIZE, masked=masked).double().eval() for masked in (False, True)]
    weights = [torch.randn(HEAD_SIZE, WIDTH, generator=generator, dtype=torch.float64) / WIDTH**0.5 for _ in range(3)]
    for head in heads:
        for linear, weight in zip((head.query, head.key, head.value), weights, strict=True):
            linear.weight.data.copy_(weight)
    return heads[0], heads[1]
