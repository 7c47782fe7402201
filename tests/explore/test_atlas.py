"""What can be asked of a run is answered without a server, and what several answers need is made once."""

from __future__ import annotations

import io
import json

import numpy as np
import pytest
import torch

import sightline as sl
from explore_cases import exact, make_run, sights, words
from sightline.errors import InputError
from sightline.explore import thumbs
from sightline.explore.atlas import Atlas
from sightline.explore.run import NotInRun, Run, as_run
from sightline.watching import Seen


@pytest.fixture
def run() -> Run:
    return make_run(sights(40), words(40))


@pytest.fixture(scope="module")
def seen() -> Seen:
    layer = torch.nn.MultiheadAttention(16, 2, batch_first=True).eval()
    x = torch.randn(2, 12, 16)
    with torch.no_grad(), sl.watch(layer, keep_qk=True) as account:
        layer(x, x, x)
    return account


def test_portraits_and_thumbnails_share_their_pictures(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    atlas, made, thumb = Atlas(), [], thumbs.thumb
    monkeypatch.setattr(thumbs, "thumb", lambda pyramid, **_: made.append(pyramid) or thumb(pyramid))
    body, complete = atlas.portraits(run)
    assert complete is True
    assert body["heads"][1][2]["first"] == pytest.approx(exact(run, 1, 2)[:, 0].mean().item(), rel=1e-5)
    pictures, complete = atlas.thumbs(run)
    assert complete is True
    assert len(pictures) == 6 * thumbs.SIDE**2
    assert len(made) == 6, "every head once, for both"


def test_a_link_is_a_cell_of_the_map(run: Run) -> None:
    query, key, weight = Atlas().link(run, 0, 1)["link"]
    assert weight == pytest.approx(exact(run, 0, 1)[query, key].item(), rel=1e-5)


def test_rollout_is_that_of_the_account(seen: Seen, run: Run) -> None:
    watched = as_run("x", seen, batch=1)
    np.testing.assert_allclose(Atlas().rollout(watched, [3]), seen.rollout(3)[1], rtol=1e-6)
    with pytest.raises(InputError, match="this run has no rollout"):
        Atlas().rollout(run, [3])


def test_steps_without_the_model_have_no_values(run: Run) -> None:
    atlas = Atlas()
    body = atlas.steps(run, 0, 1, query=9, top=4, key=3)
    assert body["has_values"] is False
    assert body["python_key"] == 3
    assert len(atlas.kept) == 1
    atlas.steps(run, 0, 1, query=10, top=4, key=None)
    assert len(atlas.kept) == 1, "the steps of a head are made once"
    with pytest.raises(InputError, match="there is no such query"):
        atlas.steps(run, 0, 1, query=40, top=4, key=None)


def test_files_to_take_away(run: Run) -> None:
    name, media, content = Atlas().export(run, "npz", 1, 0, slice(5, 9), None)
    assert (name, media) == (f"sightline-{run.id[:8]}-layer1-head0.npz", "application/octet-stream")
    file = np.load(io.BytesIO(content))
    np.testing.assert_allclose(np.nan_to_num(file["weights"]), exact(run, 1, 0)[5:9], atol=1e-6)
    assert json.loads(str(file["about"]))["columns"] == [0, 40]
    assert Atlas().export(run, "csv", 1, 0, slice(0, 1), slice(0, 1)).content.count(b"\n") == 2


@pytest.mark.parametrize(
    "layer, head, text", [(2, 0, "no such layer"), (-1, 0, "no such layer"), (0, 3, "no such head")]
)
def test_what_a_run_does_not_have_is_an_error_of_ours(run: Run, layer: int, head: int, text: str) -> None:
    with pytest.raises(NotInRun, match=f"there is {text}\n  expected: 0 to "):
        Atlas().link(run, layer, head)
