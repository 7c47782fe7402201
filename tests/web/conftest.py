"""What the tests of the server share: a service over small runs, and a client without a network."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import httpx
import pytest

from explore_cases import make_run, sights, words
from sightline.explore.model_runs import Models
from sightline.explore.once_more import Report
from sightline.explore.run import Run
from sightline.web.jobs import Job
from sightline.web.service import Service
from web.shared_app import application_of

if TYPE_CHECKING:
    from playwright.sync_api import Browser


class Client:
    """Asks the application without a socket; every answer is read whole."""

    def __init__(self, service: Service, host: str = "127.0.0.1:8000") -> None:
        self.service, self.app, self.host = service, application_of(service), host

    def request(self, method: str, path: str, **options: Any) -> httpx.Response:
        async def ask() -> httpx.Response:
            transport = httpx.ASGITransport(self.app, raise_app_exceptions=False)
            async with httpx.AsyncClient(transport=transport, base_url=f"http://{self.host}") as client:
                return await client.request(method, path, **options)

        return asyncio.run(ask())

    def get(self, path: str, **options: Any) -> httpx.Response:
        return self.request("GET", path, **options)

    def post(self, path: str, **options: Any) -> httpx.Response:
        return self.request("POST", path, **options)


def instant(job: Job, report: Report) -> Run:
    """A model that takes no time: one token per word."""
    report(stage="running", done=1, total=2)
    tokens = job.request.text.split()
    if "fail" in tokens:
        raise RuntimeError("the model broke")
    return Run(job.id, sights(len(tokens)), tokens, model=job.request.model, text=job.request.text)


class Words(Models):
    """One model that is not there."""

    def __init__(self) -> None:
        pass

    def __contains__(self, name: object) -> bool:
        return False

    def listed(self) -> list[dict[str, Any]]:
        return [{"name": "words", "title": "one token per word"}]


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """A real browser, and the page it will be asked to show."""
    from web.browser import build_page, open_browser

    build_page()
    with open_browser() as opened:
        yield opened


@pytest.fixture
def service() -> Iterator[Service]:
    made = Service(instant, models=Words(), threads=2)
    yield made
    made.close()


@pytest.fixture
def client(service: Service) -> Client:
    return Client(service)


@pytest.fixture
def run(service: Service) -> Run:
    made = make_run(sights(300), words(300))
    service.library.add(made)
    return made
