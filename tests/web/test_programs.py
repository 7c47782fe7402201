"""What is on the screen as Python, run: every kind of thing that can be shown comes out as the server has it."""

from __future__ import annotations

import base64
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import image_cases
import sightline as sl
from sightline.explore.model_runs import Models, RunRequest, watched
from sightline.web.jobs import performer
from sightline.web.service import Service
from web.conftest import Client
from web.test_effects import AIM, TEXT, Tiny, done
from word_model import TEXT as WORDS
from word_model import word_model

Numbers = dict[str, Any]
CLOSE = {"rtol": 2e-5, "atol": 1e-7}


class Told(Client):
    """Asks for programs and runs them, with the model of the server in the place of one in a folder."""

    tiny: Tiny | None = None

    def ran(self, run: str, place: str = "1/2", **given: Any) -> Numbers:
        answer = self.get(f"/api/runs/{run}/python/{place}", params=given)
        assert answer.status_code == 200, answer.text
        there: Numbers = {}
        with pytest.MonkeyPatch.context() as patch:
            if self.tiny is not None:
                patch.setattr(sl.models, "load", self.tiny.get)
            exec(answer.json()["python"], there)
        return there

    def floats(self, path: str) -> np.ndarray:
        """Hidden cells are 0 in Python, and NaN to a page."""
        answer = self.get(f"/api/runs/{path}")
        assert answer.status_code == 200, answer.text
        return np.nan_to_num(np.frombuffer(answer.content, "<f4"))

    def made(self, **given: Any) -> str:
        return done(self, self.post("/api/runs", json={"text": TEXT, "model": "tiny", **given}))[0]


@pytest.fixture(scope="module")
def asked() -> Iterator[Told]:
    tiny = Tiny()
    service = Service(performer(tiny, lambda run: service.library.add(run)), tiny, runs=16, threads=1)
    made = Told(service)
    made.tiny = tiny
    yield made
    service.close()


@pytest.fixture(scope="module")
def base(asked: Told) -> str:
    return asked.made()


@pytest.fixture(scope="module")
def edited(asked: Told) -> str:
    return asked.made(edits=["cut:0.1:k3", "boost:0.1:q9:k2-4:x3.25", "ablate:0.2", "scale:1.1:x0.5"])


@pytest.fixture(scope="module")
def written(asked: Told) -> str:
    return asked.made(generate=6)


@pytest.fixture(scope="module")
def reading(asked: Told, base: str) -> str:
    return done(asked, asked.post(f"/api/runs/{base}/readings", json=AIM))[0]


@pytest.fixture(scope="module")
def rewritten(asked: Told, written: str) -> str:
    """What was written, token by token, with edits."""
    tokens = [token["id"] for token in asked.get(f"/api/runs/{written}/written").json()["tokens"]]
    return asked.made(generate=len(tokens), begun=tokens, edits=["ablate:1.2", "cut:0.1:k3"])


@pytest.fixture(scope="module")
def shelved(asked: Told, tmp_path_factory: pytest.TempPathFactory) -> str:
    """A saved run whose model is at hand."""
    assert asked.tiny is not None
    folder = tmp_path_factory.mktemp("kept") / "mine"
    watched(*asked.tiny.get("tiny"), RunRequest(f"{TEXT} Mary", "tiny"), folder, lambda **_: None)
    known = {one["id"] for one in asked.service.library.listed()}
    assert asked.service.library.shelve_folder(folder) == []
    (found,) = {one["id"] for one in asked.service.library.listed()} - known
    return str(found)


KINDS = ["base", "edited", "written", "rewritten", "shelved", "some", "norms", "influence", "chosen"]


@pytest.fixture(params=KINDS)
def run(request: pytest.FixtureRequest, asked: Told, base: str) -> str:
    """Runs of all kinds whose numbers a program has to give."""
    kind = request.param
    if kind in ("norms", "influence"):
        return f"{request.getfixturevalue('reading')}_{kind}"
    if kind == "some":
        return asked.made(layers="1-2")
    if kind == "chosen":  # an alternative, from the second written token on
        tokens = asked.get(f"/api/runs/{request.getfixturevalue('written')}/written").json()["tokens"]
        return asked.made(generate=5, begun=[tokens[0]["id"], tokens[1]["others"][2]["id"]])
    return str(request.getfixturevalue(kind))


