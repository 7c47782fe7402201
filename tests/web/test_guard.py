"""Only this server's own names are answered; every answer carries the headers that keep other sites out."""

from __future__ import annotations

import asyncio
from typing import Any

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


HOSTS = {
    "127.0.0.1": True,
    "127.0.0.1:1": True,
    "127.0.0.1:65535": True,
    "localhost": True,
    "LocalHost:8000": True,
    "[::1]": True,
    "[::1]:8000": True,
    "": False,
    " ": False,
    " 127.0.0.1": False,
    "127.0.0.1 ": False,
    "127.0.0.1\t": False,
    "127.0.0.1\n": False,
    "127.0.0.1 :8000": False,
    "127.0.0.1: 8000": False,
    "127.0.0.1:": False,
    "127.0.0.1:0": False,
    "127.0.0.1:65536": False,
    "127.0.0.1:080000": False,
    "127.0.0.1:+80": False,
    "127.0.0.1:-1": False,
    "127.0.0.1:8_0": False,
    "127.0.0.1:8\u00b2": False,
    "127.0.0.1:x": False,
    "127.0.0.1:x@evil.example": False,
    "127.0.0.1:8000@evil.example": False,
    "evil.example@127.0.0.1": False,
    "127.0.0.1:8000:8000": False,
    "127.0.0.1,127.0.0.1": False,
    "127.0.0.1/evil": False,
    "127.0.0.1#evil": False,
    "127.0.0.1?evil": False,
    "127.0.0.1.": False,
    "127.0.0.1.evil.example": False,
    "127.0.0.2": False,
    "127.1": False,
    "2130706433": False,
    "0.0.0.0": False,
    "localhost.": False,
    "localhost.evil.example": False,
    "evil-localhost": False,
    "::1": False,
    "::1:8000": False,
    "[::1": False,
    "[::1]x": False,
    "[::1]evil.example": False,
    "[::1]:": False,
    "[::1%lo]": False,
    "[0:0:0:0:0:0:0:1]": False,
    "[127.0.0.1]": False,
    "[localhost]": False,
    "[::1].evil.example:8000": False,
}


def asked(guard: Guard, headers: list[tuple[bytes, bytes]]) -> int:
    """The status of a request with these headers, as they come from the wire."""
    found: list[int] = []

    async def send(message: Any) -> None:
        if message["type"] == "http.response.start":
            found.append(message["status"])

    asyncio.run(guard({"type": "http", "headers": headers}, nothing, send))
    return found[0]


async def nothing(*_: object) -> Any: ...


async def welcome(_: object, __: object, send: Any) -> None:
    await send({"type": "http.response.start", "status": 200, "headers": []})


@pytest.mark.parametrize("host", HOSTS)
def test_only_exact_names_of_this_machine_pass(host: str) -> None:
    assert asked(Guard(welcome), [(b"host", host.encode("latin-1"))]) == (200 if HOSTS[host] else 403)


@pytest.mark.parametrize(
    "headers",
    [
        [],
        [("host", "127.0.0.1"), ("host", "evil.example")],
        [("host", "evil.example"), ("host", "127.0.0.1")],
        [("host", "127.0.0.1"), ("Host", "127.0.0.1")],
        [("host", "127.0.0.1"), ("origin", "http://127.0.0.1"), ("origin", "http://evil.example")],
        [("host", "127.0.0.1"), ("origin", "http://evil.example"), ("origin", "http://127.0.0.1")],
        [("host", "127.0.0.1"), ("origin", "")],
        [("host", "127.0.0.1"), ("origin", "127.0.0.1")],
        [("host", "127.0.0.1"), ("origin", "https://127.0.0.1")],
        [("host", "127.0.0.1"), ("origin", "evil://127.0.0.1")],
        [("host", "127.0.0.1"), ("origin", "http://127.0.0.1:80")],
        [("host", "127.0.0.1"), ("origin", "http://127.0.0.1@evil.example")],
        [("host", "127.0.0.1"), ("origin", "http://127.0.0.1 http://evil.example")],
        [("host", "127.0.0.1"), ("origin", "http://localhost")],
        [("host", "127.0.0.1"), ("sec-fetch-site", "same-origin"), ("sec-fetch-site", "cross-site")],
        [("host", "127.0.0.1"), ("sec-fetch-site", "cross-site"), ("sec-fetch-site", "same-origin")],
    ],
)
def test_missing_doubled_and_unlike_headers_are_refused(headers: list[tuple[str, str]]) -> None:
    assert asked(Guard(welcome), [(name.encode(), value.encode()) for name, value in headers]) == 403


@pytest.mark.parametrize("length", ["9" * 5000, "-1", "", "x", "1e3", "7000000", "\u00b2"])
def test_a_length_that_is_none_is_refused(length: str) -> None:
    headers = [(b"host", b"127.0.0.1"), (b"content-length", length.encode("latin-1"))]
    assert asked(Guard(welcome), headers) == 413


@pytest.mark.parametrize("host, status", [("[fe80::1]:80", 200), ("10.0.0.5", 200), ("[10.0.0.5]", 403), ("[x]", 403)])
def test_bound_to_every_address_only_addresses_pass(host: str, status: int) -> None:
    for bound in ("0.0.0.0", "::"):
        assert asked(Guard(welcome, bound), [(b"host", host.encode())]) == status


def test_a_name_it_was_bound_to_is_compared_whole() -> None:
    guard = Guard(welcome, "machine.local")
    assert asked(guard, [(b"host", b"Machine.local:8000")]) == 200
    assert asked(guard, [(b"host", b"machine.local:x@evil.example")]) == 403
    assert asked(guard, [(b"host", b"machine.local.evil.example")]) == 403
    assert asked(Guard(welcome, "fd00::7"), [(b"host", b"[fd00::7]:8000")]) == 200


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
