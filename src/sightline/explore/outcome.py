"""What a model would write next after a text, edits and all."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

from torch import Tensor

from sightline.editing import edit
from sightline.errors import InputError, TooLargeError
from sightline.explore.aims import Aim, aimed, logits_after, place, told
from sightline.explore.changes import edits_of, needs_whole
from sightline.explore.run import Run
from sightline.explore.writing import likeliest

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
        return logits_after(model, ids, after, needs_whole(run.meta))


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
