"""The worked table of a run: which tokens it may be of."""

from __future__ import annotations

from typing import Any

import pytest

from explore_cases import make_run, sights
from sightline.explore.worked_table import has_ids


@pytest.mark.parametrize(
    "ids, batch, known",
    [([[1, 2, 3]], 0, True), ([[1] * 1000], 0, False), ([[1, 2, 3]], 1, False), ([], 0, False), (None, 0, False)],
)
def test_a_model_is_run_again_on_the_tokens_of_the_map_alone(ids: Any, batch: int, known: bool) -> None:
    """A saved run may name a model of the server and hold a million other ids."""
    run = make_run(sights(3), ["a", "b", "c"])
    run.account.ids, run.batch = ids, batch  # type: ignore[attr-defined]
    assert has_ids(run, 0) is known
