"""Edits as the page writes them: only what is offered is read, and it is what `sl.Edits` does."""

from __future__ import annotations

import pytest

import sightline as sl
from sightline.errors import InputError
from sightline.explore.changes import edits_of, read


def test_they_are_edits_of_the_library() -> None:
    made = sl.Edits()
    made.ablate(heads=[(23, 3)])
    made.cut(heads=[(23, 3)], queries=13, keys=slice(3, 8))
    made.scale(0.5, layers=[5])
    made.boost(2.0, heads=[1], keys=9)
    made.cut(keys=0)
    made.scale(123456.654321, heads=[(0, 1)])  # every digit counts
    texts = ["ablate:23.3", "cut:23.3:q13:k3-7", "scale:5.*:x0.5", "boost:*.1:k9:x2", "cut:*.*:k0"]
    texts += ["scale:0.1:x123456.654321"]
    assert edits_of(texts) == made
    scope = {"edits": sl.Edits()}
    for text in texts:
        exec(read(text).python(), scope)
    assert scope["edits"] == made


@pytest.mark.parametrize(
    "wrong",
    [
        "patch:1.2",
        "ablate:1",
        "ablate:*.*",
        "ablate:1.2:k3",
        "cut:1.2",
        "cut:1.2:k5-3",
        "cut:1.2:x2:k3",
        "scale:1.2",
        "scale:1.2:k3:x2",
        "boost:1.2:x2",
        "boost:1.2:k3:x0",
        "ablate:1.2;import os",
        "cut:1.2:q-1",
        "scale:1.2:xinf",
    ],
)
def test_whatever_else_is_refused(wrong: str) -> None:
    with pytest.raises(InputError, match=r"such as ablate:23\.3"):
        read(wrong)
