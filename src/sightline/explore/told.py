"""What a run says of itself beside its sights, as far as the explorer reads it: it may come from anywhere."""

from __future__ import annotations

from typing import Any

from sightline.errors import InputError
from sightline.explore.changes import read

MOST = 4096


def check_told(meta: dict[str, Any]) -> None:
    """Raise unless what was written, and what would come next, has the form that the explorer shows."""
    written, following = meta.get("written"), meta.get("next")
    if written is not None and not (
        isinstance(written, dict)
        and set(written) == {"prompt", "tokens"}
        and _whole(written["prompt"])
        and _list(written["tokens"], lambda one: _token(one, "others") and _list(one["others"], _token))
    ):
        raise InputError("meta.written is not a text that was written, token by token")
    edits = meta.get("edits")
    if edits is not None and not (isinstance(edits, list) and len(edits) <= 32 and all(map(_is_edit, edits))):
        raise InputError("meta.edits are no edits of the explorer's")
    if following is not None and not _list(following, lambda one: _token(one, "logit") and _number(one["logit"])):
        raise InputError("meta.next are not tokens that may come next")


def _is_edit(text: Any) -> bool:
    try:
        return isinstance(text, str) and bool(read(text))
    except InputError:
        return False


def _token(one: Any, *more: str) -> bool:
    return (
        isinstance(one, dict)
        and set(one) == {"id", "text", "p", *more}
        and _whole(one["id"])
        and isinstance(one["text"], str)
        and len(one["text"]) <= 1000
        and _number(one["p"])
    )


def _list(found: Any, sound: Any) -> bool:
    return isinstance(found, list) and len(found) <= MOST and all(sound(one) for one in found)


def _whole(x: Any) -> bool:
    return type(x) is int and 0 <= x < 1 << 31


def _number(x: Any) -> bool:
    return type(x) in (int, float)
