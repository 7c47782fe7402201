"""Only this server's own names are answered; every answer carries the headers that keep other sites out."""

from __future__ import annotations

import asyncio

import httpx
import pytest

from sightline.web.guard import HEADERS, Guard
from sightline.web.service import Service
from web.conftest import Client


@pytest.mark.parametrize(
    "headers, status",
    [
        ({}, 200),
        ({"host": "localhost:9999"}, 200),
        ({"host": "[::1]:8000"}, 200),
        ({"host": "LOCALHOST"}, 200),
        ({"host": "evil.example"}, 403),
        ({"host": "127.0.0.1.evil.example:8000"}, 403),
        ({"host": "192.168.0.7:8000"}, 403),
        ({"host": ""}, 403),
        ({"origin": "http://127.0.0.1:8000"}, 200),
        ({"origin": "http://127.0.0.1:9000"}, 403),
        ({"origin": "https://evil.example"}, 403),
        ({"origin": "null"}, 403),
        ({"sec-fetch-site": "cross-site", "sec-fetch-mode": "no-cors"}, 403),
        ({"sec-fetch-site": "cross-site", "sec-fetch-mode": "navigate"}, 200),
        ({"sec-fetch-site": "same-origin", "sec-fetch-mode": "cors"}, 200),
    ],
)
def test_foreign_requests_are_refused(client: Client, headers: dict[str, str], status: int) -> None:
    answer = client.get("/api/limits", headers=headers)
    assert answer.status_code == status
    if status == 403:
        assert set(answer.json()) == {"error", "expected", "got", "try"}


@pytest.mark.parametrize("path", ["/", "/api/limits", "/api/nothing", "/api/docs"])
def test_every_answer_has_the_security_headers(client: Client, path: str) -> None:
    answer = client.get(path)
    for name, value in HEADERS.items():
        assert answer.headers[name] == value


@pytest.mark.parametrize(
    "bound, name, allowed",
    [
        ("127.0.0.1", "10.0.0.5", False),
        ("10.0.0.5", "10.0.0.5", True),
        ("0.0.0.0", "10.0.0.5", True),
        ("0.0.0.0", "evil.example", False),
        ("::", "fe80::1", True),
        ("machine.local", "machine.local", True),
    ],
)
def test_names_a_server_goes_by(bound: str, name: str, allowed: bool) -> None:
    async def nothing(*_: object) -> None: ...

    assert Guard(nothing, bound).allows(name) is allowed


def test_web_sockets_are_not_answered(service: Service) -> None:
    called = []

    async def app(*_: object) -> None:
        called.append(1)

    asyncio.run(Guard(app)({"type": "websocket"}, None, None))  # type: ignore[arg-type]
    assert not called


def test_a_length_that_lies_is_noticed(client: Client) -> None:
    async def endless():
        for _ in range(200):
            yield b"x" * (1 << 16)

    async def ask() -> httpx.Response:
        transport = httpx.ASGITransport(client.app, raise_app_exceptions=False)
        async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1:8000") as web:
            return await web.post("/api/runs", content=endless(), headers={"content-type": "application/json"})

    # Chunked, so without a length: it ends as if the client had gone.
    assert asyncio.run(ask()).status_code >= 400
