"""Looked at, carried, mattered: three readings of the same cells, on a sentence a model completes."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from sightline import targets
from sightline.editing import effects
from sightline.lessons.page import Page
from sightline.models.loading import load
from sightline.watching import watch

TITLE = "Looked at, carried, mattered"
SOURCES = ("S1.1", "S3.5")
TEXT = "When Mary and John went to the store, John gave a drink to"
RIGHT, WRONG = " Mary", " John"
LAYER, HEAD = 23, 3  # the head without which the answer changes most
OTHER = (16, 5)  # one that looks strongly elsewhere


def lesson(page: Page) -> None:
    loaded: tuple[Any, Any] = load("smollm2")
    model, tokenizer = loaded
    ids = torch.tensor([tokenizer.encode(TEXT).ids])
    right, wrong = (tokenizer.encode(name).ids[0] for name in (RIGHT, WRONG))
    target = targets.logit(right, than=wrong)
    words = [tokenizer.decode([i]).strip() for i in ids[0].tolist()]

    page.text(
        f"""`{TEXT} …` The next word should be `{RIGHT.strip()}`, not `{WRONG.strip()}`. That is a question with a
        number for an answer: by how much is the logit of the one above that of the other? `sl.targets.logit(mary,
        than=john)` is that question, and SmolLM2-135M-Instruct (4-bit weights) answers:"""
    )
    with watch(model, influence=True, keep_qk=True) as seen:
        answer = target(model(ids))
        seen.backward(answer)
    answer = answer.detach()
    page.keep("answer", float(answer))
    page.code(f"logit of{RIGHT} - logit of{WRONG} = {float(answer):.2f}")

    page.heading("Three readings of one row")
    page.text(
        """A weight says where a head **looked**. But what comes out of a head is weight times value, so a key with a
        large weight and a small value hands over little: `of="norms"` is how long the vector is that each key
        **carried** into the output. And a long vector may point where nobody reads it: `of="influence"` is how much of
        the answer, to first order, came over this edge, with its sign. That is what **mattered**. The influences of a
        row sum to what the whole head's output is worth.""",
        f"""**Predict** before you read on: in layer {LAYER} head {HEAD} the last word looks back. Which word does it
        look at most, and will that be the one that mattered? Which of the others swap places when you go from looked at
        to carried?""",
    )
    found = {of: row(seen, LAYER, HEAD, of) for of in ("weights", "norms", "influence")}
    page.keep("rows", found)
    page.keep("words", words)
    page.table(
        ["position", "word", "looked at", "carried", "mattered"],
        [[i, word, *(float(found[of][i]) for of in found)] for i, word in enumerate(words)],
        caption=f"Layer {LAYER} head {HEAD}, from the last word `{words[-1]}` to every word.",
    )
    best, first = (int(found[of].argmax()) for of in ("influence", "weights"))
    page.keep("best", best)
    looked, carried, mattered = (found[of].tolist() for of in found)
    page.text(
        f"""It looks most at `{words[first]}` at position {first}, and `{words[best]}` at position {best} mattered most:
        {mattered[best]:.2f} of {float(answer):.2f}. Position 0 is the lesson in small. It is looked at with
        {looked[0]:.2f}, and `{words[1]}` with {looked[1]:.2f}; but its value is short: it carries {carried[0]:.1f}
        where `{words[1]}` carries {carried[1]:.1f}, and what mattered of it is {mattered[0]:.3f}. A place to look when
        there is nothing to look for, and nothing comes of it."""
    )
    page.heat(
        torch.stack([found[of] / found[of].abs().max() for of in found]).round(decimals=2),
        ["looked at", "carried", "mattered"],
        [f"{i} {word}" for i, word in enumerate(words)],
        digits=2,
        largest=1.0,
        caption="The same, each row divided by its largest. In the last, orange is for the answer, blue against it.",
    )

    page.heading("A head that looks, and matters little")
    layer, head = OTHER
    weights, worth = (row(seen, layer, head, of) for of in ("weights", "influence"))
    page.keep("other", (weights, worth))
    page.text(
        f"""Layer {layer} head {head} was the strongest from `they` to `kids` in an earlier lesson. Here its largest
        weight from the last word is {float(weights.max()):.2f}, on `{words[int(weights.argmax())]}` at position
        {int(weights.argmax())}, and the most that any of its edges from there is worth is
        {float(worth.abs().max()):.3f}. A picture of weights would have shown it as busy."""
    )

    page.heading("Is it true? Take the head away")
    page.text(
        """Influence is a first-order estimate: the slope of the answer, times the output. The answer is not a straight
        line. So ask the model: replace what the head gives by nothing, run it again, and compare. That is
        `sl.effects`, for every head or for some."""
    )
    heads = [(LAYER, HEAD), OTHER, (29, 1)]
    result = effects(model, ids, target, heads=heads)
    exact, estimate = (table.reshape(-1, *table.shape[-2:])[0] for table in (result.exact, result.influence))
    page.keep("effects", {where: (float(exact[where]), float(estimate[where])) for where in heads})
    page.table(
        ["layer", "head", "influence of the head", "the answer loses without it"],
        [[*where, float(estimate[where]), float(exact[where])] for where in heads],
        caption="Above 0: the head spoke for the answer.",
    )
    off, close = (max(heads, key=lambda at: sign * abs(float(exact[at] / estimate[at] - 1))) for sign in (1, -1))
    page.text(
        f"""The order is the same, the sizes are not: without layer {off[0]} head {off[1]} the answer loses
        {float(exact[off]):.2f}, and the estimate was {float(estimate[off]):.2f}; for layer {close[0]} head {close[1]}
        they are close. An estimate tells where to look, and taking away tells what it was worth, in this sentence. For
        more than one, see the lesson `cutting`."""
    )
    page.heading("Exercises: predict, then run")
    page.text(
        """1. Turn the names round, `… Mary gave a drink to`, and ask for `John`. Which position will matter now, and
        does the same head do it?""",
        """2. Ask something else of the same run: `sl.targets.logprob(mary)`, which sets `Mary` against every other word
        and not against `John` alone. Will the edge to `John` be worth more, or less?""",
        """3. `seen.by_head()` sums influence over all cells of a head. Which head has most, and is it the one that
        `sl.effects` puts first? If they differ: which of the two is an estimate?""",
    )
    page.code(
        """
        with sl.watch(model, influence=True, keep_qk=True) as seen:
            seen.backward(sl.targets.logit(mary, than=john)(model(ids)))
        seen[23].tile(-1, slice(None), of="influence")[0, 3]
        """
    )


def row(seen: Any, layer: int, head: int, of: str) -> Tensor:
    """One reading of a head's cells from the last word, `[keys]`."""
    found: Tensor = seen[layer].tile(-1, slice(None), of=of)[0, head, 0]
    return found.detach().double()
