"""Cutting an edge: what happens to the answer when one word may no longer look at another."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from sightline import targets
from sightline.editing import edit
from sightline.lessons.page import Page
from sightline.models.loading import load

TITLE = "Cutting an edge"
SOURCES = ("S1.1", "S3.5")
TEXT = "When Mary and John went to the store, John gave a drink to"
RIGHT, WRONG = " Mary", " John"
HEAD = (23, 3)  # the head without which the answer changes most


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
    page.heading("Exercises: predict, then run")
    page.text(
        f"""1. Boost the edge instead: `edits.boost(4.0, keys={second}, queries=-1, heads=[{HEAD}])`. Will the answer
        rise by more or by less than the cut took?""",
        f"""2. Cut the edge from the second `{WRONG.strip()}` to the first, in all heads: `edits.cut(queries={second},
        keys={words.index(WRONG.strip())})`. How does the last word know that the name came twice?""",
        """3. `edits.force("uniform", heads=[(23, 3)])` makes the head an average again, as in the first lesson. What is
        left of the answer?""",
    )
