"""Connections that come to an end: half a request is not waited for, and an answer in progress is not cut."""

from __future__ import annotations

import asyncio
import selectors
import socket
import threading
import time
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
import uvicorn

from sightline.web import connections
from sightline.web.connections import Connection
from sightline.web.serve import _listen, _server
from sightline.web.service import Service

PATIENCE, UNREAD, MOST = 0.4, 1.2, 24

HALVES = {
    "nothing": b"",
    "a word": b"GET",
    "half a head": b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\n",
    "no body": b"POST / HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 9\r\n\r\n",
    "half a body": b"POST / HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 9\r\n\r\n1234",
    "half a chunk": b"POST / HTTP/1.1\r\nHost: 127.0.0.1\r\nTransfer-Encoding: chunked\r\n\r\n9\r\n12",
    "one and a half": b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\nGET / HTTP/1.1\r\n",
}


async def app(scope: Any, receive: Any, send: Any) -> None:
    """Reads a body, then answers: soon, after a while, bit by bit, or with more than anyone has room for."""
    assert scope["type"] == "http"
    while (message := await receive()).get("more_body"):
        pass
    if message["type"] == "http.disconnect":
        return
    await send({"type": "http.response.start", "status": 200, "headers": [(b"connection", b"keep-alive")]})
    if scope["path"] == "/later":
        await asyncio.sleep(3 * PATIENCE)
    if scope["path"] == "/bits":
        for _ in range(8):
            await send({"type": "http.response.body", "body": b"bit ", "more_body": True})
            await asyncio.sleep(PATIENCE / 2)
    body = b"x" * (32 << 20) if scope["path"] == "/large" else b"whole"
    await send({"type": "http.response.body", "body": body})


class Started:
    """A server in a thread of its own, on any free port."""

    def __init__(self, server: uvicorn.Server) -> None:
        self.server, self.listener = server, _listen("127.0.0.1", 0)
        self.port = self.listener.getsockname()[1]
        self.thread = threading.Thread(target=server.run, kwargs={"sockets": [self.listener]})
        self.thread.start()
        self.until(lambda: server.started)

    @property
    def open(self) -> int:
        return len(self.server.server_state.connections)

    def connect(self, content: bytes = b"") -> socket.socket:
        made = socket.create_connection(("127.0.0.1", self.port), timeout=10)
        made.sendall(content)
        return made

    def get(self, path: str = "/", **options: Any) -> httpx.Response:
        return httpx.get(f"http://127.0.0.1:{self.port}{path}", timeout=30, **options)

    def until(self, holds: Any) -> None:
        end = time.monotonic() + 10
        while not holds():
            assert time.monotonic() < end, "it does not come about"
            time.sleep(0.01)

    def stop(self) -> None:
        self.server.should_exit = True
        self.thread.join(20)
        self.listener.close()


@pytest.fixture(scope="module")
def started() -> Iterator[Started]:
    config = uvicorn.Config(app, http=Connection, ws="none", lifespan="off", log_level="error", timeout_keep_alive=15)
    with pytest.MonkeyPatch.context() as patch:
        for name, value in (("PATIENCE", PATIENCE), ("UNREAD", UNREAD), ("MOST", MOST)):
            patch.setattr(connections, name, value)
        made = Started(uvicorn.Server(config))
        yield made
        made.stop()


@pytest.fixture
def served(started: Started) -> Started:
    started.until(lambda: not started.open)
    return started


def closed(client: socket.socket) -> float:
    """How long it takes until the other end closes."""
    start = time.monotonic()
    try:
        while client.recv(1 << 16):
            pass
    except ConnectionResetError:
        pass
    return time.monotonic() - start


@pytest.mark.parametrize("kind", HALVES)
def test_half_a_request_is_not_waited_for(served: Started, kind: str) -> None:
    with served.connect(HALVES[kind]) as client:
        assert served.get().text == "whole"
        assert closed(client) < 6 * PATIENCE + 2
    served.until(lambda: not served.open)
    assert served.get().text == "whole"


def test_bytes_that_trickle_in_win_no_time(served: Started) -> None:
    with served.connect() as client, selectors.DefaultSelector() as selector:
        selector.register(client, selectors.EVENT_READ)
        end = time.monotonic() + 20
        for byte in b"GET / HTTP/1.1\r\nX-Long: " + b"x" * 10_000:
            client.send(bytes([byte]))
            if selector.select(PATIENCE / 10):
                break
            assert time.monotonic() < end, "it goes on for as long as bytes come"


def test_an_idle_connection_is_closed(served: Started) -> None:
    with served.connect(b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n") as client:
        assert closed(client) < 6 * PATIENCE + 2


def test_many_half_open_connections_leave_room(served: Started) -> None:
    clients = [served.connect(list(HALVES.values())[i % 6]) for i in range(5 * MOST)]
    assert served.get().text == "whole", "while they are open"
    for client in clients:
        closed(client)
        client.close()
    served.until(lambda: not served.open)


def test_where_all_are_being_answered_a_new_one_is_refused(served: Started) -> None:
    asking = [served.connect(b"GET /later HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n") for _ in range(MOST)]
    served.until(lambda: served.open == MOST)
    with served.connect() as client:
        assert closed(client) < 3 * PATIENCE
    for one in asking:
        assert one.recv(1 << 16).startswith(b"HTTP/1.1 200"), "the others are not cut"
        one.close()


@pytest.mark.parametrize("path, text", [("/later", "whole"), ("/bits", "bit " * 8 + "whole")])
def test_an_answer_that_takes_long_is_not_cut(served: Started, path: str, text: str) -> None:
    assert served.get(path).text == text


def test_an_answer_that_is_read_slowly_is_not_cut(served: Started) -> None:
    with served.connect(b"GET /large HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n") as client:
        read, start = 0, time.monotonic()
        while part := client.recv(1 << 20):
            read += len(part)
            time.sleep(0.05)
    assert read > 32 << 20
    assert time.monotonic() - start > UNREAD


def test_an_answer_that_nobody_reads_is_dropped(served: Started) -> None:
    with served.connect(b"GET /large HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"):
        served.until(lambda: served.open)
        served.until(lambda: not served.open)


def test_the_explorer_is_served_so(service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "PATIENCE", 15.0)
    monkeypatch.setattr(connections, "MOST", 60)
    started = Started(_server(service, "127.0.0.1"))
    try:
        clients = [started.connect(HALVES["half a head"]) for _ in range(connections.MOST + 40)]
        assert started.get("/api/limits").status_code == 200
        started.until(lambda: started.open <= connections.MOST)  # sooner than any of them has waited too long
        answer = started.get("/api/limits", headers={"connection": "upgrade", "upgrade": "websocket"})
        assert answer.status_code == 200, "there are no web sockets: it is a request like any other"
        for client in clients:
            client.close()
    finally:
        started.stop()
