"""The HTTP API: every route gives the sight's own numbers, every limit and every mistake has its answer."""

from __future__ import annotations

import asyncio
import io
import json
import time
from collections.abc import AsyncIterator

import httpx
import numpy as np
import pytest
import torch

import sightline as sl
from explore_cases import Sights, exact, make_run, sights, words
from sightline.explore.model_runs import RunRequest
from sightline.explore.run import Run
from sightline.explore.thumbs import decode
from sightline.web import routes
from sightline.web.jobs import Job
from sightline.web.library import Shelf
from sightline.web.routes import TEXT_BYTES
from sightline.web.service import Service
from web.conftest import Client


def floats(answer: httpx.Response) -> np.ndarray:
    assert answer.status_code == 200, answer.text
    assert answer.headers["content-type"] == "application/octet-stream"
    return np.frombuffer(answer.content, "<f4")


def hidden_as_nan(weights: torch.Tensor) -> np.ndarray:
    rows, columns = weights.shape
    return np.where(np.tri(rows, columns, columns - rows, dtype=bool), weights.numpy(), np.nan)


# Numbers


def test_tiles_are_exact_cells(client: Client, run: Run) -> None:
    wanted = hidden_as_nan(exact(run, 1, 2))
    for y, x in ((0, 0), (1, 0), (1, 1)):
        tile = floats(client.get(f"/api/runs/{run.id}/tiles/1/2/0/0/{y}/{x}")).reshape(256, 256)
        part = wanted[256 * y : 256 * (y + 1), 256 * x : 256 * (x + 1)]
        np.testing.assert_allclose(tile[: part.shape[0], : part.shape[1]], part, atol=1e-6)
        assert np.isnan(tile[part.shape[0] :]).all()


def test_tiles_of_levels_add_up(client: Client, run: Run) -> None:
    sums, maxima = [], []
    for level, tiles in ((0, ((0, 0), (1, 0), (1, 1))), (1, ((0, 0),)), (2, ((0, 0),))):
        path = f"/api/runs/{run.id}/tiles/0/1/{level}/{level}/"
        sums.append(sum(np.nansum(floats(client.get(f"{path}{y}/{x}?pool=sum"))) for y, x in tiles))
        maxima.append(max(np.nanmax(floats(client.get(f"{path}{y}/{x}?pool=max"))) for y, x in tiles))
    np.testing.assert_allclose(sums, 300, rtol=1e-5)
    # Single cells are those of `sight.tile`, rounded once.
    np.testing.assert_allclose(maxima, maxima[0], rtol=1e-6)


def test_a_hidden_tile_is_no_content(client: Client, run: Run) -> None:
    answer = client.get(f"/api/runs/{run.id}/tiles/0/0/0/0/0/1")
    assert answer.status_code == 204
    assert "immutable" in answer.headers["cache-control"]


def test_rows_and_columns(client: Client, run: Run) -> None:
    weights = hidden_as_nan(exact(run, 0, 1))
    row = floats(client.get(f"/api/runs/{run.id}/rows/0/1?q=9"))
    np.testing.assert_allclose(row, weights[9], atol=1e-6)
    both = floats(client.get(f"/api/runs/{run.id}/rows/0/1?q=9,12"))
    np.testing.assert_allclose(
        both, np.where(np.arange(300) <= 12, np.nan_to_num(weights[9]) + weights[12], np.nan), atol=1e-6
    )
    column = floats(client.get(f"/api/runs/{run.id}/columns/0/1?k=5"))
    np.testing.assert_allclose(column, weights[:, 5], atol=1e-6)


def test_tracks(client: Client, run: Run) -> None:
    both = floats(client.get(f"/api/runs/{run.id}/tracks/1/0"))
    sight = run.account["layers.1.attention"]
    np.testing.assert_allclose(both[:300], sight.entropy[0, 0], rtol=1e-6)
    np.testing.assert_allclose(both[300:], sight.received()[0, 0], rtol=1e-6)


