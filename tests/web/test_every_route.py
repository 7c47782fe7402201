"""Every route that is asked about a run: what it answers to who asks too early, too much, from elsewhere, or nonsense.

One table has them all; a route that is not in it fails the first test.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from typing import Any, NamedTuple

import httpx
import pytest

from sightline.web.app import application
from sightline.web.guard import LARGEST_BODY
from sightline.web.jobs import performer
from sightline.web.routes import routes
from sightline.web.service import Service
from web.conftest import Client
from web.test_effects import TEXT, Tiny

FAR = 99


class Route(NamedTuple):
    """A route, what it is asked as it should be, and what it refuses: queries or bodies, each with a status."""

    method: str
    path: str
    given: Any = ""  # a query, or a body
    refused: tuple[tuple[int, Any], ...] = ()
    waits: str = ""  # the queue it may find full: "jobs", "quick" or "slow"
    early: int = 409  # of a run that is not there yet
    good: int = 200


AIM: tuple[tuple[int, Any], ...] = ((422, {"after": -1}), (422, {"token": "x" * 201}), (422, {"that": "is not known"}))
ASKED: tuple[tuple[int, str], ...] = (
    (422, f"after={FAR}"),
    (422, "token=unbelievably+so"),
    (422, f"token={'x' * 201}"),
)
TABLE = [
    Route("GET", ""),
    Route("GET", "text"),
    Route("GET", "tokens", "from=0&to=9", ((422, f"to={FAR}"), (422, "from=-1"))),
    Route("GET", "portraits", waits="slow"),
    Route("GET", "thumbs", waits="slow"),
    Route("GET", "tiles/1/2/0/0/0/0", "pool=max", ((422, "pool=none"),), "quick"),
    Route(
        "GET",
        "rows/1/2",
        "q=9,12",
        ((422, f"q={FAR}"), (422, "q=-1"), (422, f"q={','.join('0123456789' * 20)}1")),
        "quick",
    ),
    Route("GET", "columns/1/2", "k=9", ((422, f"k={FAR}"), (422, "k=x")), "quick"),
    Route("GET", "tracks/1/2", waits="quick"),
    Route("GET", "peek/1/2", "rows=9&cols=5", ((422, f"rows={FAR}&cols=5"), (422, "rows=9")), "quick"),
    Route("GET", "rollout", "q=9", ((422, f"q={FAR}"), (422, "q=1,2,3,4,5,6,7,8,9")), "slow"),
    Route("GET", "steps/1/2", "q=9", ((422, f"q={FAR}"), (422, "q=9&top=513")), "slow"),
    Route("GET", "export", "format=csv&layer=1", ((422, "format=exe"), (422, f"format=csv&rows=0:{FAR}")), "slow"),
    Route("GET", "grid", "q=9&k=5", ((422, f"q={FAR}"), (422, f"q=9&k={FAR}"), (404, f"q=9&layer={FAR}")), "slow"),
    Route("GET", "path", "q=9", ((422, f"q={FAR}"), (404, f"q=9&start={FAR}"), (422, "q=9&least=0")), "slow"),
    Route("GET", "links/1/2", "q=9&k=5", ((422, "q=-1"), (422, "k=x")), "slow"),
    Route("GET", "written", refused=((404, ""),), good=404),
    Route(
        "POST", "pace", {"do": "pause"}, ((422, {"do": "exec"}), (422, {}), (404, {"do": "step"})), early=404, good=404
    ),
    Route("GET", "bookmarks", waits="quick"),
    Route(
        "PUT",
        "bookmarks",
        {"marks": [{"layer": 1, "head": 2, "text": "here"}]},
        (
            (422, {"marks": [{"layer": -1, "head": 0}]}),
            (422, {"marks": [{"layer": 0, "head": 0, "text": "x" * 301}]}),
            (422, {"marks": [{"layer": 0, "head": 0}] * 201}),
        ),
        "quick",
        good=204,
    ),
    Route("GET", "image", waits="quick", good=422),
    Route("POST", "readings", {"token": " Mary", "than": " John"}, AIM, "jobs", good=202),
    Route("POST", "effects", {"token": " Mary", "than": " John"}, AIM, "jobs", good=202),
    Route("GET", "effects", "token=+never+asked", ((422, f"token={'x' * 201}"), (422, "after=-1")), good=404),
    Route("GET", "next", "token=+the", (*ASKED, (422, "n=21")), "slow"),
    Route("GET", "python/1/2", "q=9&k=5&token=+the", (*ASKED, (422, f"q={FAR}"), (422, f"k={FAR}")), "slow"),
    Route("POST", "look", "by=me", ((422, f"by={'x' * 65}"),), early=404, good=204),
    Route("POST", "reopen", early=404, good=204),
    Route("GET", "events", early=200),
    Route("DELETE", "", early=204, good=204),
]
# What is not about one run. Orders of runs are tried below, the others answer from memory.
OTHERS = {
    ("GET", "/api/limits"),
    ("GET", "/api/runs"),
    ("POST", "/api/runs"),
    ("GET", "/api/openapi.json"),
    ("GET", "/api/docs"),
    ("GET", "/"),
    ("GET", "/static/{name}"),
    ("GET", "/favicon.ico"),
}
NAMES = [f"{route.method} {route.path}" for route in TABLE]
OVER_HTTP = {"origin": "https://evil.example"}, {"host": "evil.example"}, {"sec-fetch-site": "cross-site"}


class Asked(Client):
    """A client, a run that is there, and one that is not there yet."""

    run = early = ""


@pytest.fixture(scope="module")
def held() -> Iterator[threading.Event]:
    event = threading.Event()
    yield event
    event.set()


@pytest.fixture(scope="module")
def client(held: threading.Event) -> Iterator[Asked]:
    tiny, started = Tiny(), threading.Event()
    inner = performer(tiny, lambda run: None)

    def perform(job: Any, report: Any) -> Any:
        if job.request.text == "held":
            started.set()
            assert held.wait(60)
        return inner(job, report)

    service = Service(perform, tiny, threads=1)
    made = Asked(service)
    made.run = made.post("/api/runs", json={"text": TEXT, "model": "tiny"}).json()["id"]
    assert "done" in made.get(f"/api/runs/{made.run}/events").text
    made.early = made.post("/api/runs", json={"text": "held", "model": "tiny"}).json()["id"]
    assert started.wait(30)
    yield made
    held.set()
    service.close()


def ask(client: Asked, route: Route, run: str, given: Any = None, **options: Any) -> httpx.Response:
    given = route.given if given is None else given
    path = f"/api/runs/{run}" + (f"/{route.path}" if route.path else "")
    if not isinstance(given, str):
        options["json"] = given
    elif given:
        path += f"?{given}"
    return client.request(route.method, path, **options)


def refused(answer: httpx.Response, status: int) -> None:
    assert answer.status_code == status, answer.text
    assert set(answer.json()) == {"error", "expected", "got", "try"}
    assert answer.headers["cache-control"] == "no-store"


def test_the_table_has_every_route_and_the_api_page_describes_it(client: Asked) -> None:
    """Those of the application itself, hidden ones too: each is asked for by one line of the table, or has a test."""
    own = [route for route in application(client.service).app.routes if hasattr(route, "methods")]
    assert len(application(client.service).app.routes) == len(own) + 1, "one router is included, the one below"
    served = [
        (method, route)
        for route in (*own, *routes(client.service).routes)
        for method in route.methods - {"HEAD"}
        if (method, route.path) not in OTHERS
    ]
    lines: dict[tuple[str, str], list[str]] = {(method, route.path): [] for method, route in served}
    for line in TABLE:
        path = f"/api/runs/x/{line.path}".rstrip("/")
        hit = [
            (method, route.path) for method, route in served if method == line.method and route.path_regex.match(path)
        ]
        assert len(hit) == 1, f"{line.method} {path} is answered by {hit}"
        lines[hit[0]].append(line.path)
    assert {route: found for route, found in lines.items() if len(found) != 1} == {}
    api = client.get("/api/openapi.json").json()
    described = {(method.upper(), path) for path, methods in api["paths"].items() for method in methods}
    assert described == {*lines, *(other for other in OTHERS if other[1] in ("/api/limits", "/api/runs"))}
    for methods in api["paths"].values():
        for operation in methods.values():
            assert operation["description"]
            for content in operation.get("requestBody", {}).get("content", {}).values():
                shape = api["components"]["schemas"][content["schema"]["$ref"].rsplit("/", 1)[1]]
                assert shape["properties"], "what is sent is described, and the page shows it"


@pytest.mark.parametrize("route", TABLE, ids=NAMES)
def test_foreign_unknown_and_early_requests_have_their_answers(client: Asked, route: Route) -> None:
    for headers in OVER_HTTP:
        refused(ask(client, route, client.run, headers=headers), 403)
    refused(ask(client, route, client.run, headers={"content-length": str(LARGEST_BODY + 1)}), 413)
    refused(ask(client, route, "nothing"), 404)
    if route.path == "events" or route.method == "DELETE":
        return  # they are about what is not there yet
    answer = ask(client, route, client.early)
    if route.early == 409 and route.path:
        refused(answer, 409)
        assert answer.headers["retry-after"] == "1"
    elif route.early == 404:
        refused(answer, 404)
    else:
        assert answer.json()["state"] == "running"


@pytest.mark.parametrize(
    "route", [route for route in TABLE if route.refused], ids=lambda route: f"{route.method} {route.path}"
)
def test_what_is_out_of_range_is_refused(client: Asked, route: Route) -> None:
    for status, given in route.refused:
        refused(ask(client, route, client.run, given), status)
    if "/1/2" in route.path:
        for place, status in ((f"{FAR}/2", 404), (f"1/{FAR}", 404), ("x/2", 422)):
            refused(ask(client, route._replace(path=route.path.replace("1/2", place, 1)), client.run), status)


@pytest.mark.parametrize(
    "route", [route for route in TABLE if route.waits], ids=lambda route: f"{route.method} {route.path}"
)
def test_a_full_queue_says_when_to_come_again(client: Asked, route: Route, monkeypatch: pytest.MonkeyPatch) -> None:
    """And what is asked then is answered once there is room."""
    service = client.service
    full = {"jobs": service.jobs, "quick": service.flights, "slow": service.slow_flights}[route.waits]
    with monkeypatch.context() as patch:
        patch.setattr(full, "limit", 0)
        service.others.forget(lambda _: True)
        service.tiles.forget(lambda _: True)
        answer = ask(client, route, client.run)
        refused(answer, 429 if route.waits == "jobs" else 503)
        assert int(answer.headers["retry-after"]) > 0
    assert ask(client, route, client.run).status_code == route.good


def test_orders_of_runs_have_limits_too(client: Asked, monkeypatch: pytest.MonkeyPatch) -> None:
    order = {"text": "a new text", "model": "tiny"}
    for headers in OVER_HTTP:
        refused(client.post("/api/runs", json=order, headers=headers), 403)
    refused(client.post("/api/runs", json=order, headers={"content-length": str(LARGEST_BODY + 1)}), 413)
    refused(client.post("/api/runs", json={**order, "text": "x" * 1_000_001}), 413)
    wrong = ({"text": ""}, {"model": "none"}, {"generate": 513}, {"generate": -1}, {"begun": [0] * 513}, {"image": "x"})
    for one in (*wrong, {"layers": "9" * 201}, {"that": "is not known"}):
        refused(client.post("/api/runs", json=order | one), 422)
    with monkeypatch.context() as patch:
        patch.setattr(client.service.jobs, "limit", 0)
        answer = client.post("/api/runs", json=order)
        refused(answer, 429)
        assert int(answer.headers["retry-after"]) > 0


@pytest.mark.parametrize(
    "edits",
    [
        [f"ablate:{10**9}.0"],
        [f"ablate:1.{10**9}"],
        ["scale:1.2:xNaN"],
        ["scale:1.2:x-1"],
        ["scale:1.2:x1e999"],
        ["boost:1.2:k3:xinf"],
        ["ablate:1.2"] * 10_000,
        ["ablate:\ud800.2"],
        ["\udfff" * 1000],
        ["cut:1.2:q0:k0\n"],
        ["__import__('os'):1.2"],
        [""],
        "ablate:1.2",
        [None],
        [{"ablate": 1}],
    ],
    ids=lambda edits: ascii(edits)[:24],
)
def test_an_edit_that_is_not_offered_is_refused_before_anything_runs(client: Asked, edits: Any) -> None:
    before = len(client.service.jobs.by_id)
    body = json.dumps({"text": "a text", "model": "tiny", "edits": edits})  # in ASCII: half a character may be sent so
    refused(client.post("/api/runs", content=body, headers={"content-type": "application/json"}), 422)
    assert len(client.service.jobs.by_id) == before


def test_effects_that_are_not_done_are_early(client: Asked) -> None:
    route = next(route for route in TABLE if (route.method, route.path) == ("GET", "effects"))
    ask(client, route._replace(method="POST"), client.run, {"token": " and"})
    answer = ask(client, route, client.run, "token=+and")
    refused(answer, 409)
    assert "/events" in answer.json()["try"]


@pytest.mark.parametrize("edit", ["ablate:99.0", "ablate:1.99", "cut:1.2:q9999:k0", "scale:*.77:x2"])
def test_an_edit_of_what_the_model_has_not_fails_and_says_what_it_has(
    client: Asked, held: threading.Event, edit: str
) -> None:
    held.set()
    run = client.post("/api/runs", json={"text": TEXT, "model": "tiny", "edits": [edit]}).json()["id"]
    last = json.loads(client.get(f"/api/runs/{run}/events").text.strip().rsplit("data: ", 1)[1])
    assert last["state"] == "failed", last
    assert set(last["problem"]) == {"error", "expected", "got", "try"}
    assert last["problem"]["error"] != "the run failed", "it is a refusal, not a crash"
    refused(client.get(f"/api/runs/{run}/rows/1/2?q=0"), 409)


def test_last_of_all_a_run_is_closed(client: Asked, held: threading.Event) -> None:
    held.set()
    for run in (client.early, client.run):
        assert client.request("DELETE", f"/api/runs/{run}").status_code == 204
