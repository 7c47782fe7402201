"""Ask it why, over HTTP: readings, edits and what comes next are Python's own numbers, and leave nothing behind."""

from __future__ import annotations

import io
import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import sightline as sl
from explore_cases import make_run, sights, words
from sightline.errors import TooLargeError
from sightline.explore import readings
from sightline.explore.aims import Aim
from sightline.explore.model_runs import RunRequest
from sightline.explore.run import Run
from sightline.web.jobs import Cancelled, performer
from sightline.web.service import Service
from web.browser import Trained, trained
from web.conftest import Client

TEXT = "When Mary and John went to the store, John gave a drink to"
AIM = {"token": " Mary", "than": " John"}


@pytest.fixture(scope="module")
def asked() -> Iterator[Client]:
    models = Trained(["smollm2"])
    service = Service(performer(models, lambda run: service.library.add(run)), models, threads=1)
    yield Client(service)
    service.close()


@pytest.fixture(scope="module")
def base(asked: Client) -> str:
    return done(asked, asked.post("/api/runs", json={"text": TEXT, "model": "smollm2"}))


@pytest.fixture(scope="module")
def reading(asked: Client, base: str) -> str:
    return done(asked, asked.post(f"/api/runs/{base}/readings", json=AIM))


def done(client: Client, ordered: Any) -> str:
    assert ordered.status_code == 202, ordered.text
    id = ordered.json()["id"]
    events = [line[6:] for line in client.get(f"/api/runs/{id}/events").text.splitlines() if line.startswith("data: ")]
    assert json.loads(events[-1])["state"] == "done", events[-1]
    return str(id)


@pytest.fixture(scope="module")
def seen() -> Any:
    model, tokenizer = trained("smollm2")
    ids = torch.tensor([tokenizer.encode(TEXT).ids])
    mary, john = (tokenizer.encode(name).ids[0] for name in (" Mary", " John"))
    with sl.watch(model, influence=True, keep_qk=True) as found:
        found.backward(sl.targets.logit(mary, than=john)(model(ids)))
    return found


@pytest.mark.parametrize("of", ["norms", "influence"])
def test_readings_of_cells_are_pythons(asked: Client, reading: str, seen: Any, of: str) -> None:
    for layer, head in ((23, 3), (0, 8), (29, 1)):
        cells = seen[layer].tile(slice(None), slice(None), of=of)[0, head].numpy()
        body = asked.get(f"/api/runs/{reading}_{of}/tiles/{layer}/{head}/0/0/0/0").content
        tile = np.frombuffer(body, "<f4").reshape(256, 256)[:14, :14]
        visible = np.tri(14, dtype=bool)
        np.testing.assert_allclose(tile[visible], cells[visible], rtol=1e-6)
        assert np.isnan(tile[~visible]).all()
        row = np.frombuffer(asked.get(f"/api/runs/{reading}_{of}/rows/{layer}/{head}?q=13").content, "<f4")
        np.testing.assert_allclose(row, cells[13], rtol=1e-6)
        grid = asked.get(f"/api/runs/{reading}_{of}/grid?q=13&k=9").json()["heads"]
        assert grid[layer][head] == pytest.approx(float(cells[13, 9]), rel=1e-6)
    cell = asked.get(f"/api/runs/{reading}_{of}/peek/23/3?rows=13&cols=9").json()
    assert cell["reading"] == pytest.approx(
        float(seen[23].tile(slice(13, 14), slice(9, 10), of=of)[0, 3].item()), rel=1e-6
    )
    assert cell["weight"] == pytest.approx(0.7404, abs=1e-4)


def test_the_head_that_writes_mary_is_among_the_three_that_mattered_most(asked: Client, reading: str) -> None:
    about = asked.get(f"/api/runs/{reading}_influence").json()
    assert about["value"] == pytest.approx(6.12, abs=0.005)
    assert (about["of"], about["signed"], about["aim"]) == ("influence", True, {**AIM, "after": None})
    portraits = asked.get(f"/api/runs/{reading}_influence/portraits").json()
    order = sorted(
        ((abs(head["influence"]), i, j) for i, layer in enumerate(portraits["heads"]) for j, head in enumerate(layer)),
        reverse=True,
    )
    assert (23, 3) in [place[1:] for place in order[:3]]
    assert portraits["first"] == [23, 3]
    grid = asked.get(f"/api/runs/{reading}_influence/grid?q=13&k=9").json()
    assert grid["heads"][23][3] == pytest.approx(2.785, abs=1e-3)
    assert about["most"] == pytest.approx(grid["heads"][23][3])
    assert len(asked.get(f"/api/runs/{reading}_influence/thumbs").content) == 270 * 64 * 64