def test_peek_at_a_cell(client: Client, run: Run) -> None:
    weights = exact(run, 1, 1)
    found = client.get(f"/api/runs/{run.id}/peek/1/1?rows=40&cols=7").json()
    assert found["weight"] == pytest.approx(weights[40, 7].item(), abs=1e-6)
    assert found["rank"] == int((weights[40] > weights[40, 7]).sum()) + 1
    assert found["of"] == 41
    sight = run.account["layers.1.attention"]
    assert found["entropy"] == pytest.approx(sight.entropy[0, 1, 40].item(), rel=1e-4)
    assert found["score"] == pytest.approx((weights[40, 7].log() + sight.lse[0, 1, 40]).item(), rel=1e-4)
    beyond = client.get(f"/api/runs/{run.id}/peek/1/1?rows=7&cols=40").json()
    assert beyond["visible"] is False
    assert beyond["weight"] is None


def test_peek_at_a_rectangle(client: Client, run: Run) -> None:
    weights = exact(run, 1, 1)[32:64, 0:64]
    found = client.get(f"/api/runs/{run.id}/peek/1/1?rows=32:64&cols=0:64").json()
    visible = torch.ones(32, 64).tril(32).bool()
    assert found["visible"] == int(visible.sum())
    assert found["mean"] == pytest.approx(weights[visible].mean().item(), rel=1e-5)
    assert found["max"] == pytest.approx(weights.max().item(), rel=1e-6)
    query, key = found["at"]
    assert weights[query - 32, key] == weights.max()


def test_the_link_is_no_matter_of_course(client: Client, run: Run) -> None:
    weights = exact(run, 0, 2).clone()
    weights[:, 0] = 0
    weights.diagonal().zero_()
    weights.diagonal(-1).zero_()
    query, key, weight = client.get(f"/api/runs/{run.id}/peek/0/2").json()["link"]
    assert weight == pytest.approx(weights.max().item(), rel=1e-5)
    assert weights[query, key] == weights.max()


def test_what_was_not_seen_is_told(client: Client) -> None:
    account = sights(5)
    told = make_run(account, words(5))
    account.unseen = {"layers.2.attention": "it is written by hand"}  # type: ignore[attr-defined]
    client.service.library.add(told)
    assert client.get(f"/api/runs/{told.id}").json()["unseen"] == {"layers.2.attention": "it is written by hand"}


def test_tokens_come_in_pages(client: Client, run: Run) -> None:
    page = client.get(f"/api/runs/{run.id}/tokens?from=5&to=8").json()
    assert page == {"from": 5, "to": 8, "texts": ["the", "lions", ","], "kinds": [0, 0, 0]}
    assert len(client.get(f"/api/runs/{run.id}/tokens").json()["texts"]) == 300
    assert client.get(f"/api/runs/{run.id}/tokens?from=299&to=301").status_code == 422
    assert client.get(f"/api/runs/{run.id}/tokens?of=memory").status_code == 404


def test_portraits(client: Client, run: Run) -> None:
    body = client.get(f"/api/runs/{run.id}/portraits").json()
    assert [len(layer) for layer in body["heads"]] == [3, 3]
    weights = exact(run, 1, 2)
    head = body["heads"][1][2]
    assert head["first"] == pytest.approx(weights[:, 0].mean().item(), rel=1e-5)
    assert head["same"] == pytest.approx(weights.diagonal().sum().item() / 300, rel=1e-5)
    assert head["previous"] == pytest.approx(weights.diagonal(-1).sum().item() / 300, rel=1e-5)
    entropy = run.account["layers.1.attention"].entropy[0, 2]
    assert head["entropy"] == pytest.approx(entropy.mean().item(), rel=1e-5)
    share = entropy[1:] / torch.arange(2, 301).log()
    assert head["focus"] == pytest.approx(1 - share.mean().item(), rel=1e-5)
    scores = {
        (i, j): h["focus"] * (1 - h["first"]) * (1 - h["previous"])
        for i, layer in enumerate(body["heads"])
        for j, h in enumerate(layer)
    }
    assert tuple(body["first"]) == max(scores, key=scores.__getitem__)
    assert all(len(alike) == 3 for layer in body["similar"] for alike in layer)


