"""Cutting an edge: what happens to the answer when one word may no longer look at another."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from sightline import targets
from sightline.editing import edit
from sightline.lessons.page import Page
from sightline.models.loading import load

TITLE = "Cutting an edge"
SOURCES = ("S1.1", "S3.5")
TEXT = "When Mary and John went to the store, John gave a drink to"
RIGHT, WRONG = " Mary", " John"
HEAD = (23, 3)  # the head without which the answer changes most
OTHER = (16, 5)  # one that looks there too
NAMES = ("Mary", "John", "Anna", "Paul", "Sarah", "Tom")  # each one token


def lesson(page: Page) -> None:
    loaded: tuple[Any, Any] = load("smollm2")
    model, tokenizer = loaded
    ids = torch.tensor([tokenizer.encode(TEXT).ids])
    right, wrong = (tokenizer.encode(name).ids[0] for name in (RIGHT, WRONG))
    target = targets.logit(right, than=wrong)
    words = [tokenizer.decode([i]).strip() for i in ids[0].tolist()]
    second = len(words) - 1 - words[::-1].index(WRONG.strip())  # the John that stands second
    page.text(
        f"""Whether an edge mattered can be asked of the model itself: cut it, and run again. `{TEXT} …` should go on
        with `{RIGHT.strip()}`, and the answer is how far its logit is above that of `{WRONG.strip()}`, in
        SmolLM2-135M-Instruct (4-bit weights). Everything else is left as it is: the same weights, the same words, and
        one number in one map that is no longer allowed."""
    )
    page.code(
        f"""
        with torch.no_grad(), sl.edit(model) as edits:
            edits.cut(queries=-1, keys={second}, heads=[{HEAD}])
            target(model(ids))
        """
    )

    def asked(*do: Callable[[Any], Any]) -> float:
        with torch.no_grad(), edit(model) as edits:
            for one in do:
                one(edits)
            return float(target(model(ids)))

    with torch.no_grad():
        plain = float(target(model(ids)))
    page.text(
        f"""**Predict** before you read on. The last word looks at `{words[second]}`, position {second}, in layer
        {HEAD[0]} head {HEAD[1]}. Which of these cuts changes the answer most, and does any of them turn it round,
        below 0?"""
    )
    tries: dict[str, tuple[Callable[[Any], Any], ...]] = {
        "nothing": (),
        f"that one edge, to position {second}": (lambda e: e.cut(queries=-1, keys=second, heads=[HEAD]),),
        "another edge of the same head, to position 1": (lambda e: e.cut(queries=-1, keys=1, heads=[HEAD]),),
        "the edge to position 0, which gets weight and carries little": (
            lambda e: e.cut(queries=-1, keys=0, heads=[HEAD]),
        ),
        f"position {second} for the last word, in all heads of all layers": (lambda e: e.cut(queries=-1, keys=second),),
        "position 1 for the last word, in all heads of all layers": (lambda e: e.cut(queries=-1, keys=1),),
        "the whole head": (lambda e: e.ablate(heads=[HEAD]),),
    }
    found = {name: asked(*do) for name, do in tries.items()}
    page.keep("plain", plain)
    page.keep("found", found)
    page.keep("second", second)
    page.table(
        ["what was cut", "answer", "changed by"],
        [[name, value, value - plain] for name, value in found.items()],
        caption="The answer: logit of Mary less logit of John, after the last word.",
    )
    edge = found[f"that one edge, to position {second}"]
    edges = 30 * 9 * len(words) * (len(words) + 1) // 2  # layers, heads, and a word sees itself and its past
    page.text(
        f"""One edge of {edges:,} takes {plain - edge:.2f} of {plain:.2f} away, nearly as much as the whole head: the
        head does one thing here, over one edge. It does not copy the name it looks at: what it takes from
        `{words[second]}`, the name that came twice, counts for `{RIGHT.strip()}`. Cutting what the last word takes from
        `{RIGHT.strip()}` itself, in every head, costs most. And the edge to position 0 has weight too; without it, the
        weight goes to the others, and the answer rises.""",
        """A cut edge is not the same as a weight of 0 with the rest left alone: what remains of the row is made to
        sum to 1 again, so other words get more. `renormalize=False` leaves them as they were; then something is missing
        instead.""",
    )
    kept = asked(lambda e: e.cut(queries=-1, keys=second, heads=[HEAD], renormalize=False))
    page.keep("kept", kept)
    page.table(
        ["the same edge cut", "answer"],
        [["and the rest of the row made to sum to 1", edge], ["and the rest left as it was", kept]],
    )
    after = asked()
    page.keep("after", after)
    page.text(
        f"""After the block the model is what it was: {after:.2f} again. Beware of one thing: a model may have other
        ways to the same answer, and take them when one is cut. A cut that changes nothing does not prove that the edge
        did nothing while it was there."""
    )
    other_names(page, model, tokenizer)
    page.heading("Exercises: predict, then run")
    page.text(
        f"""1. Boost the edge instead: `edits.boost(4.0, keys={second}, queries=-1, heads=[{HEAD}])`. Will the answer
        rise by more or by less than the cut took?""",
        f"""2. Cut the edge from the second `{WRONG.strip()}` to the first, in all heads: `edits.cut(queries={second},
        keys={words.index(WRONG.strip())})`. How does the last word know that the name came twice?""",
        """3. `edits.force("uniform", heads=[(23, 3)])` makes the head an average again, as in the first lesson. What is
        left of the answer?""",
    )


def other_names(page: Page, model: Any, tokenizer: Any) -> None:
    """The same cut in the same sentence with other names: is it a property of the head, or of one sentence?"""
    pairs = list(itertools.permutations(NAMES, 2))
    frame = TEXT.replace(RIGHT, " {0}").replace(WRONG, " {1}")
    ids = torch.tensor([tokenizer.encode(frame.format(*two)).ids for two in pairs])
    right, wrong = (torch.tensor([tokenizer.encode(f" {two[i]}").ids[0] for two in pairs]) for i in (0, 1))
    target = targets.logit(right, than=wrong)
    second = int((ids[0] == wrong[0]).nonzero()[-1])
    page.heading("With other names")
    page.text(
        f"""All of this was one sentence. {len(NAMES)} names make {len(pairs)} of them, `{" and ".join(pairs[1])}`,
        `{" and ".join(pairs[2])}` and so on, all as long as this one. If the head does what we said, the same edge
        matters in all of them. As a control, the same edge of a head that looks there too: layer {OTHER[0]} head
        {OTHER[1]}. **Predict** both."""
    )
    answers: dict[str, Tensor] = {}
    with torch.no_grad(), edit(model) as edits:
        answers["nothing"] = target(model(ids))
        for name, head in ((f"that edge of layer {at[0]} head {at[1]}", at) for at in (HEAD, OTHER)):
            edits.cut(queries=-1, keys=second, heads=[head])
            answers[name] = target(model(ids))
            edits.clear()
    page.keep("other names", answers)
    plain, cut, control = answers.values()
    page.table(
        ["what was cut", "answer", "changed by", "least", "most"],
        [
            [
                name,
                _spread(value),
                _spread(value - plain),
                *sorted(((value - plain).min().item(), (value - plain).max().item()), key=abs),
            ]
            for name, value in answers.items()
        ],
        caption=f"Means over {len(pairs)} sentences, and their spread (standard deviation).",
    )
    more = int(((plain - cut) > (plain - control).abs()).sum())
    page.text(
        f"""In {more} of {len(pairs)} sentences the cut took more than the control did. It is still one frame of words,
        and a head may do other things in others."""
    )


def _spread(values: Tensor) -> str:
    return f"{float(values.mean()):.2f} ± {float(values.std()):.2f}"