def test_without_it_the_difference_of_logits_falls_by_three(asked: Client, base: str) -> None:
    before = asked.get(f"/api/runs/{base}/next", params=AIM).json()
    assert before["value"] == pytest.approx(6.12, abs=0.005)
    assert before["token"]["p"] == pytest.approx(0.923, abs=1e-3)
    assert before["tokens"][0]["text"] == " Mary"
    edited = done(asked, asked.post("/api/runs", json={"text": TEXT, "model": "smollm2", "edits": ["ablate:23.3"]}))
    after = asked.get(f"/api/runs/{edited}/next", params={"token": "Mary", "than": "John"}).json()
    assert before["value"] - after["value"] == pytest.approx(3.04, abs=0.01)
    about = asked.get(f"/api/runs/{edited}").json()
    assert about["edits"] == ["ablate:23.3"]
    assert about["title"].startswith("(without layer 23 head 3) When Mary")
    assert edited != base
    cut = {"text": TEXT, "model": "smollm2", "edits": ["cut:23.3:q13:k9"]}
    edge = done(asked, asked.post("/api/runs", json=cut))
    assert asked.get(f"/api/runs/{edge}/next", params=AIM).json()["value"] == pytest.approx(3.33, abs=0.01)
    weights = np.frombuffer(asked.get(f"/api/runs/{edge}/rows/23/3?q=13").content, "<f4")
    assert np.isnan(weights[9])  # hidden
    assert np.nansum(weights) == pytest.approx(1)


def test_what_is_on_the_screen_runs_as_python(asked: Client, base: str, reading: str) -> None:
    found: dict[str, Any] = {}
    lines = asked.get(f"/api/runs/{reading}_influence/python/23/3?q=13&k=9").json()["python"]
    exec(lines, found)
    assert found["value"] == pytest.approx(6.12, abs=0.005)
    cell = asked.get(f"/api/runs/{reading}_influence/peek/23/3?rows=13&cols=9").json()
    assert float(found["cells"]) == pytest.approx(cell["reading"], rel=1e-6)
    edited = done(asked, asked.post("/api/runs", json={"text": TEXT, "model": "smollm2", "edits": ["scale:23.3:x0.5"]}))
    lines = asked.get(f"/api/runs/{edited}/python/23/3", params={"q": 13, **AIM}).json()["python"]
    assert "edits.scale(0.5, heads=[(23, 3)])" in lines
    exec(lines, found)
    shown = asked.get(f"/api/runs/{edited}/next", params=AIM).json()
    assert found["value"] == pytest.approx(shown["value"], rel=1e-5)
    row = np.frombuffer(asked.get(f"/api/runs/{edited}/rows/23/3?q=13").content, "<f4")
    np.testing.assert_allclose(found["cells"].reshape(-1), row, atol=1e-6)


@pytest.mark.parametrize("of", ["norms", "influence"])
def test_numbers_to_take_away_are_of_the_reading_and_say_so(asked: Client, reading: str, seen: Any, of: str) -> None:
    wanted = seen[23].tile(slice(4, 14), slice(0, 14), of=of)[0, 3].numpy()
    path = f"/api/runs/{reading}_{of}/export?layer=23&head=3&rows=4:14&cols=0:14&format="
    answer = asked.get(f"{path}csv")
    first, *lines = answer.text.strip().splitlines()
    assert first == f"query,key,query_token,key_token,{of}"
    assert f"layer23-head3-{of}.csv" in answer.headers["content-disposition"]
    cells = {tuple(map(int, line.split(",")[:2])): float(line.rsplit(",", 1)[1]) for line in lines}
    assert cells[13, 9] == pytest.approx(float(wanted[9, 9]), rel=1e-6)
    assert len(cells) == sum(range(5, 15))
    file = np.load(io.BytesIO(asked.get(f"{path}npz").content))
    visible = np.tri(10, 14, 4, dtype=bool)
    np.testing.assert_allclose(file[of][visible], wanted[visible], rtol=1e-6)
    assert "weights" not in file
    about = json.loads(str(file["about"]))
    assert (about["of"], about["run"], about["aim"]["token"]) == (of, reading.split("_")[0], " Mary")
    assert about["value"] == pytest.approx(6.12, abs=0.005)


def test_a_reading_that_is_taken_back_leaves_no_hook(asked: Client, base: str) -> None:
    """Forwards, and half way back."""
    model, tokenizer = asked.service.models.get("smollm2")  # type: ignore[union-attr]
    run = asked.service.run(base)
    for stop in ("running", "going back", "measuring"):
        threads = threading.active_count()

        def report(stage: str, stop: str = stop, done: int = 0, **_: int) -> None:
            if stage == stop and done > 3:
                raise Cancelled

        with pytest.raises(Cancelled):
            readings.compute(readings.ReadingRequest(run, Aim(" Mary", " the")), model, tokenizer, report)
        hooks = [len(module._forward_hooks) + len(module._backward_hooks) for module in model.modules()]
        assert sum(hooks) == 0
        assert all(parameter.grad is None for parameter in model.parameters())
        assert threading.active_count() == threads
    assert not run.readings or all(one.base is run for one in run.readings.values())