def test_thumbs_are_the_map_within_their_steps(client: Client, run: Run) -> None:
    answer = client.get(f"/api/runs/{run.id}/thumbs")
    pictures = np.frombuffer(answer.content, np.uint8).reshape(2, 3, 64, 64)
    found = decode(pictures[1, 2])
    tile = floats(client.get(f"/api/runs/{run.id}/tiles/1/2/3/3/0/0")).reshape(256, 256)[:64, :64]
    assert (np.isnan(found) == np.isnan(tile)).all()
    seen = ~np.isnan(tile) & (tile > 1e-7)
    np.testing.assert_allclose(found[seen], tile[seen], rtol=0.034)


def test_export_as_csv_and_npz(client: Client, run: Run) -> None:
    weights = exact(run, 0, 0)[10:20, 0:30]
    path = f"/api/runs/{run.id}/export?layer=0&head=0&rows=10:20&cols=0:30&format="
    file = np.load(io.BytesIO(client.get(f"{path}npz").content))
    np.testing.assert_allclose(np.nan_to_num(file["weights"]), weights, atol=1e-6)
    assert list(file["keys"]) == words(30)
    assert json.loads(str(file["about"]))["rows"] == [10, 20]
    answer = client.get(f"{path}csv")
    lines = answer.text.strip().splitlines()
    assert lines[0] == "query,key,query_token,key_token,weight"
    assert lines[1].startswith('10,0,"left","the",')
    assert len(lines) - 1 == sum(min(30, i + 1) for i in range(10, 20))
    assert "attachment" in answer.headers["content-disposition"]
    whole = client.get(f"/api/runs/{run.id}/export?layer=0&head=0&format=csv")
    assert whole.status_code == 200


def test_an_export_that_is_too_large_is_refused(client: Client, service: Service) -> None:
    run = make_run(sights(1100, layers=1, heads=1), words(1100))
    service.library.add(run)
    answer = client.get(f"/api/runs/{run.id}/export?format=csv")
    assert answer.status_code == 413
    assert answer.json()["got"] == "1,210,000"


# Caching


def test_finished_runs_are_cached_for_good(client: Client, run: Run) -> None:
    path = f"/api/runs/{run.id}/tiles/0/0/0/0/0/0"
    answer = client.get(path)
    assert answer.headers["cache-control"] == "private, max-age=31536000, immutable"
    again = client.get(path, headers={"If-None-Match": answer.headers["etag"]})
    assert again.status_code == 304
    assert not again.content
    run.growing = True
    assert client.get(path).headers["cache-control"] == "no-store"


