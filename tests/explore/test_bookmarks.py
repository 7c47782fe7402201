"""Bookmarks: kept with a run, written into a saved one whole or not at all, and nothing else is read from there."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from explore_cases import make_run, sights, words
from sightline.errors import InputError
from sightline.explore import bookmarks
from sightline.explore.saved import saved_runs

MARK = {"layer": 3, "head": 1, "q": 10, "k": None, "text": "they ☆ are the kids"}


def test_they_are_kept_with_the_run_or_in_its_folder(tmp_path: Path) -> None:
    run = make_run(sights(8), words(8))
    bookmarks.write(run, [MARK])
    assert (bookmarks.read(run), run.marks) == ([MARK], [MARK])
    run.folder = tmp_path
    assert bookmarks.read(run) == []
    bookmarks.write(run, [MARK, MARK])
    assert bookmarks.read(run) == [MARK, MARK]
    assert [path.name for path in tmp_path.iterdir()] == ["bookmarks.json"]


@pytest.mark.parametrize(
    "wrong",
    [
        [{**MARK, "layer": -1}],
        [{**MARK, "q": 1.5}],
        [{**MARK, "k": True}],
        [{**MARK, "text": "x" * 301}],
        [{**MARK, "more": 1}],
        [MARK] * 201,
        {"marks": []},
    ],
)
def test_what_is_no_bookmark_is_refused_and_not_read(wrong: object, tmp_path: Path) -> None:
    run = make_run(sights(8), words(8), folder=tmp_path)
    with pytest.raises(InputError, match="no bookmarks"):
        bookmarks.write(run, wrong)  # type: ignore[arg-type]
    assert not list(tmp_path.iterdir())
    (tmp_path / "bookmarks.json").write_text(json.dumps(wrong))
    assert bookmarks.read(run) == []


def test_links_and_nonsense_are_not_followed(tmp_path: Path) -> None:
    run = make_run(sights(8), words(8), folder=tmp_path)
    (tmp_path / "bookmarks.json").write_bytes(b"\xff[")
    assert bookmarks.read(run) == []
    (tmp_path / "bookmarks.json").unlink()
    (tmp_path / "secret").write_text(json.dumps([MARK]))
    (tmp_path / "bookmarks.json").symlink_to(tmp_path / "secret")
    assert bookmarks.read(run) == []
    with pytest.raises(InputError, match="cannot be written"):
        bookmarks.write(make_run(sights(8), words(8), folder=tmp_path / "gone"), [MARK])


def test_a_saved_run_is_read_with_them_beside_it(tmp_path: Path) -> None:
    import torch

    import sightline as sl

    layer = torch.nn.MultiheadAttention(16, 2, batch_first=True).eval()
    x = torch.randn(1, 6, 16)
    with torch.no_grad(), sl.watch(layer) as seen:
        layer(x, x, x)
    seen.save(tmp_path / "run")
    (tmp_path / "run" / "bookmarks.json").write_text(json.dumps([MARK]))
    (found,), skipped = saved_runs(tmp_path)
    assert (skipped, bookmarks.read(found.open())) == ([], [MARK])