def test_memory_is_asked_for_before_a_backward_pass(asked: Client, base: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model, tokenizer = asked.service.models.get("smollm2")  # type: ignore[union-attr]
    monkeypatch.setattr("sightline.memory.available", lambda device: 1 << 20)
    monkeypatch.setattr("sightline.explore.once_more.needed", lambda model, tokens: 1 << 40)
    told: list[str] = []
    request = readings.ReadingRequest(asked.service.run(base), Aim())
    with pytest.raises(TooLargeError, match="a backward pass through this text"):
        readings.compute(request, model, tokenizer, lambda **say: told.append(say["stage"]))
    assert not told


def test_what_cannot_be_asked_is_said(asked: Client, base: str, reading: str) -> None:
    wrong = asked.post("/api/runs", json={"text": TEXT, "model": "smollm2", "edits": ["exec:1.2"]})
    assert (wrong.status_code, wrong.json()["error"]) == (422, "no such edit")
    assert asked.get(f"/api/runs/{base}_none_influence").status_code == 404
    assert asked.get(f"/api/runs/{reading}_weights").status_code == 404
    words_ = asked.get(f"/api/runs/{base}/next", params={"token": "unbelievably so"})
    assert (words_.status_code, words_.json()["error"]) == (422, "this is not one token")
    assert asked.get(f"/api/runs/{base}/next?after=99").status_code == 422
    far = asked.post("/api/runs", json={"text": TEXT, "model": "smollm2", "edits": ["ablate:99.3"]}).json()["id"]
    events = asked.get(f"/api/runs/{far}/events").text.strip().splitlines()[-1]
    assert json.loads(events[6:])["state"] == "failed"


def test_a_run_without_its_model_says_how_to_get_readings(client: Client, run: Run) -> None:
    about = client.get(f"/api/runs/{run.id}").json()
    assert about["own"] == ["weights"]
    assert "influence=True" in about["why_not"]
    answer = client.post(f"/api/runs/{run.id}/readings", json={})
    assert answer.status_code == 422
    assert "influence=True" in answer.json()["got"]


def test_a_run_that_kept_them_has_readings_of_its_own(client: Client, tmp_path: Path) -> None:
    layer = torch.nn.MultiheadAttention(16, 2, batch_first=True).eval()
    x = torch.randn(1, 7, 16)
    with sl.watch(layer, influence=True, keep_qk=True) as found:
        out: Tensor = layer(x, x, x)[0]
        found.backward(out[:, -1].sum(-1))
    found.save(tmp_path / "run")
    client.service.library.shelve_folder(tmp_path)
    (listed,) = client.service.library.listed()
    about = client.get(f"/api/runs/{listed['id']}").json()
    assert about["own"] == ["weights", "norms", "influence"]
    row = np.frombuffer(client.get(f"/api/runs/{listed['id']}_own_influence/rows/0/1?q=6").content, "<f4")
    np.testing.assert_allclose(row, found[0].tile(slice(6, 7), slice(None), of="influence")[0, 1, 0], rtol=1e-5)


def test_bookmarks_are_put_and_read(client: Client, run: Run) -> None:
    marks = [{"layer": 1, "head": 2, "q": 5, "k": None, "text": "here"}]
    assert client.request("PUT", f"/api/runs/{run.id}/bookmarks", json={"marks": marks}).status_code == 204
    assert client.get(f"/api/runs/{run.id}/bookmarks").json() == {"marks": marks, "saved": False}
    wrong = client.request("PUT", f"/api/runs/{run.id}/bookmarks", json={"marks": [{"layer": -1, "head": 0}]})
    assert wrong.status_code == 422


def test_what_is_written_is_told_and_nothing_else_is_paced(client: Client) -> None:
    account = sights(6)
    token = {"id": 3, "text": " a", "p": 0.5}
    account.meta = {"written": {"prompt": 5, "tokens": [{**token, "others": [token]}]}}  # type: ignore[attr-defined]
    run = make_run(account, words(6))
    client.service.library.add(run)
    found = client.get(f"/api/runs/{run.id}/written").json()
    assert (found["prompt"], found["writing"], found["total"]) == (5, False, 1)
    assert client.post(f"/api/runs/{run.id}/pace", json={"do": "pause"}).status_code == 404
    plain = make_run(sights(6), words(6), text="another")
    client.service.library.add(plain)
    assert client.get(f"/api/runs/{plain.id}/written").status_code == 404


def test_the_same_text_with_other_edits_is_another_run() -> None:
    ids = {
        RunRequest("a", "m").id,
        RunRequest("a", "m", edits=("ablate:1.2",)).id,
        RunRequest("a", "m", edits=("ablate:1.3",)).id,
        RunRequest("a", "m", generate=3, begun=(1,)).id,
    }
    assert len(ids) == 4
