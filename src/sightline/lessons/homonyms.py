"""Words with several meanings come out different in different contexts: `bank` in two trained models (S3.5)."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from sightline.lessons.page import Page
from sightline.models.loading import load

TITLE = "Homonyms: one word, two vectors"
SOURCES = ("S3.5",)
WORD = "bank"
# Each with the word it should come near to. The context stands in front: a decoder sees nothing else.
SENTENCES = {
    "She took her money and went to the bank.": "money",
    "He needed a loan, so he asked the bank.": "money",
    "They rowed down the river and rested on the bank.": "river",
    "The water rose and flooded the grassy bank.": "river",
}
# `like` says how in the first two, and what somebody is fond of in the others.
AMBIGUOUS = (
    "Time flies like an arrow.",
    "She moves like a cat.",
    "Fruit flies like a banana.",
    "Most children like a good story.",
)
ABOUT = {
    "minilm": "An encoder: every word sees the whole sentence.",
    "smollm2": "A decoder: a word sees only what stands in front of it.",
}


def lesson(page: Page) -> None:
    models = {name: load(name)[0] for name in ABOUT}  # a model that is not installed is said before all else
    page.text(
        f"""The embedding of a word is the same wherever it stands. `{WORD}` can be a house for money or the side of a
        river, and only its context tells. Attention brings the context in, so after some layers the same word should
        have different vectors. Is that so? We take four sentences:"""
    )
    page.table(["sentence", "is about"], [[sentence, word] for sentence, word in SENTENCES.items()])
    page.text(
        f"""How alike two vectors are is the cosine of the angle between them: 1 is the same direction, 0 is nothing in
        common. We compare `{WORD}` in each sentence with the others, and with the vectors of `money` and of `river`
        standing alone."""
    )
    for name, model in models.items():
        one_model(page, name, model)


def one_model(page: Page, name: str, model: nn.Module) -> None:
    page.heading(name)
    page.text(ABOUT[name])
    found = [states(model, sentence, WORD) for sentence in SENTENCES]  # each [layers + 1, width]
    # A decoder cannot look ahead, and treats the first token as a place to rest: it needs something in front.
    front = "" if name == "minilm" else "The word is "
    alone = {word: states(model, front + word, word) for word in ("money", "river")}
    layers = len(found[0]) - 1
    together = torch.stack(found)
    page.keep(f"{name} states", together)
    short = [f"{i + 1}: {word}" for i, word in enumerate(SENTENCES.values())]
    for at, where in ((0, "before the first layer"), (layers, f"after all {layers} layers")):
        page.heat(
            alike(together[:, at], together[:, at]),
            short,
            digits=2,
            largest=1.0,
            caption=f"How alike `{WORD}` is in the four sentences {where}.",
        )
        page.keep(f"{name} alike {at}", alike(together[:, at], together[:, at]))

    rows = []
    for at in range(0, layers + 1, max(1, layers // 6)):
        near = torch.stack([alike(together[:, at], alone[word][at, None])[:, 0] for word in ("money", "river")])
        right = sum((near[0] > near[1]) == (word == "money") for near, word in zip(near.T, SENTENCES.values()))
        rows.append([at, *(near[0] - near[1]).tolist(), f"{int(right)} of {len(SENTENCES)}"])
        page.keep(f"{name} lead {at}", near[0] - near[1])
    page.table(
        ["layer", *short, "as expected"],
        rows,
        caption=f"How much nearer `{WORD}` is to `money` than to `river`: above 0 is money, below 0 is river.",
    )
    last = page.results[f"{name} alike {layers}"]
    same, other = float((last[0, 1] + last[2, 3]) / 2), float(last[:2, 2:].mean())
    page.keep(f"{name} same", same)
    page.keep(f"{name} other", other)
    page.text(
        f"""At the end two sentences of the same meaning have a cosine of {same:.2f}, two of different meaning of
        {other:.2f}: the one word has become two. At the start they differed only by their positions, if at all."""
    )
    syntax(page, name, model)


def syntax(page: Page, name: str, model: nn.Module) -> None:
    """The same for a word whose part of speech is open."""
    vectors = torch.stack([states(model, sentence, "like")[-1] for sentence in AMBIGUOUS])
    table = alike(vectors, vectors)
    page.text(
        """Sentences can be open too. In the first two of these `like` says how, in the last it is a verb, and in the
        third it is a verb that looks like the other."""
    )
    numbers = [str(i) for i in range(1, len(AMBIGUOUS) + 1)]
    page.table(["number", "sentence"], [[i, sentence] for i, sentence in zip(numbers, AMBIGUOUS, strict=True)])
    page.heat(table, numbers, digits=2, largest=1.0, caption="How alike `like` is in them, after all layers.")
    how, verb = float(table[2, :2].mean()), float(table[2, 3])
    page.keep(f"{name} like", table)
    nearer, so = ("the first two", "it is fooled, as readers are at first") if how > verb else ("the last", "a verb")
    page.text(
        f"""To {name}, `like` in the third is nearer to {nearer}: {how:.2f} to the first two, {verb:.2f} to the last;
        {so}."""
    )


def states(model: nn.Module, text: str, word: str) -> Tensor:
    """The vector of a word before the first layer and after each, `[layers + 1, width]`."""
    stack: Any = getattr(model, "encoder", None) or model.decoder
    batch = model.batch(text)  # type: ignore[operator]
    place = batch.tokens.index(word)
    seen: list[Tensor] = []

    def before(module: nn.Module, given: tuple) -> None:
        seen.append(given[0])

    def after(module: nn.Module, given: tuple, out: Tensor) -> None:
        seen.append(out)

    layers = list(stack.layers)
    hooks = [layers[0].register_forward_pre_hook(before), *(layer.register_forward_hook(after) for layer in layers)]
    try:
        with torch.no_grad():
            model(batch.ids)
    finally:
        for hook in hooks:
            hook.remove()
    return torch.stack([x.reshape(-1, x.shape[-1])[place] for x in seen]).double()


def alike(one: Tensor, other: Tensor) -> Tensor:
    """Cosines between the rows of two matrices."""
    return nn.functional.normalize(one, dim=-1) @ nn.functional.normalize(other, dim=-1).T
