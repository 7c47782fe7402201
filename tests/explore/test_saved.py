"""Saved runs as they are listed and opened; what a server makes of damaged ones is in tests/web/test_library.py."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import sightline as sl
from sightline.errors import InputError
from sightline.explore.run import runs_of
from sightline.explore.saved import find, saved_runs
from sightline.watching import Seen


@pytest.fixture(scope="module")
def seen() -> Seen:
    layer = torch.nn.MultiheadAttention(16, 2, batch_first=True).eval()
    x = torch.randn(3, 4, 16)
    with torch.no_grad(), sl.watch(layer, keep_qk=True) as account:
        layer(x, x, x)
    account.tokens = [["so", "they", "left", word] for word in ("early", "late", "away")]
    return account


def test_every_text_of_a_batch_is_a_run(seen: Seen, tmp_path: Path) -> None:
    seen.save(tmp_path / "runs" / "batch")
    found, skipped = saved_runs(tmp_path / "runs")
    assert skipped == []
    assert [run.about["title"] for run in found] == ["so they left early", "so they left late", "so they left away"]
    assert [run.about["origin"] for run in found] == ["batch"] * 3
    opened = found[2].open()
    assert (opened.id, opened.batch, opened.tokens[3]) == (found[2].id, 2, "away")
    weights = opened.view(0, 1).tile(slice(None), slice(None))
    torch.testing.assert_close(torch.from_numpy(weights), seen[0].tile(slice(None), slice(None))[2, 1])


def test_an_id_is_that_of_the_content(seen: Seen, tmp_path: Path) -> None:
    """So that an address means the same run wherever it is opened: in a notebook, or from a folder."""
    seen.save(tmp_path / "batch")
    ids = [run.id for run in saved_runs(tmp_path / "batch")[0]]
    assert ids == [run.id for run in runs_of(seen, origin="notebook")]
    assert len(set(ids)) == 3
    assert [run.id for run in runs_of(seen, 2)] == ids[:2]


def test_a_folder_without_runs_is_an_error(tmp_path: Path) -> None:
    for folder in (tmp_path, tmp_path / "nothing"):
        with pytest.raises(InputError, match="there is no saved run"):
            find(folder)


def test_one_bad_run_is_one_line(seen: Seen, tmp_path: Path) -> None:
    seen.save(tmp_path / "good")
    seen.save(tmp_path / "bad")
    (tmp_path / "bad" / "index.json").write_text("[1]")
    found, (line,) = saved_runs(tmp_path)
    assert {run.path.name for run in found} == {"good"}
    assert line.startswith("bad: ")
