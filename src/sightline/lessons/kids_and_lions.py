"""Who are `they`? Where the heads of two trained models look (S2.1)."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from sightline import plots
from sightline.lessons.page import Page
from sightline.models.loading import load
from sightline.steps import explain

TITLE = "The kids, the lions, and they"
SOURCES = ("S2.1",)
SENTENCE = "The kids were scared of the lions, so they left right away."
WORD, KIDS, LIONS = "they", "kids", "lions"

ABOUT = {
    "minilm": """`minilm` (all-MiniLM-L6-v2) is an encoder: 6 layers of 12 heads, and every word sees every word. It was
        trained to tell whether two sentences mean the same.""",
    "smollm2": """`smollm2` (SmolLM2-135M) is a decoder: 30 layers of 9 heads, and a word sees itself and its past. It
        was trained to predict the next word. Much of the weight goes to the first token,
        whatever it is: a place to look when there is nothing to look for.""",
}


def lesson(page: Page) -> None:
    models = {name: load(name)[0] for name in ABOUT}  # a model that is not installed is said before all else
    page.text(
        f"""`{SENTENCE}` Who left? A reader knows that `{WORD}` are the {KIDS}. A model has no one to tell it; but its
        heads look from `{WORD}` to other words, and we can see where. Below are the weights of every head of two
        trained models, counted from 0."""
    )
    for name, model in models.items():
        one_model(page, name, model)
    page.heading("What this shows, and what not")
    page.text(
        f"""In both models there are heads that give `{KIDS}` half of their weight and more, and there are others that
        look at `{LIONS}`: the models weigh both. Most heads do neither. Weights say where a head takes its values
        from; they do not prove that the answer of the model rests on it."""
    )


def one_model(page: Page, name: str, model: nn.Module) -> None:
    _, sights = model.observe(SENTENCE)  # type: ignore[operator]
    tokens: list[str] = sights.tokens
    they = tokens.index(WORD)
    # The weights of the word's row, one layer after the other: [layers, heads, keys].
    rows = torch.stack([sight.tile(they, slice(None)).reshape(-1, len(tokens)) for sight in sights.values()])
    layers, heads, _ = rows.shape
    page.heading(f"{name}: {layers} layers of {heads} heads")
    page.text(ABOUT[name])
    page.keep(f"{name} tokens", tokens)
    page.keep(f"{name} rows", rows)
    to_kids, to_lions = rows[..., tokens.index(KIDS)], rows[..., tokens.index(LIONS)]
    for word, weights in ((KIDS, to_kids), (LIONS, to_lions)):
        page.heat(
            weights.round(decimals=2),
            [f"layer {i}" for i in range(layers)],
            [str(h) for h in range(heads)],
            digits=2,
            largest=1.0,
            caption=f"The weight from `{WORD}` to `{word}` in every head of {name}: a column for each head.",
        )
    page.table(
        ["from they to", "layer", "head", "weight"],
        [
            [word, *where, weight]
            for word, found in ((KIDS, to_kids), (LIONS, to_lions))
            for *where, weight in strongest(found)
        ],
        caption="The strongest heads.",
    )
    more = int((to_kids > to_lions).sum())
    page.text(
        f"""{more} of {layers * heads} heads give `{KIDS}` more weight than `{LIONS}`. On average over all heads
        `{KIDS}` gets {float(to_kids.mean()):.3f}, `{LIONS}` {float(to_lions.mean()):.3f}, and the first token,
        `{tokens[0]}`, {float(rows[..., 0].mean()):.3f}. Shared alike, each of the {len(tokens)} tokens would get
        {1 / len(tokens):.3f}."""
    )
    layer, head, weight = strongest(to_kids)[0]
    steps = explain(model, SENTENCE, layer=layer, head=head)
    page.text(f"The strongest of them, layer {layer} head {head}, number by number:")
    page.steps(steps.table(they))
    page.keep(f"{name} best", (layer, head, weight))
    page.keep(f"{name} steps", steps)
    page.picture(
        lambda: plots.map(steps["weight"][head], tokens, title=f"{name}, layer {layer}, head {head}"),
        f"The whole map of layer {layer} head {head} of {name}: a row is the word that looks.",
    )


def strongest(weights: Tensor, count: int = 3) -> list[tuple[int, int, float]]:
    """The largest weights of [layers, heads], as (layer, head, weight)."""
    top = weights.flatten().topk(count)
    return [(*divmod(i, weights.shape[1]), w) for i, w in zip(top.indices.tolist(), top.values.tolist(), strict=True)]