def test_equal_tiles_are_made_once(client: Client, run: Run, service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    pyramid, made = run.view(0, 0).pyramid, []
    plan = pyramid.plan

    def counted(*arguments: object) -> object:
        made.append(arguments)
        return plan(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(pyramid, "plan", counted)

    async def ask() -> list[httpx.Response]:
        async with httpx.AsyncClient(transport=httpx.ASGITransport(client.app), base_url="http://127.0.0.1") as web:
            return await asyncio.gather(*(web.get(f"/api/runs/{run.id}/tiles/0/0/0/0/0/0") for _ in range(20)))

    answers = asyncio.run(ask())
    assert {answer.status_code for answer in answers} == {200}
    assert len({answer.content for answer in answers}) == 1
    assert len(made) == 1


# Runs


def wait(client: Client, id: str) -> dict:
    for _ in range(200):
        body = client.get(f"/api/runs/{id}").json()
        if body.get("state") in ("done", "failed", "cancelled"):
            return body
        time.sleep(0.02)
    raise AssertionError(f"the run did not end: {body}")


def test_a_text_becomes_a_run(client: Client) -> None:
    answer = client.post("/api/runs", json={"text": "the kids left", "model": "words"})
    assert answer.status_code == 202
    body = wait(client, answer.json()["id"])
    assert body["tokens"] == 3
    assert body["text"] == "the kids left"
    assert [layer["heads"] for layer in body["layers"]] == [3, 3]
    listed = client.get("/api/runs").json()["runs"]
    assert [run["id"] for run in listed] == [body["id"]]
    again = client.post("/api/runs", json={"text": "the kids left", "model": "words"}).json()
    assert again == {"id": body["id"], "position": 0}


def test_events_tell_how_a_run_goes(client: Client) -> None:
    id = client.post("/api/runs", json={"text": "so they left", "model": "words"}).json()["id"]
    answer = client.get(f"/api/runs/{id}/events")
    assert answer.headers["content-type"].startswith("text/event-stream")
    events = [json.loads(line[6:]) for line in answer.text.splitlines() if line.startswith("data: ")]
    assert events[-1]["state"] == "done"


def test_a_silent_stream_says_that_it_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(routes, "SILENCE", 0.01)
    ended: list[str] = []

    async def items() -> AsyncIterator[dict]:
        try:
            yield {"done": 1}
            await asyncio.sleep(0.05)
            yield {"done": 2}
            await asyncio.sleep(60)
        finally:
            ended.append("whoever leaves is no longer told")

    async def read() -> list[str]:
        lines = []
        stream = routes.stream(items())
        async for line in stream:
            lines.append(line)
            if line == 'data: {"done":2}\n\n':
                break
        await stream.aclose()  # type: ignore[attr-defined]
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        return lines

    lines = asyncio.run(read())
    assert lines[0] == 'data: {"done":1}\n\n'
    assert set(lines[1:-1]) == {": still here\n\n"}
    assert ended


def test_a_run_that_fails_says_why_and_harms_nothing(client: Client, run: Run) -> None:
    id = client.post("/api/runs", json={"text": "this will fail", "model": "words"}).json()["id"]
    body = wait(client, id)
    assert body["state"] == "failed"
    assert "the model broke" in body["problem"]["got"]
    assert client.get(f"/api/runs/{id}/thumbs").status_code == 409
    assert client.get(f"/api/runs/{run.id}/rows/0/0?q=3").status_code == 200


def test_runs_can_be_closed(client: Client, run: Run, service: Service) -> None:
    client.get(f"/api/runs/{run.id}/tiles/0/0/0/0/0/0")
    client.get(f"/api/runs/{run.id}/rows/0/0?q=3")
    assert len(service.tiles) == 1
    assert client.request("DELETE", f"/api/runs/{run.id}").status_code == 204
    assert len(service.tiles) == 0
    assert len(service.others) == 0
    assert client.get(f"/api/runs/{run.id}").status_code == 404
    assert client.request("DELETE", f"/api/runs/{run.id}").status_code == 404


def test_closing_a_run_can_be_undone(client: Client, service: Service) -> None:
    ids = [ordered(client, f"text {i}") for i in range(3)]
    gone: list[str] = []
    for id in ids:
        service.library.get(id).cleanup = lambda id=id: gone.append(id)
    for id in ids:
        assert client.request("DELETE", f"/api/runs/{id}").status_code == 204
    assert gone == ids[:1], "two can be opened again, what came before them is gone"
    answer = client.post(f"/api/runs/{ids[0]}/reopen")
    assert answer.status_code == 404
    assert "cannot be opened again" in answer.json()["error"]
    assert client.post(f"/api/runs/{ids[2]}/reopen").status_code == 204
    assert client.post(f"/api/runs/{ids[2]}/reopen").status_code == 204, "twice is once"
    assert client.get(f"/api/runs/{ids[2]}/rows/0/0?q=1").status_code == 200
    assert [run["id"] for run in client.get("/api/runs").json()["runs"]] == ids[2:]
    # Run again, the one that was closed is let go of.
    ordered(client, "text 1")
    assert gone == ids[:2]
    # One that made room comes back too, and another makes room for it.
    for i in range(3, 10):
        ordered(client, f"text {i}")
    first = [run["id"] for run in client.get("/api/runs").json()["closed"]]
    assert len(first) == 1
    assert client.post(f"/api/runs/{first[0]}/reopen").status_code == 204
    found = client.get("/api/runs").json()
    assert first[0] in [run["id"] for run in found["runs"]]
    assert len(found["runs"]) == 8
    assert len(found["closed"]) == 1
    assert found["closed"][0]["id"] != first[0]


def test_the_text_of_a_run_is_whole(client: Client, run: Run) -> None:
    text = "word " * 9000
    id = ordered(client, text)
    assert client.get(f"/api/runs/{id}/text").json() == {"text": text}
    assert len(client.get(f"/api/runs/{id}").json()["text"]) == 20_000
    assert client.get(f"/api/runs/{run.id}/text").json()["text"].split()[:2] == words(300)[:2]


def test_a_saved_run_is_opened_when_asked_for_and_closed_for_others(service: Service) -> None:
    opened = []

    def shelf(i: int) -> tuple[str, Shelf]:
        made = make_run(sights(4 + i), words(4 + i))

        def open() -> Run:
            opened.append(i)
            return made

        return made.id, Shelf({"id": made.id}, open)

    ids = []
    for i in range(9):
        id, one = shelf(i)
        service.library.shelve(id, one)
        ids.append(id)
    assert len(service.library.listed()) == 9
    assert opened == []
    for id in ids:
        service.run(id)
    assert opened == list(range(9))
    service.run(ids[8])
    assert len(opened) == 9, "still open"
    service.run(ids[0])
    assert opened[-1] == 0, "closed to make room, and opened again"


# Limits and mistakes


@pytest.mark.parametrize(
    "path, status, text",
    [
        ("/api/runs/nope", 404, "there is no such run"),
        ("/api/runs/{run}/rows/9/0?q=1", 404, "there is no such layer"),
        ("/api/runs/{run}/rows/0/9?q=1", 404, "there is no such head"),
        ("/api/runs/{run}/rows/0/0?q=300", 422, "there is no such query"),
        ("/api/runs/{run}/rows/0/0?q=x", 422, "q cannot be understood"),
        ("/api/runs/{run}/rows/0/0", 422, "q cannot be understood"),
        ("/api/runs/{run}/rows/0/0?q=" + ",".join(map(str, range(100))), 422, "too many in q"),
        ("/api/runs/{run}/columns/0/0?k=-1", 422, "k cannot be understood"),
        ("/api/runs/{run}/tiles/0/0/0/0/5/0", 422, "there is no such tile"),
        ("/api/runs/{run}/tiles/0/0/0/0/0/0?pool=median", 422, "unknown pooling"),
        ("/api/runs/{run}/tiles/0/x/0/0/0/0", 422, "head cannot be understood"),
        ("/api/runs/{run}/tiles/0/0/99/99/0/0", 422, "there is no such tile"),
        ("/api/runs/{run}/peek/0/0?rows=3", 422, "rows and cols belong together"),
        ("/api/runs/{run}/peek/0/0?rows=9:3&cols=1", 422, "rows cannot be understood"),
        ("/api/runs/{run}/peek/0/0?rows=0:400&cols=0:2", 422, "the rows are not a part of the map"),
        ("/api/runs/{run}/export?format=exe", 422, "format cannot be understood"),
        ("/api/nothing", 404, "there is nothing here"),
        ("/../../etc/passwd", 404, "there is nothing here"),
        ("/static/..%2f..%2fapi.py", 404, "there is nothing here"),
        ("/static/nothing.js", 404, "there is no such file"),
    ],
)
def test_mistakes_are_answered(client: Client, run: Run, path: str, status: int, text: str) -> None:
    answer = client.get(path.replace("{run}", run.id))
    assert answer.status_code == status, answer.text
    body = answer.json()
    assert set(body) == {"error", "expected", "got", "try"}
    assert text in body["error"]
    assert all(isinstance(value, str) for value in body.values())


@pytest.mark.parametrize(
    "body, status, text",
    [
        ({"text": "x" * (TEXT_BYTES + 1), "model": "words"}, 413, "too long"),
        ({"text": "a b", "model": "gpt-9"}, 422, "does not run that model"),
        ({"text": "", "model": "words"}, 422, "text cannot be understood"),
        ({"model": "words"}, 422, "text cannot be understood"),
        ({"text": "a", "model": "words", "pickle": 1}, 422, "pickle cannot be understood"),
        ({"text": "a", "model": "words", "generate": 10**9}, 422, "generate cannot be understood"),
    ],
)
def test_bad_orders_are_refused(client: Client, body: dict, status: int, text: str) -> None:
    answer = client.post("/api/runs", json=body)
    assert answer.status_code == status
    assert text in answer.json()["error"]


HOSTILE = {
    "half a character": b'{"text": "\\ud800", "model": "words"}',
    "half a character as a key": b'{"text": "a", "model": "words", "\\udfff": 1}',
    "a long key": b'{"text": "a", "model": "words", "' + b"k" * 100_000 + b'": 1}',
    "NaN": b'{"text": "a", "model": "words", "generate": NaN}',
    "infinity": b'{"text": "a", "model": "words", "generate": 1e999}',
    "a long number": b'{"text": "a", "model": "words", "generate": ' + b"9" * 10_000 + b"}",
    "brackets": b"[" * 100_000,
    "no object": b"5",
    "nothing": b"",
    "bytes": b"\xff\xfe\x00",
    "a text that is a number": b'{"text": 5, "model": "words"}',
    "layers that are numbers": b'{"text": "a", "model": "words", "layers": [0]}',
}


@pytest.mark.parametrize("what", HOSTILE)
def test_hostile_bodies_are_answered(client: Client, what: str) -> None:
    answer = client.post("/api/runs", content=HOSTILE[what], headers={"content-type": "application/json"})
    assert answer.status_code in (400, 422)
    body = json.loads(answer.content.decode("utf-8"))
    assert set(body) == {"error", "expected", "got", "try"}
    assert max(map(len, body.values())) < 500


def test_every_answer_is_json_whatever_a_text_holds(client: Client, service: Service) -> None:
    """A text of the command line may hold bytes that are no UTF-8."""
    run = make_run(sights(3), ["a", "\ud800", "b"], text="a\udcffb", model="\ud800")
    service.library.add(run)
    service.jobs.by_id["t"] = Job("t", RunRequest("\udcff", "words"), problem={"got": "\ud800"})
    for path in ("runs", f"runs/{run.id}", "runs/t", f"runs/{run.id}/tokens", f"runs/{run.id}/steps/0/0?q=1"):
        answer = client.get(f"/api/{path}")
        assert answer.status_code == 200, path
        json.loads(answer.content.decode("utf-8"))
    del service.jobs.by_id["t"]


@pytest.mark.parametrize("number", ["nan", "1e999", "-1", "9" * 30, "9" * 5000, "1_0", "0x1", "\u0663"])
def test_numbers_that_are_none_are_answered(client: Client, run: Run, number: str) -> None:
    for path in ("tiles/0/0/{}/0/0/0", "tiles/0/0/0/0/{}/0", "rows/{}/0?q=1", "steps/0/0?q={}", "rows/0/0?q=9,{}"):
        answer = client.get(f"/api/runs/{run.id}/{path.format(number)}")
        assert answer.status_code in (200, 404, 422), (path, answer.text[:200])
    for path in ("tokens?from={}", "peek/0/0?rows={}&cols=0:2", "export?format=csv&rows=0:{}", "rollout?q={}"):
        answer = client.get(f"/api/runs/{run.id}/{path.format(number)}")
        assert answer.status_code in (200, 404, 413, 422), (path, answer.text[:200])


def test_a_body_without_end_is_cut(client: Client) -> None:
    answer = client.post("/api/runs", content=b"x" * (8 << 20), headers={"content-type": "application/json"})
    assert answer.status_code == 413


def test_too_many_orders_are_refused_with_a_time(client: Client, service: Service) -> None:
    import threading

    go = threading.Event()
    perform = service.jobs.perform

    def slow(job: object, report: object) -> Run:
        assert go.wait(10)
        return perform(job, report)  # type: ignore[arg-type]

    service.jobs.perform = slow  # type: ignore[assignment]
    try:
        positions = []
        for i in range(5):
            answer = client.post("/api/runs", json={"text": f"text {i}", "model": "words"})
            assert answer.status_code == 202
            positions.append(answer.json()["position"])
            if i == 0:
                while service.jobs.by_id[answer.json()["id"]].state == "queued":
                    time.sleep(0.01)
        assert positions[1:] == [1, 2, 3, 4]
        refused = client.post("/api/runs", json={"text": "one more", "model": "words"})
        assert refused.status_code == 429
        assert refused.headers["retry-after"] == "5"
        waiting = client.get("/api/runs").json()["orders"]
        assert [order["position"] for order in waiting] == [0, 1, 2, 3, 4]
        # One that waits can be taken back.
        assert client.request("DELETE", f"/api/runs/{waiting[2]['id']}").status_code == 204
    finally:
        go.set()
    assert wait(client, waiting[4]["id"])["state"] == "done"


def ordered(client: Client, text: str) -> str:
    """A run of a text, once it is there."""
    id: str = client.post("/api/runs", json={"text": text, "model": "words"}).json()["id"]
    wait(client, id)
    return id


def test_the_ninth_run_takes_the_place_of_the_oldest_that_nobody_looks_at(client: Client, service: Service) -> None:
    ids = [ordered(client, f"text {i}") for i in range(8)]
    assert client.get("/api/runs").json()["closed"] == []
    assert client.post(f"/api/runs/{ids[0]}/look?by=page").status_code == 204
    assert client.get(f"/api/runs/{ids[1]}/rows/0/0?q=1").status_code == 200  # asked for since: not the oldest
    ninth = ordered(client, "text 9")
    found = client.get("/api/runs").json()
    assert {run["id"] for run in found["runs"]} == {*ids, ninth} - {ids[2]}
    assert [run["title"] for run in found["closed"]] == ["text 2"], "what was closed is said"
    gone = client.get(f"/api/runs/{ids[2]}")
    assert gone.status_code == 404
    assert client.post(f"/api/runs/{ids[2]}/look").status_code == 404
    # Run again, it is there again, and is not said to be closed.
    assert ordered(client, "text 2") == ids[2]
    assert "text 2" not in [run["title"] for run in client.get("/api/runs").json()["closed"]]


def test_a_run_that_fails_closes_no_other(client: Client) -> None:
    ids = {ordered(client, f"text {i}") for i in range(8)}
    ordered(client, "this will fail")
    found = client.get("/api/runs").json()
    assert {run["id"] for run in found["runs"]} == ids
    assert found["closed"] == []


def test_runs_that_are_all_looked_at_stay(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    ids = [ordered(client, f"text {i}") for i in range(8)]
    for id in ids:
        client.post(f"/api/runs/{id}/look?by=page-of-{id}")
    answer = client.post("/api/runs", json={"text": "text 9", "model": "words"})
    assert answer.status_code == 429
    assert "each is being looked at" in answer.json()["error"]
    assert "cross beside its name" in answer.json()["try"], "what a reader can do, not what a program could ask"
    assert len(client.get("/api/runs").json()["runs"]) == 8
    # Who looks at another run looks no more at the one before.
    client.post(f"/api/runs/{ids[5]}/look?by=page-of-{ids[4]}")
    ordered(client, "text 9")
    assert [run["id"] for run in client.get("/api/runs").json()["closed"]] == ids[4:5]
    # Whoever looked has gone: some time later there is room.
    client.post(f"/api/runs/{ordered(client, 'text 9')}/look?by=page-of-{ids[4]}")
    assert client.post("/api/runs", json={"text": "text 10", "model": "words"}).status_code == 429
    monkeypatch.setattr("sightline.web.library.LOOKED", 0.0)
    ordered(client, "text 10")
    assert len(client.get("/api/runs").json()["closed"]) == 2


def test_too_many_tiles_are_refused_and_forgotten(client: Client, run: Run, service: Service) -> None:
    service.flights.at_once = 0  # nothing starts: everything waits

    async def ask() -> tuple[list[int], int]:
        async with httpx.AsyncClient(transport=httpx.ASGITransport(client.app), base_url="http://127.0.0.1") as web:
            paths = [f"/api/runs/{run.id}/rows/0/0?q={i}" for i in range(80)]
            tasks = [asyncio.create_task(web.get(path)) for path in paths]
            for _ in range(200):
                await asyncio.sleep(0.05)
                if sum(task.done() for task in tasks) == 16:
                    break
            refused = [task.result().status_code for task in tasks if task.done()]
            waiting = service.flights.waiting
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            await asyncio.sleep(0.05)
            return refused, waiting

    refused, waiting = asyncio.run(ask())
    assert refused == [503] * 16
    assert waiting == 64
    assert service.flights.waiting == 0, "whoever has gone does not wait"
    service.flights.at_once = 2
    assert client.get(f"/api/runs/{run.id}/rows/0/0?q=3").status_code == 200


def test_a_mistake_of_the_servers_is_a_500_without_details(
    client: Client, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object) -> None:
        raise ZeroDivisionError("secret")

    monkeypatch.setattr(run.view(0, 0), "row", broken)
    answer = client.get(f"/api/runs/{run.id}/rows/0/0?q=3")
    assert answer.status_code == 500
    assert "secret" not in answer.text
    assert client.get(f"/api/runs/{run.id}/rows/0/1?q=3").status_code == 200


def test_without_q_and_k_the_answer_names_the_option(client: Client, service: Service, tmp_path) -> None:
    account = Sights()
    sight = sl.look(
        torch.randn(1, 2, 600, 8), torch.randn(1, 2, 600, 8), mask=sl.causal(), stats=("entropy", "received")
    )
    sight.prepare(sl.Picture(reduce="sum", cell=(4, 4)))
    sight.save(tmp_path / "sight.safetensors", keep_qk=False)
    account["layer"] = sl.Sight.load(tmp_path / "sight.safetensors")
    run = make_run(account, words(600))
    service.library.add(run)
    assert client.get(f"/api/runs/{run.id}").json()["layers"][0]["exact"] is False
    assert client.get(f"/api/runs/{run.id}/tiles/0/0/2/2/0/0").status_code == 200
    assert client.get(f"/api/runs/{run.id}/tracks/0/0").status_code == 200
    for path in ("tiles/0/0/0/0/0/0", "rows/0/0?q=3", "peek/0/0?rows=3&cols=3", "export?format=csv&rows=0:9&cols=0:9"):
        answer = client.get(f"/api/runs/{run.id}/{path}")
        assert answer.status_code == 422
        assert "keep_qk=True" in answer.json()["try"]
    assert client.get(f"/api/runs/{run.id}/portraits").status_code == 200
    assert client.get(f"/api/runs/{run.id}/thumbs").status_code == 200


def test_openapi_names_every_route(client: Client) -> None:
    paths = client.get("/api/openapi.json").json()["paths"]
    for route in ("limits", "runs", "runs/{run}/events", "runs/{run}/tiles/{layer}/{head}/{lq}/{lk}/{y}/{x}"):
        assert f"/api/{route}" in paths
    assert all(operation.get("description") for path in paths.values() for operation in path.values())
