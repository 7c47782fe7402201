"""What a model would write next after a text, edits and all; and the same as lines of Python."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

from torch import Tensor

from sightline.editing import edit
from sightline.errors import InputError, TooLargeError
from sightline.explore.aims import Aim, aimed, logits_after, place, told
from sightline.explore.changes import edits_of, read
from sightline.explore.programs import kept_program
from sightline.explore.run import Run
from sightline.explore.writing import likeliest
from sightline.models.checkpoints.builtin import BUILTINS

# A longer text is not run again for one row of logits: what was kept of the last one has to do.
LONGEST = 1024


def ids_of(run: Run) -> list[int]:
    """The tokens that the model was given."""
    ids = getattr(run.account, "ids", None) or []
    if run.batch >= len(ids):
        raise InputError(
            "the tokens of this run are not known", expected="a run made here", got="none", hint="run its text here"
        )
    return list(ids[run.batch])


def row_of(run: Run, model: Any, after: int) -> Tensor:
    """The logits after a position, with the edits of the run."""
    if not hasattr(model, "stream"):
        raise InputError(
            "this model predicts no tokens", expected="a causal language model", got=str(run.model), hint="smollm2"
        )
    ids = ids_of(run)
    if len(ids) > LONGEST:
        raise TooLargeError(
            "this text is not run once more for its logits",
            expected=f"at most {LONGEST:,} tokens",
            got=f"{len(ids):,}",
            hint="the likeliest tokens after it were kept: ask without a token",
        )
    changes = edits_of(run.meta.get("edits") or ())
    with edit(model, changes) if changes else nullcontext():
        return logits_after(model, ids, after)


def outcome(run: Run, tokenizer: Any, row: Tensor, aim: Aim, n: int) -> dict[str, Any]:
    """What comes next: the likeliest tokens, and those that are asked about with the difference of their logits."""
    ids = ids_of(run)
    after = place(aim, len(ids))
    before = ids[: after + 1]
    found = aimed(aim, tokenizer, ids, row)
    token = told(row, tokenizer, before, found.token)
    than = None if found.than is None else told(row, tokenizer, before, found.than)
    return {
        "after": after,
        "tokens": likeliest(row, n, tokenizer, before),
        "token": token,
        "than": than,
        "value": token["logit"] - (0.0 if than is None else than["logit"]),
    }


def kept(run: Run, n: int) -> dict[str, Any] | None:
    """The same from what was kept of the last position, where nothing else is asked for."""
    known = run.meta.get("next")
    if not known:
        return None
    first = known[0]
    return {
        "after": len(run.tokens) - 1,
        "tokens": known[:n],
        "token": first,
        "than": None,
        "value": first["logit"],
    }


def python(run: Run, layer: int, head: int, query: int | None, key: int | None, ids: tuple | None) -> str:
    """What is on the screen as a program: the text, the edits, the target, the head, and the cell or the row.

    `ids` are those of the token, of the other one, and the position.
    """
    about = run.layer(layer)
    run.view(layer, head)
    known = kept_program(run, about, head, query, key)
    if known is not None:
        return known
    of, edits = run.of, run.meta.get("edits") or []
    name = run.model if run.model in BUILTINS else f"folder/of/{run.model}"
    text = run.text or ""
    lines = ["import torch", "import sightline as sl", "", f"model, tokenizer = sl.models.load({name!r})"]
    lines.append(f"ids = torch.tensor([tokenizer.encode({text!r}).ids])")
    gradients = of != "weights"
    if ids is not None:
        than = "" if ids[1] is None else f", than={ids[1]}"
        lines.append(f"target = sl.targets.logit({ids[0]}{than}, at={ids[2]})")
    opened = [] if gradients else ["torch.no_grad()"]
    opened += ["sl.edit(model) as edits"] if edits else []
    opened.append(f"sl.watch(model, {'influence=True, ' if gradients else ''}keep_qk=True) as seen")
    lines.append(f"with {', '.join(opened)}:")
    lines += [f"    {read(edit).python()}" for edit in edits]
    lines.append("    output = model(ids)")
    if gradients:
        lines += ["    y = target(output)", "    seen.backward(y)", "value = float(y.detach())"]
    elif ids is not None:
        lines.append("value = float(target(output))")
    rows = "slice(None)" if query is None else f"slice({query}, {query + 1})"
    columns = "slice(None)" if key is None else f"slice({key}, {key + 1})"
    what = f", of={of!r}" if gradients else ""
    lines.append(f"cells = seen[{about.name!r}].tile({rows}, {columns}{what})[0, {about.numbers[head]}]")
    lines.append("print(cells)")
    return "\n".join(lines) + "\n"
