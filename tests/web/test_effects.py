"""Exact effects of all heads, over HTTP: Python's own numbers, told as they come, and taken back without a trace."""

from __future__ import annotations

import json
import tempfile
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import sightline as sl
from model_cases import smollm2_tokenizer
from sightline.errors import TooLargeError
from sightline.explore import effects
from sightline.explore.aims import Aim
from sightline.explore.model_runs import Models
from sightline.models.text.language_model import LanguageModel
from sightline.web.jobs import Cancelled, performer
from sightline.web.service import Service
from web.conftest import Client

TEXT = "When Mary and John went to the store, John gave a drink to"
AIM = {"token": " Mary", "than": " John"}


class Tiny(Models):
    """A model of three layers that has learned nothing, with a real tokenizer."""

    def __init__(self) -> None:
        torch.manual_seed(0)
        options: Any = {"kv_heads": 2, "hidden": 24, "norm": "rms", "gated": True, "activation": "silu", "bias": False}
        decoder = sl.nn.Decoder(16, heads=4, layers=3, positions=sl.positions.Rotary(4), **options)
        self.model = LanguageModel(torch.nn.Embedding(49152, 16), decoder, tied=True, context=64).eval()

    def __contains__(self, name: object) -> bool:
        return name == "tiny"

    def listed(self) -> list[dict[str, Any]]:
        return [{"name": "tiny", "title": "tiny", "causal": True}]

    def get(self, name: str) -> tuple[Any, Any]:
        return self.model, smollm2_tokenizer()

    @property
    def hooks(self) -> int:
        """All that somebody left on it."""
        kinds = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks")
        left = sum(len(getattr(module, kind)) for module in self.model.modules() for kind in kinds)
        return left + sum("forward" in vars(module) for module in self.model.modules())


@pytest.fixture(scope="module")
def tiny() -> Tiny:
    return Tiny()


@pytest.fixture(scope="module")
def asked(tiny: Tiny) -> Iterator[Client]:
    service = Service(performer(tiny, lambda run: service.library.add(run)), tiny, threads=1)
    yield Client(service)
    service.close()


@pytest.fixture(scope="module")
def base(asked: Client) -> str:
    return done(asked, asked.post("/api/runs", json={"text": TEXT, "model": "tiny"}))[0]


def done(client: Client, ordered: Any, state: str = "done") -> tuple[str, list[dict[str, Any]]]:
    assert ordered.status_code == 202, ordered.text
    id = str(ordered.json()["id"])
    lines = client.get(f"/api/runs/{id}/events").text.splitlines()
    events = [json.loads(line[6:]) for line in lines if line.startswith("data: ")]
    assert events[-1]["state"] == state, events[-1]["problem"]
    return id, events


def pythons(tiny: Tiny, changed: Callable[[Any], Any] | None = None, heads: Any = None) -> sl.Effects:
    tokenizer = smollm2_tokenizer()
    ids = torch.tensor([tokenizer.encode(TEXT).ids])
    mary, john = (tokenizer.encode(name).ids[0] for name in (" Mary", " John"))
    with sl.edit(tiny.model) as edits:
        if changed is not None:
            changed(edits)
        return sl.effects(tiny.model, {"ids": ids, "last": 1}, sl.targets.logit(mary, than=john), heads=heads)


