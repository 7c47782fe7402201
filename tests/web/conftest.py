"""What the tests of the explorer share: small runs, a service over them, and a client without a network."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import httpx
import pytest
import torch

import sightline as sl
from sightline.lens import Sight
from sightline.web.app import application
from sightline.web.jobs import Order, Report, Ticket
from sightline.web.running import Models
from sightline.web.runs import Run, content_id
from sightline.web.service import Service

if TYPE_CHECKING:
    from playwright.sync_api import Browser

WORDS = ["the", "kids", "were", "scared", "of", "the", "lions", ",", "so", "they", "left", "right", "away", "."]


class Sights(dict):
    """A dictionary of sights as an account: what a saved run is made of, without a model."""

    @property
    def layers(self) -> list[str]:
        return list(self)


def sights(tokens: int, layers: int = 2, heads: int = 3, dim: int = 8, **options: Any) -> Sights:
    made = Sights()
    for i in range(layers):
        q, k = torch.randn(1, heads, tokens, dim), torch.randn(1, heads, tokens, dim)
        made[f"layers.{i}.attention"] = sl.look(2 * q, k, mask=sl.causal(), stats=("entropy", "received"), **options)
    return made


def make_run(account: Sights, tokens: list[str], **about: Any) -> Run:
    return Run(content_id(account, tokens, 0, about), account, tokens, **about)


def words(n: int) -> list[str]:
    return [WORDS[i % len(WORDS)] for i in range(n)]


class Client:
    """Asks the application without a socket; every answer is read whole."""

    def __init__(self, service: Service, host: str = "127.0.0.1:8000") -> None:
        self.service, self.app, self.host = service, application(service), host

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


def instant(ticket: Ticket, report: Report) -> Run:
    """A model that takes no time: one token per word."""
    report(stage="running", done=1, total=2)
    tokens = ticket.order.text.split()
    if "fail" in tokens:
        raise RuntimeError("the model broke")
    return Run(ticket.id, sights(len(tokens)), tokens, model=ticket.order.model, text=ticket.order.text)


def name_order(order: Order) -> str:
    import hashlib

    return hashlib.sha256(repr(order).encode()).hexdigest()[:16]


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
    made = Service(instant, name_order, models=Words(), threads=2)
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


def exact(run: Run, layer: int, head: int) -> torch.Tensor:
    """The whole map of a head."""
    sight: Sight = run.account[run.layers[layer].name]
    return sight.tile(slice(None), slice(None))[0, head]
