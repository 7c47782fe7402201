"""Who are `they`? Where the heads of two trained models look, and whether any of them knows (S2.1)."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from sightline import plots
from sightline.lessons.page import Page
from sightline.lessons.references import LINKS, NOUNS, VERBS, Found, search, sentences, together
from sightline.models.loading import load
from sightline.steps import explain

TITLE = "The kids, the lions, and they"
SOURCES = ("S2.1",)
SENTENCE = "The kids were scared of the lions, so they left right away."
WORD, KIDS, LIONS = "they", "kids", "lions"
# The same words in other places, and a verb that turns the reference round. Each with who left.
CONTROLS = {
    SENTENCE: KIDS,
    "The lions were scared of the kids, so they left right away.": LIONS,
    "The kids scared the lions, so they left right away.": LIONS,
    "The lions scared the kids, so they left right away.": KIDS,
}

ABOUT = {
    "minilm": """`minilm` (all-MiniLM-L6-v2) is an encoder: 6 layers of 12 heads, and every word sees every word. It was
        trained to tell whether two sentences mean the same.""",
    "smollm2": """`smollm2` (SmolLM2-135M-Instruct, its weights stored in 4 bits) is a decoder: 30 layers of 9 heads,
        and a word sees itself and its past. It was trained to predict the next word. Much of the weight goes to the
        first token, whatever it is: a place to look when there is nothing to look for.""",
}


def lesson(page: Page) -> None:
    models = {name: load(name)[0] for name in ABOUT}  # a model that is not installed is said before all else
    page.text(
        f"""`{SENTENCE}` Who left? A reader knows that `{WORD}` are the {KIDS}. A model has no one to tell it; but its
        heads look from `{WORD}` to other words, and we can see where. Below are the weights of every head of two
        trained models, counted from 0. Then the question that a picture alone never answers: does a head that looks
        at `{KIDS}` do so because they left?"""
    )
    for name, model in models.items():
        one_model(page, name, model)
    page.heading("The control: swap the words")
    page.text(
        f"""A head that knows who left looks at `{LIONS}` when it was the lions. **Predict** before you read on: what
        will the strongest heads do in the other three sentences?"""
    )
    for name, model in models.items():
        control(page, name, model)
    page.text(
        f"""Layer 3 head 1 of minilm, which looked so clever, follows the **first noun**: in the third sentence the
        lions left, and it still looks at `{KIDS}`. Layer 5 head 2 prefers `{KIDS}` and head 5 prefers `{LIONS}`,
        whatever happens. One sentence could not have told."""
    )
    page.heading("Over many sentences")
    given = sentences()
    mine, theirs = given[0].text, given[1].text
    page.text(
        f"""To find a head that does follow the reference we need many sentences in which nothing else can give it away.
        `{mine}` and `{theirs}` differ in one verb, and with it in who acts. With {len(VERBS)} such verbs,
        {len(NOUNS)} pairs of nouns and both orders of them there are {len(given) // 2} pairs, {len(given)} sentences.
        In half of them it is the first noun, and each noun is as often the right one as the wrong one: a head that goes
        by place or by noun alone is right in exactly half. A **hit** is a sentence in which a head gives the right noun
        more weight than the other."""
    )
    results = {name: search(model) for name, model in models.items()}
    for name, found in results.items():
        hits(page, name, found)
    layer, head = results["smollm2"].best()[0]
    page.table(
        ["sentence", "who left", "to kids", "to lions"],
        [
            [sentence, who, *page.results["smollm2 controls"][sentence][layer, head].tolist()]
            for sentence, who in CONTROLS.items()
        ],
        caption=f"Back to the four sentences, none of which chose it: layer {layer} head {head} of smollm2.",
    )
    turn_round(page, models, results)
    page.heading("What this shows, and what not")
    page.text(conclusion({name: page.results[f"{name} both"] for name in models}, results))


def turn_round(page: Page, models: dict[str, nn.Module], results: dict[str, Found]) -> None:
    """The same sentences with `because`, which turns the reference round and leaves all else as it was."""
    layer, head = results["smollm2"].best()[0]
    page.heading("One more control: because")
    mine = sentences(link=LINKS[1])[0].text
    page.text(
        f"""Does layer {layer} head {head} of smollm2 know whom `{WORD}` stands for, or something that only went
        together with it? In all these sentences the one who acts is the one who **feels**: who fears, and who is
        scared. `because` parts the two. `{mine}` Now `{WORD}` are the other ones, those who gave the reason; who feels
        is the same as before. (A decoder has seen no more than `because {WORD}`, and before no more than `so {WORD}`:
        right is what a reader expects there, from the verb and that one small word.) **Predict**: what will the head
        do?"""
    )
    for name, model in models.items():
        so, because = results[name], search(model, link=LINKS[1])
        both = together(so, because)
        page.keep(f"{name} because", because)
        page.keep(f"{name} both", both)
        heads = list(dict.fromkeys(found.best()[0] for found in (so, because, both)))
        page.table(
            ["layer", "head", "with so", "with because", f"of all {both.count}"],
            [[*at, *(f"{float(found.rates[at]):.0%}" for found in (so, because, both))] for at in heads]
            + [["the best of all", "by chance", *(f"{found.by_chance()[0]:.0%}" for found in (so, because, both))]],
            caption=f"{name}: hits of the best head with `so`, with `because`, and over both, as far as they differ.",
        )
        _heat_of(page, f"{name}, `so` and `because`", both)


def _heat_of(page: Page, name: str, found: Found) -> None:
    layers, heads = found.rates.shape
    page.heat(
        (found.rates - 0.5).round(decimals=2),
        [f"layer {i}" for i in range(layers)],
        [str(h) for h in range(heads)],
        digits=2,
        largest=0.5,
        caption=f"{name}: the share of hits less one half. 0.50 would be right always, -0.50 wrong always.",
    )


def control(page: Page, name: str, model: nn.Module) -> None:
    """The strongest heads of the first sentence, in all four."""
    rows = []
    weights: dict[str, Tensor] = {}
    for sentence in CONTROLS:
        _, sights = model.observe(sentence)  # type: ignore[operator]
        they, *nouns = (sights.tokens.index(word) for word in (WORD, KIDS, LIONS))
        weights[sentence] = torch.stack(
            [sight.tile(they, slice(None)).squeeze()[:, nouns] for sight in sights.values()]
        )
    page.keep(f"{name} controls", weights)  # of each sentence [layers, heads, 2]
    first = weights[SENTENCE]
    heads = strongest(first[..., 0])[:2] + strongest(first[..., 1])[:1]
    for sentence, who in CONTROLS.items():
        looks = [f"{a:.2f} / {b:.2f}" for layer, head, _ in heads for a, b in [weights[sentence][layer, head].tolist()]]
        rows.append([sentence, who, *looks])
    page.table(
        ["sentence", "who left", *(f"layer {layer} head {head}" for layer, head, _ in heads)],
        rows,
        caption=f"{name}: the weight from `{WORD}` to `{KIDS}` / to `{LIONS}`.",
    )


def hits(page: Page, name: str, found: Found) -> None:
    """The table of hits of one model."""
    layers, heads = found.rates.shape
    expected, probability = found.by_chance()
    changes = 2 ** len(found.right)  # of groups
    page.keep(f"{name} found", found)
    page.table(
        ["layer", "head", "hits", "share", "looks at the first noun", "mean weight, right", "other"],
        [
            [
                layer,
                head,
                f"{round(found.count * float(found.rates[layer, head]))} of {found.count}",
                f"{float(found.rates[layer, head]):.0%}",
                f"{float(found.first[layer, head]):.0%}",
                *found.weights[:, layer, head].tolist(),
            ]
            for layer, head in found.best(4)
        ],
        caption=f"{name}: the heads with most hits, of {layers * heads}.",
    )
    _heat_of(page, f"{name}, `so`", found)
    tested = " and ".join(f"layer {layer} head {head}, {share:.0%}" for layer, head, share in found.held_out())
    page.text(
        f"""By chance a head is right in half of them. But we took the best of {layers * heads}: if the verbs told
        nothing, the best would still have {expected:.0%}. That is the mean over all {changes:,} ways to let the two
        verbs of some pairs change places, with the best head taken each time; a best like this one came up in
        {round(probability * changes)} of them, and one of them is the real one. A second guard: the head that is best
        with one half of the verbs, tried with the other half, and the other way round: {tested}."""
    )


def conclusion(results: dict[str, Found], so: dict[str, Found]) -> str:
    """As strong as the numbers are: over both kinds of sentences, and what became of the best with `so` alone."""
    told = []
    for name, found in results.items():
        (layer, head), (expected, _), first = found.best()[0], found.by_chance(), so[name]
        rate = f"{float(found.rates[layer, head]):.0%} against {expected:.0%} for the best by chance"
        if found.holds:
            told.append(f"In {name} layer {layer} head {head} follows the reference with `so` and `because`: {rate}.")
            continue
        told.append(
            f"In {name} **no head follows the reference**: the best over both, layer {layer} head {head}, {rate}."
        )
        at = first.best()[0]
        if first.holds:
            share, other = float(first.rates[at]), 2 * float(found.rates[at]) - float(first.rates[at])
            told.append(
                f"Its layer {at[0]} head {at[1]}, right in {share:.0%} with `so`, far above chance and with verbs that"
                f" did not choose it too, is right in {other:.0%} with `because`, less than half: it goes"
                " to **who feels** rather, and that happened to be whom `they` stood for. One more control, and a"
                " finding has another name."
            )
        else:
            told.append(f"The best with `so` alone had {float(first.rates[at]):.0%}.")
    return (
        " ".join(told) + " Above chance, a head has something to do with the reference; to follow it, we ask that it be"
        " right in three of four. It is one kind of sentence, with one kind of verb; the reference may well be spread"
        " over several heads; and a weight says where a head takes its values from, not that the model's answer rests"
        " on it: see the lessons `three-readings` and `cutting`."
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