def test_exact_effects_are_pythons_and_so_is_their_program(
    asked: Client, base: str, tiny: Tiny, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert asked.get(f"/api/runs/{base}/effects", params=AIM).status_code == 404
    id, events = done(asked, asked.post(f"/api/runs/{base}/effects", json=AIM))
    assert {event["stage"] for event in events} <= {"waiting", "starting", "loading tiny", "reading the text"} | {
        "taking heads out",
        "done",
    }
    assert (events[-1]["done"], events[-1]["total"]) == (12, 12)
    found = asked.get(f"/api/runs/{base}/effects", params=AIM).json()
    exact = pythons(tiny)
    np.testing.assert_allclose(found["exact"], exact.exact[0], rtol=1e-6)
    np.testing.assert_allclose(found["influence"], exact.influence[0], rtol=1e-6)
    assert found["value"] == pytest.approx(float(exact.baseline[0]), rel=1e-6)
    again = asked.post(f"/api/runs/{base}/effects", json=AIM)
    assert again.json() == {"id": id, "position": 0}  # not done again
    assert done(asked, again)[1][-1]["state"] == "done"

    monkeypatch.setattr(sl.models, "load", tiny.get)
    there: dict[str, Any] = {}
    given = {**AIM, "q": "9,13", "k": 9, "also": "effects"}
    exec(asked.get(f"/api/runs/{base}/python/1/2", params=given).json()["python"], there)
    np.testing.assert_allclose(there["effects"].exact[0], found["exact"], rtol=1e-6)
    assert there["value"] == pytest.approx(found["value"], rel=1e-6)
    rows = np.frombuffer(asked.get(f"/api/runs/{base}/rows/1/2?q=9,13").content, "<f4")
    assert float(there["cells"]) == pytest.approx(rows[9], rel=1e-6)


def test_effects_of_an_edited_run_are_those_beside_its_edits(
    asked: Client, base: str, tiny: Tiny, monkeypatch: pytest.MonkeyPatch
) -> None:
    edits = ["ablate:0.1", "cut:1.2:q13:k9"]
    run, _ = done(asked, asked.post("/api/runs", json={"text": TEXT, "model": "tiny", "edits": edits}))
    done(asked, asked.post(f"/api/runs/{run}/effects", json=AIM))
    found = asked.get(f"/api/runs/{run}/effects", params=AIM).json()

    def change(edits: Any) -> None:
        edits.ablate(heads=[(0, 1)])
        edits.cut(heads=[(1, 2)], queries=13, keys=9)

    rest = [(layer, head) for layer in range(3) for head in range(4) if (layer, head) != (0, 1)]
    wanted = pythons(tiny, change, rest)
    assert (found["exact"][0][1], found["influence"][0][1]) == (0, 0)  # it is out already
    np.testing.assert_allclose(found["exact"], wanted.exact[0].nan_to_num(0), rtol=1e-6)
    np.testing.assert_allclose(found["influence"], wanted.influence[0].nan_to_num(0), rtol=1e-6)
    assert abs(np.array(found["exact"]) - pythons(tiny).exact[0].numpy()).max() > 1e-4
    monkeypatch.setattr(sl.models, "load", tiny.get)
    there: dict[str, Any] = {}
    exec(asked.get(f"/api/runs/{run}/python/1/2", params={**AIM, "also": "effects"}).json()["python"], there)
    np.testing.assert_allclose(there["effects"].exact[0].nan_to_num(0), found["exact"], rtol=1e-6)


def test_of_some_layers_the_effects_are_of_their_heads(asked: Client, tiny: Tiny) -> None:
    run, _ = done(asked, asked.post("/api/runs", json={"text": TEXT, "model": "tiny", "layers": "1-2"}))
    _, events = done(asked, asked.post(f"/api/runs/{run}/effects", json=AIM))
    assert events[-1]["total"] == 8
    found = asked.get(f"/api/runs/{run}/effects", params=AIM).json()
    np.testing.assert_allclose(found["exact"], pythons(tiny).exact[0, 1:], atol=1e-6)


@pytest.mark.parametrize("at", [2, 4])
def test_effects_that_are_taken_back_leave_nothing(
    asked: Client, base: str, tiny: Tiny, at: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """While the run with gradients goes on, or one without a head: by the route that a page uses."""
    threads = set(threading.enumerate())
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    held, told, heard = threading.Event(), threading.Event(), []
    layer = tiny.model.decoder.layers[1].attention

    def hold(*_: object) -> None:
        heard.append(1)
        if len(heard) == at:
            told.set()
            assert held.wait(30)

    aim = {"token": " the", "than": " John"}
    with monkeypatch.context() as patch:
        patch.setattr(layer, "forward", lambda *given, _real=layer.forward, **more: (hold(), _real(*given, **more))[1])
        id = asked.post(f"/api/runs/{base}/effects", json=aim).json()["id"]
        assert told.wait(30)
        assert asked.get(f"/api/runs/{id}").json()["state"] == "running"
        assert asked.request("DELETE", f"/api/runs/{id}").status_code == 204
        job = asked.service.jobs.by_id[id]
        held.set()
        for _ in asked.get(f"/api/runs/{id}/events").text.splitlines():
            pass
        assert job.state == "cancelled"
    assert tiny.hooks == 0
    assert all(parameter.grad is None for parameter in tiny.model.parameters())
    assert set(threading.enumerate()) <= threads
    assert not list(tmp_path.iterdir())
    assert asked.get(f"/api/runs/{base}/effects", params=aim).status_code == 404


def test_every_layer_of_every_pass_is_told_and_may_be_the_last(asked: Client, base: str, tiny: Tiny) -> None:
    """The text before its target is known, with gradients, back, and without: then head by head."""
    request = effects.EffectsRequest(asked.service.run(base), Aim(" the", " and"))
    told: list[tuple[str, int, int]] = []
    found = effects.compute(request, *tiny.get("tiny"), lambda stage, done, total: told.append((stage, done, total)))
    reading = [one for one in told if one[0] == "reading the text"]
    # The first pass says where it begins; the others go on from there.
    assert reading == [("reading the text", i, 12) for i in range(13)]
    assert told[13] == ("taking heads out", 0, 12)
    assert told[-1] == ("taking heads out", 12, 12)
    for last in range(0, len(told), 3):
        left = iter(range(last))

        def report(left: Any = left, **_: object) -> None:
            if next(left, None) is None:
                raise Cancelled

        with pytest.raises(Cancelled):
            effects.compute(request, *tiny.get("tiny"), report)
        assert tiny.hooks == 0
    assert found.table["value"] == effects.compute(request, *tiny.get("tiny"), lambda **_: None).table["value"]


def test_a_run_that_is_closed_is_not_read_on(asked: Client) -> None:
    run, _ = done(asked, asked.post("/api/runs", json={"text": "one two three four", "model": "tiny"}))
    id, _ = done(asked, asked.post(f"/api/runs/{run}/effects", json={}))
    assert id in asked.service.jobs.by_id
    asked.request("DELETE", f"/api/runs/{run}")
    assert id not in asked.service.jobs.by_id
    assert asked.post(f"/api/runs/{run}/effects", json={}).status_code == 404


def test_memory_is_asked_for_before_any_head_is_taken_out(
    asked: Client, base: str, tiny: Tiny, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sightline.memory.available", lambda device: 1 << 20)
    monkeypatch.setattr("sightline.explore.once_more.needed", lambda model, tokens: 1 << 40)
    monkeypatch.setattr(tiny.model, "forward", lambda *_, **__: pytest.fail("it ran"))
    told: list[str] = []
    request = effects.EffectsRequest(asked.service.run(base), Aim())
    with pytest.raises(TooLargeError, match="a backward pass through this text"):
        effects.compute(request, *tiny.get("tiny"), lambda **say: told.append(say["stage"]))
    assert not told


def test_few_tables_are_kept_and_what_cannot_be_asked_is_said(asked: Client, base: str) -> None:
    for token in (" a", " the", " and", " to", " John"):
        done(asked, asked.post(f"/api/runs/{base}/effects", json={"token": token}))
    assert asked.get(f"/api/runs/{base}/effects", params={"token": " a"}).status_code == 404
    assert asked.get(f"/api/runs/{base}/effects", params={"token": " John"}).status_code == 200
    _, events = done(asked, asked.post(f"/api/runs/{base}/effects", json={"token": "unbelievably so"}), "failed")
    assert events[-1]["problem"]["error"] == "this is not one token"
    assert asked.post(f"/api/runs/{base}/effects", json={"heads": [1]}).status_code == 422
    assert asked.post(f"/api/runs/{base}/effects", json={"token": "x" * 201}).status_code == 422
    assert asked.post("/api/runs/none/effects", json={}).status_code == 404


def test_orders_of_every_kind_wait_in_one_queue_that_has_an_end(tiny: Tiny) -> None:
    """Runs, readings and effects: a few wait, the next one is told to come again."""
    held, started = threading.Event(), threading.Event()
    inner = performer(tiny, lambda run: None)

    def perform(job: Any, report: Any) -> Any:
        if job.request.text != "first":
            return inner(job, report)
        made = inner(job, report)
        started.set()
        assert held.wait(30)
        return made

    service = Service(perform, tiny, threads=1)
    client = Client(service)
    try:
        run, _ = done(client, client.post("/api/runs", json={"text": TEXT, "model": "tiny"}))
        client.post("/api/runs", json={"text": "first", "model": "tiny"})
        assert started.wait(30)
        for kind in ("readings", "effects"):
            for token in (" a", " the"):
                assert client.post(f"/api/runs/{run}/{kind}", json={"token": token}).status_code == 202
        # A page that opens meanwhile waits for runs, not for what another page wants to know of one.
        assert [order["title"] for order in client.get("/api/runs").json()["orders"]] == ["first"]
        for path, body in (
            (f"/api/runs/{run}/readings", {"token": " and"}),
            (f"/api/runs/{run}/effects", {"token": " and"}),
            ("/api/runs", {"text": "another", "model": "tiny", "edits": ["ablate:1.2"]}),
        ):
            answer = client.post(path, json=body)
            assert (answer.status_code, answer.headers["retry-after"]) == (429, "5")
        assert client.post(f"/api/runs/{run}/effects", json={"token": " the"}).json()["position"] == 4
    finally:
        held.set()
        service.close()


def test_what_was_kept_of_the_last_place_answers_for_long_texts_too(
    asked: Client, base: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same numbers as by running the text once more, which a long one is not."""
    path = f"/api/runs/{base}/next"
    first, second = (one["text"] for one in asked.get(path).json()["tokens"][:2])
    last = {"token": second, "than": first, "after": 13}
    quick = asked.get(path, params=last).json()
    run = asked.service.run(base)
    monkeypatch.setattr("sightline.explore.outcome.LONGEST", 10)
    assert asked.get(path, params={"token": second, "than": first}).json() == quick
    assert asked.get(path, params={"token": first, "after": 3}).status_code == 413
    monkeypatch.setattr("sightline.explore.outcome.LONGEST", 1024)
    monkeypatch.setitem(run.meta, "next", None)
    slow = asked.get(path, params=last).json()
    assert slow["token"] == pytest.approx(quick["token"])
    assert slow["value"] == pytest.approx(quick["value"], rel=1e-6)
