"""What the server answers is what it describes, and what it describes are the types of the page."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from fastapi.routing import APIRoute
from pydantic import TypeAdapter

from by_path import module_at
from explore_cases import make_run, sights, words
from sightline.explore.run import Run
from sightline.web import shapes
from sightline.web.routes import routes
from web.browser import build_page
from web.conftest import Client

ROOT = Path(__file__).resolve().parents[2]
describe = module_at(ROOT / "web" / "describe.py")


# What each route says that it answers, by its method and path; a stream says it of its events.
ANSWERS: dict[tuple[str, str], Any] = {
    (method, route.path): route.response_model
    for route in routes(None).routes  # type: ignore[arg-type]
    if isinstance(route, APIRoute)
    for method in route.methods
} | {("GET", "/api/runs/{run}/events"): shapes.Order}


def holds(route: str, body: str | bytes, method: str = "GET") -> None:
    TypeAdapter(ANSWERS[method, route]).validate_json(body, strict=True)


def test_the_types_of_the_page_are_what_the_server_says_now() -> None:
    build_page()
    written = describe.TYPES.read_text(encoding="utf-8")
    assert written == describe.typed(describe.description()), "the server answers something else now: make types"


def test_the_server_describes_every_route_as_these_shapes_do(client: Client) -> None:
    """The one that is asked, and the one the types are made of, are the same."""
    served = client.get("/api/openapi.json").json()
    made = describe.description()
    assert served["paths"] == made["paths"]
    assert served["components"] == made["components"]


def test_events_are_described_as_events_of_orders(client: Client) -> None:
    answers = client.get("/api/openapi.json").json()["paths"]["/api/runs/{run}/events"]["get"]["responses"]
    assert answers["200"]["content"] == {"text/event-stream": {"schema": {"$ref": "#/components/schemas/Order"}}}


def test_only_raw_numbers_and_files_are_not_described(client: Client) -> None:
    api = client.get("/api/openapi.json").json()
    left = {
        path.split("/")[4]
        for path, methods in api["paths"].items()
        for operation in methods.values()
        for answer in operation["responses"].values()
        if any(not content["schema"] for content in answer.get("content", {}).values())
    }
    assert left == {"thumbs", "tiles", "rows", "columns", "tracks", "rollout", "export", "image"}


@pytest.mark.parametrize(
    "route, path",
    [
        ("/api/limits", "/api/limits"),
        ("/api/runs", "/api/runs"),
        ("/api/runs/{run}", "/api/runs/{id}"),
        ("/api/runs/{run}/text", "/api/runs/{id}/text"),
        ("/api/runs/{run}/tokens", "/api/runs/{id}/tokens?from=3&to=9"),
        ("/api/runs/{run}/portraits", "/api/runs/{id}/portraits"),
        ("/api/runs/{run}/peek/{layer}/{head}", "/api/runs/{id}/peek/1/2"),
        ("/api/runs/{run}/peek/{layer}/{head}", "/api/runs/{id}/peek/1/2?rows=9&cols=5"),
        ("/api/runs/{run}/peek/{layer}/{head}", "/api/runs/{id}/peek/1/2?rows=5&cols=9"),
        ("/api/runs/{run}/peek/{layer}/{head}", "/api/runs/{id}/peek/1/2?rows=0:40&cols=0:40"),
        ("/api/runs/{run}/peek/{layer}/{head}", "/api/runs/{id}/peek/1/2?rows=0:4&cols=100:140"),
        ("/api/runs/{run}/steps/{layer}/{head}", "/api/runs/{id}/steps/1/2?q=200"),
        ("/api/runs/{run}/grid", "/api/runs/{id}/grid?q=200&k=5"),
        ("/api/runs/{run}/grid", "/api/runs/{id}/grid?q=200&layer=1"),
        ("/api/runs/{run}/path", "/api/runs/{id}/path?q=200"),
        ("/api/runs/{run}/links/{layer}/{head}", "/api/runs/{id}/links/1/2"),
        ("/api/runs/{run}/links/{layer}/{head}", "/api/runs/{id}/links/1/2?q=200&k=5"),
        ("/api/runs/{run}/bookmarks", "/api/runs/{id}/bookmarks"),
    ],
)
def test_answers_have_their_shape(route: str, path: str, client: Client, run: Run) -> None:
    found = client.get(path.format(id=run.id))
    assert found.status_code == 200, found.text
    holds(route, found.content)


def test_orders_have_their_shape_from_first_to_last(client: Client) -> None:
    ordered = client.post("/api/runs", json={"text": "it will fail", "model": "words"})
    holds("/api/runs", ordered.content, "POST")
    id = ordered.json()["id"]
    told = [line[6:] for line in client.get(f"/api/runs/{id}/events").text.splitlines() if line.startswith("data: ")]
    assert json.loads(told[-1])["problem"]["got"] == "RuntimeError: the model broke"
    for event in told:
        holds("/api/runs/{run}/events", event)
    holds("/api/runs/{run}", client.get(f"/api/runs/{id}").content)
    holds("/api/runs", client.get("/api/runs").content)


def test_a_run_in_part_has_its_shape_too(client: Client) -> None:
    """Without texts, with a memory, and with what was not seen."""
    account = sights(20)
    account.unseen = {"layers.7": "written by hand"}  # type: ignore[attr-defined]
    made = make_run(account, [""] * 20, memory=words(5), model="words")
    client.service.library.add(made)
    about = client.get(f"/api/runs/{made.id}")
    holds("/api/runs/{run}", about.content)
    assert (about.json()["memory_tokens"], len(about.json()["unseen"])) == (5, 1)


def test_what_goes_wrong_has_one_shape(client: Client) -> None:
    for path in ("/api/runs/none", "/api/nothing", "/api/runs/none/tokens?from=x"):
        found = client.get(path)
        assert found.status_code >= 400
        assert set(TypeAdapter(shapes.Problem).validate_json(found.content, strict=True)) == set(found.json())


def test_what_is_not_described_would_be_noticed() -> None:
    with pytest.raises(ValueError, match="colour"):
        holds("/api/runs/{run}/peek/{layer}/{head}", '{"link": null, "colour": "blue"}')
    with pytest.raises(ValueError, match="Input should be a valid integer"):
        holds("/api/runs", '{"id": "a", "position": "1"}', "POST")