def test_cells_rows_columns_and_rectangles(asked: Told, run: str) -> None:
    size = asked.get(f"/api/runs/{run}").json()["layers"][1]["queries"]
    whole = np.stack([asked.floats(f"{run}/rows/1/2?q={q}") for q in range(size)])
    np.testing.assert_allclose(asked.ran(run)["cells"], whole, **CLOSE)
    np.testing.assert_allclose(asked.ran(run, q="9", k="4")["cells"].reshape(()), whole[9, 4], **CLOSE)
    np.testing.assert_allclose(asked.ran(run, q="9")["cells"][0], whole[9], **CLOSE)
    np.testing.assert_allclose(asked.ran(run, k="4")["cells"][:, 0], whole[:, 4], **CLOSE)
    several = asked.floats(f"{run}/rows/1/2?q=9,12,13")
    np.testing.assert_allclose(asked.ran(run, q="9,12,13")["cells"][0], several, **CLOSE)
    np.testing.assert_allclose(asked.ran(run, rows="3:11", cols="2:9")["cells"], whole[3:11, 2:9], **CLOSE)


def test_what_the_text_is_shaded_by(asked: Told, run: str) -> None:
    for q in ("9", "9,13"):
        there = asked.ran(run, q=q, k=4, also="row,column,received,rollout")
        np.testing.assert_allclose(there["row"], asked.floats(f"{run}/rows/1/2?q={q}"), **CLOSE)
        np.testing.assert_allclose(there["column"], asked.floats(f"{run}/columns/1/2?k=4"), **CLOSE)
        tracks = asked.floats(f"{run}/tracks/1/2")
        np.testing.assert_allclose(there["received"], tracks[len(tracks) // 2 :], **CLOSE)
        fed = asked.floats(f"{run.split('_')[0]}/rollout?q={q}")
        np.testing.assert_allclose(there["rollout"], fed, **CLOSE)
        assert there["rollout"].sum() == pytest.approx(1)
    column = asked.ran(run, q="9", also="column")["column"]  # who looks at the pinned query
    np.testing.assert_allclose(column, asked.floats(f"{run}/columns/1/2?k=9"), **CLOSE)


def test_one_link_in_every_head(asked: Told, run: str) -> None:
    grid = asked.get(f"/api/runs/{run}/grid?q=9&k=4").json()["heads"]
    link = asked.ran(run, q="9", k=4, also="link")["link"]
    names = [layer["name"] for layer in asked.get(f"/api/runs/{run}").json()["layers"]]
    assert list(link) == names
    np.testing.assert_allclose(torch.stack(list(link.values())), np.nan_to_num(np.array(grid, float)), **CLOSE)
    strongest = asked.get(f"/api/runs/{run}/grid?q=9").json()["heads"]
    link = asked.ran(run, q="13,9", also="link")["link"]
    for heads, (keys, weights) in zip(strongest, link.values(), strict=True):
        for found, some, sizes in zip(heads, keys.tolist(), weights.tolist(), strict=True):
            assert [key for key, _ in found] == some[: len(found)]
            np.testing.assert_allclose([weight for _, weight in found], sizes[: len(found)], **CLOSE)


def test_the_path_of_a_token(asked: Told, run: str) -> None:
    def told(steps: list[dict[str, Any]]) -> list[tuple[int, list[list[float]]]]:
        return [(step["query"], step["sources"]) for step in steps]

    def alike(there: Numbers, steps: list[tuple[int, list[list[float]]]]) -> None:
        assert [query for _, query, _ in there["path"]] == [query for query, _ in steps]
        for (_, _, mine), (_, its) in zip(there["path"], steps, strict=True):
            assert [source[:2] for source in mine] == [tuple(source[:2]) for source in its]
            np.testing.assert_allclose([source[2] for source in mine], [source[2] for source in its], **CLOSE)

    walks = {q: asked.get(f"/api/runs/{run}/path?q={q}").json()["steps"] for q in (12, 13, 11)}
    origin, steps = next((q, steps) for q, steps in walks.items() if steps[1]["sources"])
    alike(asked.ran(run, q=str(origin), also="path", **{"from": origin}), told(steps))
    # Another source is taken in the second layer from above, and the path goes on from there.
    other = steps[1]["sources"][-1]
    below = []
    if steps[1]["layer"]:
        start = steps[1]["layer"] - 1
        below = asked.get(f"/api/runs/{run}/path?q={other[1]}&start={start}").json()["steps"]
    given = {"from": origin, "taken": f"{steps[1]['layer']}.{other[1]}"}
    alike(asked.ran(run, q=str(steps[1]["query"]), also="path", **given), told([*steps[:2], *below]))


def test_what_is_asked_about_and_every_head_taken_out(
    asked: Told, base: str, edited: str, written: str, rewritten: str, shelved: str
) -> None:
    for run in (base, edited, written, rewritten, shelved):
        for aim in (AIM, {"token": " the", "after": 7}, {}):
            shown = asked.get(f"/api/runs/{run}/next", params=aim).json()
            done(asked, asked.post(f"/api/runs/{run}/effects", json=aim))
            table = asked.get(f"/api/runs/{run}/effects", params=aim).json()
            there = asked.ran(run, **aim, also="likely,effects")
            assert there["value"] == pytest.approx(shown["value"], rel=1e-5)
            p = [shown["token"]["p"]] + ([shown["than"]["p"]] if shown["than"] else [])
            np.testing.assert_allclose(there["likely"], p, rtol=1e-5)
            np.testing.assert_allclose(there["effects"].exact[0].nan_to_num(0), table["exact"], rtol=1e-4, atol=1e-6)
            np.testing.assert_allclose(
                there["effects"].influence[0].nan_to_num(0), table["influence"], rtol=1e-4, atol=1e-6
            )


@pytest.mark.parametrize("kind", ["written", "rewritten"])
def test_what_was_written(asked: Told, request: pytest.FixtureRequest, kind: str) -> None:
    run = request.getfixturevalue(kind)
    tokens = asked.get(f"/api/runs/{run}/written").json()["tokens"]
    there = asked.ran(run, also="written")
    assert [token[0] for token in there["written"]] == [token["id"] for token in tokens]
    np.testing.assert_allclose([token[1] for token in there["written"]], [token["p"] for token in tokens], rtol=1e-4)
    for token, wanted in zip(there["written"], tokens, strict=True):
        assert [id for id, _ in token[2]] == [other["id"] for other in wanted["others"]]
        np.testing.assert_allclose([p for _, p in token[2]], [other["p"] for other in wanted["others"]], rtol=1e-4)


def test_all_heads(asked: Told, run: str) -> None:
    portraits = asked.get(f"/api/runs/{run}/portraits").json()["heads"]
    heads = asked.ran(run, also="heads")["heads"]
    of = run.rsplit("_", 1)[1] if "_" in run else ""
    if of:
        wanted = [[head[of] for head in layer] for layer in portraits]
        return np.testing.assert_allclose(heads[0], wanted, rtol=1e-4, atol=1e-7)
    flat = [head for layer in portraits for head in layer]
    for name in ("first", "previous", "same", "distance"):
        for head, shown in zip(heads, flat, strict=True):
            if shown[name] is not None:
                assert getattr(head, name) == pytest.approx(shown[name], rel=1e-4, abs=1e-6)


def test_two_maps_and_their_difference(asked: Told, base: str, edited: str, reading: str) -> None:
    """Two heads of a run, an edited run, another text, and readings of both."""
    given = {"q": "9", "k": 4, "beside_q": "9", "beside_k": 4, "difference": True}
    there = asked.ran(base, **given, beside=f"{base},2,1")
    cells = [asked.floats(f"{base}/rows/{place}?q=9")[4] for place in ("1/2", "2/1")]
    assert float(there["difference"]) == pytest.approx(cells[0] - cells[1], abs=1e-6)
    there = asked.ran(base, **given, **AIM, beside=f"{edited},1,2", also="likely")
    cells = [asked.floats(f"{run}/rows/1/2?q=9")[4] for run in (base, edited)]
    assert float(there["difference"]) == pytest.approx(cells[0] - cells[1], abs=1e-6)
    assert abs(cells[0] - cells[1]) > 1e-4
    for run, suffix in ((base, ""), (edited, "_beside")):
        shown = asked.get(f"/api/runs/{run}/next", params=AIM).json()
        assert there[f"value{suffix}"] == pytest.approx(shown["value"], rel=1e-5)
        np.testing.assert_allclose(there[f"likely{suffix}"], [shown["token"]["p"], shown["than"]["p"]], rtol=1e-5)
    again = done(asked, asked.post(f"/api/runs/{edited}/readings", json=AIM))[0]
    there = asked.ran(f"{reading}_influence", **given, **AIM, beside=f"{again}_influence,1,2")
    for run, suffix in ((reading, ""), (again, "_beside")):
        shown = asked.get(f"/api/runs/{run}_influence/peek/1/2?rows=9&cols=4").json()["reading"]
        assert float(there[f"cells{suffix}"]) == pytest.approx(shown, rel=1e-5)
    other = asked.made(text="Mary and John had fun at the store")
    there = asked.ran(base, q="9", beside=f"{other},0,3", beside_q="2")
    np.testing.assert_allclose(there["cells_beside"][0], asked.floats(f"{other}/rows/0/3?q=2"), **CLOSE)


def test_a_long_map_is_given_as_it_is_shown_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    q, k = torch.randn(2, 1, 2, 2500, 4).unbind()
    sl.look(2 * q, k, mask=sl.causal()).save(tmp_path / "long.safetensors")
    service = Service(lambda *_: None, threads=1)  # type: ignore[arg-type, return-value]
    service.library.shelve_folder(tmp_path / "long.safetensors")
    monkeypatch.chdir(tmp_path)
    client = Told(service)
    (listed,) = service.library.listed()
    for pool in ("mean", "max"):
        cells = client.ran(listed["id"], "0/1", pool=pool)["cells"]
        assert cells.shape == (313, 313)
        tile = np.frombuffer(client.get(f"/api/runs/{listed['id']}/tiles/0/1/3/3/1/1?pool={pool}").content, "<f4")
        np.testing.assert_allclose(cells[256:, 256:], tile.reshape(256, 256)[:57, :57], **CLOSE)
    there = client.ran(listed["id"], "0/1", q="2000,7", k=5, also="row,column,received,link,path", **{"from": 2000})
    np.testing.assert_allclose(there["row"], client.floats(f"{listed['id']}/rows/0/1?q=2000,7"), **CLOSE)
    np.testing.assert_allclose(there["column"], client.floats(f"{listed['id']}/columns/0/1?k=5"), **CLOSE)
    grid = client.get(f"/api/runs/{listed['id']}/grid?q=7&k=5").json()["heads"]
    np.testing.assert_allclose(there["link"]["long"], grid[0], **CLOSE)
    service.close()


def saved(folder: Path, **options: Any) -> Any:
    """A run of some other library's model, with a text: no server has that model."""
    torch.manual_seed(0)
    encoder = torch.nn.TransformerEncoder(torch.nn.TransformerEncoderLayer(16, 2, 32, batch_first=True), 2).eval()
    x = torch.randn(2, 7, 16)
    with sl.watch(encoder, keep_qk=True, **options) as seen:
        out = encoder(x)
        if options:
            seen.backward(out[:, -1].sum(-1))
    seen.meta |= {"name": "somebody/model", "text": "a text of seven words it is"}
    seen.tokens = [WORDS.split()[:7]] * 2
    seen.save(folder)
    return seen


@pytest.mark.parametrize("of", ["weights", "norms", "influence"])
def test_a_saved_run_is_read_from_its_folder_where_nobody_has_its_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, of: str
) -> None:
    saved(tmp_path / "mine", influence=True)
    service = Service(lambda *_: None, threads=1)  # type: ignore[arg-type, return-value]
    service.library.shelve_folder(tmp_path / "mine")
    monkeypatch.chdir(tmp_path)
    client = Told(service)
    for listed in service.library.listed():
        run = listed["id"] + ("" if of == "weights" else f"_own_{of}")
        there = client.ran(run, "1/1", q="6,2", k=3, also="row,column,received,rollout,link,heads")
        np.testing.assert_allclose(there["row"], client.floats(f"{run}/rows/1/1?q=6,2"), **CLOSE)
        np.testing.assert_allclose(there["column"], client.floats(f"{run}/columns/1/1?k=3"), **CLOSE)
        np.testing.assert_allclose(there["received"], client.floats(f"{run}/tracks/1/1")[7:], **CLOSE)
        np.testing.assert_allclose(there["rollout"], client.floats(f"{listed['id']}/rollout?q=6,2"), **CLOSE)
        grid = client.get(f"/api/runs/{run}/grid?q=2&k=3").json()["heads"]
        np.testing.assert_allclose(torch.stack(list(there["link"].values())), grid, **CLOSE)
        path = client.get(f"/api/runs/{run}/path?q=6").json()["steps"]
        walked = client.ran(run, "1/1", q="6", also="path", **{"from": 6})["path"]
        assert [query for _, query, _ in walked] == [step["query"] for step in path]
    service.close()


def test_all_that_is_shown_of_a_picture(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By its model, which prepares the picture, and of a saved run by its folder."""
    image_cases.checkpoint(tmp_path / "folder" / "of" / "vit")
    content = image_cases.png(image_cases.picture(100))
    (tmp_path / "photo.png").write_bytes(content)
    monkeypatch.chdir(tmp_path)
    models = Models([str(tmp_path / "folder" / "of" / "vit")])
    service = Service(performer(models, lambda run: service.library.add(run)), models, threads=1)
    client = Told(service)
    sent = {"text": "photo.png", "model": "vit", "image": base64.b64encode(content).decode()}
    run = done(client, client.post("/api/runs", json=sent))[0]
    client.service.run(run).account.seen.save(tmp_path / "kept", image=content)  # type: ignore[attr-defined]
    service.library.shelve_folder(tmp_path / "kept")
    kept = next(one["id"] for one in service.library.listed() if one["id"] != run)
    for one in (run, kept):
        there = client.ran(one, "0/1", q="9,12", k=4, also="row,column,received,rollout,link,heads")
        np.testing.assert_allclose(there["row"], client.floats(f"{one}/rows/0/1?q=9,12"), **CLOSE)
        np.testing.assert_allclose(there["column"], client.floats(f"{one}/columns/0/1?k=4"), **CLOSE)
        received = client.floats(f"{one}/tracks/0/1")
        np.testing.assert_allclose(there["received"], received[len(received) // 2 :], **CLOSE)
        np.testing.assert_allclose(there["rollout"], client.floats(f"{one}/rollout?q=9,12"), **CLOSE)
        grid = client.get(f"/api/runs/{one}/grid?q=12&k=4").json()["heads"]
        np.testing.assert_allclose(torch.stack(list(there["link"].values())), grid, **CLOSE)
        path = client.get(f"/api/runs/{one}/path?q=9").json()["steps"]
        walked = client.ran(one, "0/1", q="9", also="path", **{"from": 9})["path"]
        assert [query for _, query, _ in walked] == [step["query"] for step in path]
        np.testing.assert_allclose(
            client.ran(one, "0/1", rows="3:11", cols="2:9")["cells"],
            np.stack([client.floats(f"{one}/rows/0/1?q={q}")[2:9] for q in range(3, 11)]),
            **CLOSE,
        )
    service.close()


def test_a_model_in_a_folder_is_asked_for_by_its_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    word_model(tmp_path / "words")
    models = Models([str(tmp_path / "words")])
    service = Service(performer(models, lambda run: service.library.add(run)), models, threads=1)
    client = Told(service)
    run = done(client, client.post("/api/runs", json={"text": WORDS, "model": "words"}))[0]
    program = client.get(f"/api/runs/{run}/python/1/2?q=3&also=row").json()["python"]
    assert "sl.models.load('folder/of/words')" in program
    (tmp_path / "folder" / "of").mkdir(parents=True)
    (tmp_path / "words").rename(tmp_path / "folder" / "of" / "words")
    monkeypatch.chdir(tmp_path)
    there: Numbers = {}
    exec(program, there)
    np.testing.assert_allclose(there["row"], client.floats(f"{run}/rows/1/2?q=3"), **CLOSE)
    service.close()


def test_a_program_asks_for_the_device_of_the_server(tmp_path: Path) -> None:
    """Weights are as in the file there, and float32 here: other numbers."""
    word_model(tmp_path / "words")
    models = Models([str(tmp_path / "words")])
    service = Service(performer(models, lambda run: service.library.add(run)), models, threads=1)
    client = Told(service)
    run = done(client, client.post("/api/runs", json={"text": WORDS, "model": "words"}))[0]
    models.device = "cuda"
    program = client.get(f"/api/runs/{run}/python/1/2?q=3&also=row").json()["python"]
    assert "sl.models.load('folder/of/words', device='cuda')" in program
    assert ".ids], device=model.device)" in program
    service.close()


@pytest.mark.parametrize(
    "wrong, says",
    [
        ({"also": "exec"}, "no such parts"),
        ({"taken": "1;2", "from": 3}, "taken cannot be understood"),
        ({"taken": "9.2", "from": 3}, "there is no such layer"),
        ({"taken": "1.99", "from": 3}, "there is no such key"),
        ({"from": 99}, "there is no such query"),
        ({"beside": "a"}, "beside cannot be understood"),
        ({"rows": "0:99", "cols": "0:3"}, "the rows are not of this map"),
        ({"pool": "sum"}, "pool cannot be understood"),
    ],
)
def test_what_is_not_there_is_said(asked: Told, base: str, wrong: dict[str, Any], says: str) -> None:
    answer = asked.get(f"/api/runs/{base}/python/1/2", params=wrong)
    assert answer.status_code in (404, 422)
    assert says in answer.json()["error"]
