"""What cannot be edited, and is refused while it runs: attention that is not seen, and some that is written by hand."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from sightline.editing.plan import MAP, Act
from sightline.errors import InputError

if TYPE_CHECKING:
    from sightline.editing.editor import Editor


class Refusing(dict):
    """What attends without being caught: refused if an edit is about it."""

    def __init__(self, editor: Editor) -> None:
        super().__init__()
        self.editor = editor

    def __setitem__(self, name: str, why: str) -> None:
        editor = self.editor
        if why == _UNCOMPILED:
            if name not in editor.list.uncompiled:
                editor.list.uncompiled.append(name)
            return
        if any(edit.where.may_change(name, editor.modules) for edit in editor.list):
            raise InputError(
                f"{name} cannot be edited",
                expected="attention by a function that sl.watch sees",
                got=why,
                hint="layers=… to leave it out, or F.scaled_dot_product_attention in its place",
            )
        super().__setitem__(name, why)

    def setdefault(self, name: str, why: str = "") -> str:  # type: ignore[override]
        if name not in self:
            self[name] = why
        return why


def check_by_hand(name: str, acts: list[Act], how: str) -> None:
    """Refuse what cannot be done where attention is written by hand: its scores are known, and not q and k."""
    if how == "dropped" and any(act.step in MAP for act in acts):
        got, hint = "weights of which some were dropped", "model.eval()"
    elif any(act.step in ("queries", "keys") for act in acts):
        got, hint = "scores, not the queries and keys that they are made of", 'what="pattern"'
    elif in_checkpoint():
        got, hint = "a checkpoint, in which it would run again unedited", "without checkpointing"
    else:
        return
    raise InputError(
        f"this edit is not for {name}",
        expected="attention that is not written by hand, or another edit",
        got=got,
        hint=hint,
    )


_UNCOMPILED = "attends in a compiled function, which ran uncompiled to be seen"


def in_checkpoint() -> bool:
    frame = sys._getframe(1)
    while frame is not None:
        if frame.f_globals.get("__name__") == "torch.utils.checkpoint":
            return True
        frame = frame.f_back  # type: ignore[assignment]
    return False
