"""What a model would write next after a text, edits and all; and the same as lines of Python."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from sightline.editing import edit
from sightline.errors import InputError, TooLargeError
from sightline.explore.aims import Aim, aimed, logits_after, place, told
from sightline.explore.changes import edits_of, read
from sightline.explore.effects import left
from sightline.explore.programs import HELD, kept_program
from sightline.explore.readings import OWN
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


def kept(run: Run, n: int, aim: Aim) -> dict[str, Any] | None:
    """The same from what was kept of the last position; None if that does not say it."""
    known = run.meta.get("next")
    if not known or aim.after not in (None, len(run.tokens) - 1):
        return None
    token = _named(known, aim.token) if aim.token else known[0]
    than = _named(known, aim.than) if aim.than else None
    if token is None or token is than or (aim.than and than is None):
        return None
    return {
        "after": len(run.tokens) - 1,
        "tokens": known[:n],
        "token": token,
        "than": than,
        "value": token["logit"] - (0.0 if than is None else than["logit"]),
    }


def _named(known: list[dict[str, Any]], text: str) -> dict[str, Any] | None:
    """The likelier of a text as it is written or after a space, as `token_id` has it."""
    written = (text,) if text[:1].isspace() else (text, f" {text}")
    return next((one for one in known if one["text"] in written), None)


def spelled(run: Run, tokenizer: Any) -> list[int] | None:
    """The ids of a run's tokens, if its text is not cut into these: what a model wrote may be cut otherwise."""
    ids = ids_of(run)
    return None if list(tokenizer.encode(run.text or "").ids) == ids else ids


@dataclass(frozen=True)
class Screen:
    """What is looked at: a head, queries and a key if any, the ids of the target, whether effects of all heads."""

    layer: int
    head: int
    queries: Sequence[int] = ()
    key: int | None = None
    target: tuple[int, int | None, int] | None = None  # the token, the other one, and the position
    effects: bool = False
    ids: Sequence[int] | None = None  # of the text, where it does not say them
    held: bool = False  # the model is at hand where the program runs: a notebook's own


def python(run: Run, screen: Screen) -> str:
    """What is on the screen as a program: the text, the edits, the target, the head, and the cell or the row."""
    about = run.layer(screen.layer)
    view = run.view(screen.layer, screen.head)
    view.inside("query", screen.queries or [0], about.queries)
    view.inside("key", [screen.key or 0], about.keys)
    # Only the model can say what its own account does not: a reading for a target, effects.
    asked = screen.target is not None and f"_{OWN}_" not in run.id
    known = None
    if not (asked and screen.held):
        known = kept_program(run, about, screen.head, screen.queries, screen.key, screen.held)
    if known is not None:
        return known
    of, edits, target = run.of, run.meta.get("edits") or [], screen.target
    lines = ["import torch", "import sightline as sl", ""]
    if screen.held:
        lines += [HELD, f"ids = torch.tensor([{ids_of(run)}], device=model.device)"]
    else:
        name = run.model if run.model in BUILTINS else f"folder/of/{run.model}"
        ids = f"tokenizer.encode({run.text or ''!r}).ids" if screen.ids is None else str(list(screen.ids))
        lines += [f"model, tokenizer = sl.models.load({name!r})", f"ids = torch.tensor([{ids}])"]
    changes = [f"    {read(edit).python()}" for edit in edits]
    gradients = of != "weights"
    if target is not None:
        lines.append(f"target = sl.targets.logit({_tokens(target)}, at={target[2]})")
    opened = [] if gradients else ["torch.no_grad()"]
    opened += ["sl.edit(model) as edits"] if edits else []
    opened.append(f"sl.watch(model, {'influence=True, ' if gradients else ''}keep_qk=True) as seen")
    lines += [f"with {', '.join(opened)}:", *changes, "    output = model(ids)"]
    if gradients:
        lines += ["    y = target(output)", "    seen.backward(y)", "value = float(y.detach())"]
    elif target is not None:
        lines.append("value = float(target(output))")
    columns = "slice(None)" if screen.key is None else f"slice({screen.key}, {screen.key + 1})"
    what = f", of={of!r}" if gradients else ""
    rows = "slice(None)" if not screen.queries else f"slice({screen.queries[0]}, {screen.queries[0] + 1})"
    head = about.numbers[screen.head]
    if len(screen.queries) > 1:
        added = f"seen[{about.name!r}].tile(query, {columns}{what})[0, {head}]"
        lines.append(f"cells = sum({added} for query in {list(screen.queries)})")
    else:
        lines.append(f"cells = seen[{about.name!r}].tile({rows}, {columns}{what})[0, {head}]")
    lines.append("print(cells)")
    if screen.effects and target is not None:
        given = f'{{"ids": ids[:, : {target[2] + 1}], "last": 1}}, sl.targets.logit({_tokens(target)})'
        done = f"effects = sl.effects(model, {given}{_heads(run)})"
        lines += ["with sl.edit(model) as edits:", *changes, f"    {done}"] if edits else [done]
        lines.append("print(effects)")
    return "\n".join(lines) + "\n"


def _heads(run: Run) -> str:
    """Which heads are taken out: those that the edits have left, and the run has."""
    rest = left(run)
    layers, heads = (sorted({pair[i] for pair in rest}) for i in (0, 1))
    every = [(layer, head) for layer in layers for head in heads]
    gone = sorted(set(every) - set(rest))
    if not gone and layers == list(range(len(layers))):
        return ""
    without = f" if (layer, head) not in {gone}" if gone else ""
    return f", heads=[(layer, head) for layer in {layers} for head in {heads}{without}]"


def _tokens(target: tuple[int, int | None, int]) -> str:
    return str(target[0]) if target[1] is None else f"{target[0]}, than={target[1]}"
