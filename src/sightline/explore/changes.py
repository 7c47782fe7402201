"""Edits as the page writes them, one short word each, and what they are as `sl.Edits`, in Python and in words.

    ablate:23.3          head 3 of layer 23 gives nothing
    cut:23.3:q13:k9      its query 13 does not see key 9; without q or k: all of them, with 3-7 a stretch
    scale:23.3:x0.5      its output times one half
    boost:23.3:k9:x2     its weights on key 9 doubled before they are normalised
    cut:5.*:k0           the same in all heads of layer 5; *.* is all heads of all layers

Nothing else is read: what a page asks for is one of these, with numbers.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sightline.editing import Edits
from sightline.errors import InputError

MOST = 32
_SPAN = r"(\d{1,9})(?:-(\d{1,9}))?"
_EDIT = re.compile(
    rf"(ablate|cut|scale|boost):(\d{{1,4}}|\*)\.(\d{{1,4}}|\*)(?::q{_SPAN})?(?::k{_SPAN})?(?::x(\d{{1,6}}(?:\.\d{{1,6}})?))?"
)


@dataclass(frozen=True)
class Change:
    """One edit. None: all of them."""

    kind: str
    layer: int | None
    head: int | None
    queries: tuple[int, int] | None
    keys: tuple[int, int] | None
    factor: float | None

    def call(self) -> tuple[str, list[Any], dict[str, Any]]:
        """The method of `sl.Edits`, and its arguments."""
        where: dict[str, Any] = {}
        if self.layer is not None and self.head is not None:
            where["heads"] = [(self.layer, self.head)]
        elif self.layer is not None:
            where["layers"] = [self.layer]
        elif self.head is not None:
            where["heads"] = [self.head]
        if self.queries is not None:
            where["queries"] = _columns(self.queries)
        if self.keys is not None:
            where["keys"] = _columns(self.keys)
        return self.kind, [] if self.factor is None else [self.factor], where

    def words(self) -> str:
        """As one would say it.

        >>> read("ablate:23.3").words(), read("cut:23.3:q13:k9").words(), read("boost:5.*:k0-3:x2").words()
        ('without layer 23 head 3', 'layer 23 head 3, 13 → 9 cut', 'layer 5, all → 0 to 3 boosted × 2')
        """
        who = {
            (True, True): "all heads",
            (True, False): f"head {self.head} of every layer",
            (False, True): f"layer {self.layer}",
            (False, False): f"layer {self.layer} head {self.head}",
        }[self.layer is None, self.head is None]
        where = "" if self.queries is None and self.keys is None else f", {_said(self.queries)} → {_said(self.keys)}"
        if self.kind == "ablate":
            return f"without {who}"
        if self.kind == "cut":
            return f"{who}{where} cut"
        return f"{who}{where} {'scaled' if self.kind == 'scale' else 'boosted'} × {_number(self.factor or 0.0)}"

    def python(self) -> str:
        """The line of Python that does it.

        >>> read("cut:23.3:q13:k9").python()
        'edits.cut(heads=[(23, 3)], queries=13, keys=9)'
        """
        name, given, where = self.call()
        parts = [_number(value) for value in given] + [f"{name}={value!r}" for name, value in where.items()]
        return f"edits.{name}({', '.join(parts)})"


def read(text: str) -> Change:
    """One edit, or an error that says what could be written."""
    found = _EDIT.fullmatch(text)
    problem = "" if found else "no such edit"
    if found:
        kind, layer, head, q0, q1, k0, k1, factor = found.groups()
        if (kind in ("scale", "boost")) != (factor is not None):
            problem = f"{kind} {'needs a factor' if factor is None else 'has no factor'}"
        elif kind == "cut" and q0 is None and k0 is None:
            problem = "a cut needs queries or keys"
        elif kind == "ablate" and (layer == head == "*" or q0 or k0):
            problem = "whole heads are ablated, and not all of them"
        elif (kind == "scale" and k0) or (kind == "boost" and k0 is None):
            problem = "a head's output is scaled as a whole; a boost needs keys"
        elif kind == "boost" and not float(factor):
            problem = "a boost by 0 is a cut"
        elif any(b is not None and int(b) < int(a) for a, b in ((q0, q1), (k0, k1))):
            problem = "a stretch ends before it begins"
    if not found or problem:
        raise InputError(
            problem,
            expected="such as ablate:23.3, cut:23.3:q13:k9, scale:23.3:x0.5 or boost:23.3:k9:x2",
            got=repr(text)[:80],
            hint="ablate:23.3",
        )
    return Change(
        kind,
        None if layer == "*" else int(layer),
        None if head == "*" else int(head),
        None if q0 is None else (int(q0), int(q1 or q0)),
        None if k0 is None else (int(k0), int(k1 or k0)),
        None if factor is None else float(factor),
    )


def edits_of(texts: Sequence[str], layers: int | None = None) -> Edits:
    """All of them as a value for `sl.edit`; of a model with so many layers, one of another layer is refused.

    It would change nothing, and the run would be called one without that head.
    """
    made = Edits()
    for text in texts:
        change = read(text)
        if layers is not None and change.layer is not None and change.layer >= layers:
            raise InputError(
                "this edit is of a layer that the model has not",
                expected=f"layers 0 to {layers - 1}",
                got=repr(text)[:80],
                hint="layers are counted in the order in which they run",
            )
        name, given, where = change.call()
        getattr(made, name)(*given, **where)
    return made


def needs_whole(meta: Mapping[str, Any]) -> bool:
    """Whether what an edited run says of a place takes the text behind it too: edits may name tokens there."""
    return bool(meta.get("edits"))


def _columns(span: tuple[int, int]) -> int | slice:
    return span[0] if span[0] == span[1] else slice(span[0], span[1] + 1)


def _number(factor: float) -> str:
    """All of it: a program with fewer digits would give other numbers."""
    return repr(factor).removesuffix(".0")


def _said(span: tuple[int, int] | None) -> str:
    return "all" if span is None else str(span[0]) if span[0] == span[1] else f"{span[0]} to {span[1]}"
