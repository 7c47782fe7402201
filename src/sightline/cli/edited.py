"""What changes when something is cut, told in the terminal: `sightline look --cut`."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import torch

from sightline.editing import Edits, edit
from sightline.errors import InputError


def cuts(given: str) -> Edits:
    """Heads and edges as people write them: `23.3` is a head, `23.3:-1:9` its edge from query -1 to key 9.

    >>> print(cuts("23.3,1.5:-1:9"))
    ablate(by='zero', heads=[(23, 3)])
    cut(keys=9, heads=[(1, 5)], queries=-1)
    """
    edits = Edits()
    for part in given.split(","):
        match = re.fullmatch(r"\s*(\d+)\.(\d+)(?::(-?\d+):(-?\d+))?\s*", part)
        if match is None:
            raise InputError(
                "nothing can be cut by this",
                expected="LAYER.HEAD, or LAYER.HEAD:QUERY:KEY, separated by commas",
                got=repr(part),
                hint="--cut 23.3, --cut 23.3:-1:9",
            )
        layer, head, query, key = (None if x is None else int(x) for x in match.groups())
        where: dict[str, Any] = {"heads": [(layer, head)]}
        if query is None:
            edits.ablate(**where)
        else:
            edits.cut(queries=query, keys=key, **where)
    return edits


def check(cut: str | None, target: str | None) -> Edits | None:
    """The edits, or None; refused without a target that could change."""
    if cut is None:
        return None
    if target is None:
        raise InputError(
            "a cut changes something",
            expected="--target TOKEN",
            got="no target",
            hint='--target " Mary" --instead " John"',
        )
    return cuts(cut)


def changed(model: Any, tokenizer: Any, text: str, target: Callable[[Any], Any], edits: Edits, what: str) -> list[str]:
    """What a target is, and what it is under edits, in lines."""
    ids = torch.tensor([tokenizer.encode(text).ids], device=model.device)
    with torch.no_grad():
        before = float(target(model(ids)))
        with edit(model, edits):
            after = float(target(model(ids)))
    moved = "less" if after < before else "more"
    lines = [f"{what} is {before:.2f}", *(f"  {one}" for one in edits)]
    return [*lines, f"With that it is {after:.2f}: {abs(before - after):.2f} {moved}"]
