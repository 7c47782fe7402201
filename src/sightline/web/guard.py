"""Who may talk to the server: plain ASGI around everything, so that disconnects reach the handlers unchanged.

A page of another site can make a browser send requests to 127.0.0.1. It cannot forge the Host and Origin headers, so
only those that name this server are answered (this also stops names that are re-bound to a local address).
"""

from __future__ import annotations

import ipaddress
import json
import re
from collections import Counter
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

LOOPBACK = ("127.0.0.1", "localhost", "::1")
# What the guard reads; a header that comes twice could mean one thing here and another thing elsewhere.
ONCE = ("host", "origin", "sec-fetch-site", "sec-fetch-mode", "content-length")
# An address with colons in brackets, or a name, or another address; then perhaps a port, and nothing else anywhere.
_HOST = re.compile(r"(?:\[([0-9a-f.]*:[0-9a-f:.]*)\]|([0-9a-z._-]+))(?::([0-9]{1,5}))?", re.ASCII | re.I)
_LENGTH = re.compile(r"[0-9]{1,12}", re.ASCII)
# A body holds one text of at most 1 MB, in JSON where a character may take six.
LARGEST_BODY = 6 * (1 << 20) + (1 << 16)

HEADERS = {
    "content-security-policy": "default-src 'self'; img-src 'self' data: blob:; object-src 'none'; base-uri 'none'; "
    "form-action 'none'; frame-ancestors 'none'",
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
}


class Guard:
    """Refuses foreign Host and Origin headers and bodies that are too large; adds the security headers."""

    def __init__(self, app: App, host: str = "127.0.0.1") -> None:
        self.app, self.host = app, host.strip("[]")

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            if scope["type"] == "lifespan":
                await self.app(scope, receive, send)
            return  # there are no web sockets here
        listed = [(name.decode("latin-1").lower(), value.decode("latin-1")) for name, value in scope["headers"]]
        headers = dict(listed)

        async def guarded(message: MutableMapping[str, Any]) -> None:
            if message["type"] == "http.response.start":
                there = {name.lower() for name, _ in message.get("headers", [])}
                message["headers"] = [
                    *message.get("headers", []),
                    *((k.encode(), v.encode()) for k, v in HEADERS.items() if k.encode() not in there),
                ]
            await send(message)

        problem = _doubled(listed) or self._foreign(headers) or _too_large(headers)
        if problem is not None:
            await _refuse(guarded, *problem)
            return
        await self.app(scope, _limited(receive), guarded)

    def _foreign(self, headers: dict[str, str]) -> tuple[int, dict[str, str]] | None:
        host = headers.get("host", "")
        origin = headers.get("origin")
        if not self.allows(_name(host)):
            return 403, _body("this Host is not this server", " or ".join(LOOPBACK[:2]), host, "http://127.0.0.1")
        if origin is not None and origin.lower() != f"http://{host.lower()}":
            return 403, _body("this Origin is another site", f"http://{host}, or none", origin, "open the page itself")
        if headers.get("sec-fetch-site") == "cross-site" and headers.get("sec-fetch-mode") != "navigate":
            return 403, _body("another site asked for this", "the explorer's own page", "cross-site", "open the page")
        return None

    def allows(self, name: str) -> bool:
        """Whether a server bound to `host` goes by this name."""
        if name in LOOPBACK or name == self.host:
            return True
        if self.host not in ("0.0.0.0", "::"):
            return False
        try:
            # Bound to every address: reached by any of them. A re-bound name is a name, not an address.
            ipaddress.ip_address(name)
        except ValueError:
            return False
        return True


def _name(host: str) -> str:
    """The name in a Host header, without brackets and port; empty for one that is not exactly a name and a port.

    >>> _name("LocalHost:8000"), _name("[::1]"), _name("127.0.0.1:x@evil.example")
    ('localhost', '::1', '')
    """
    found = _HOST.fullmatch(host)
    if found is None or not 1 <= int(found[3] or 80) <= 65535:
        return ""
    return (found[1] or found[2]).lower()


def _doubled(listed: list[tuple[str, str]]) -> tuple[int, dict[str, str]] | None:
    counts = Counter(name for name, _ in listed)
    twice = next((name for name in ONCE if counts[name] > 1), None)
    if twice is None:
        return None
    return 403, _body(f"the header {twice} comes more than once", "one", str(counts[twice]), "another client")


def _too_large(headers: dict[str, str]) -> tuple[int, dict[str, str]] | None:
    length = headers.get("content-length", "0")
    if _LENGTH.fullmatch(length) and int(length) <= LARGEST_BODY:
        return None
    return 413, _body("this request is too large", f"at most {LARGEST_BODY:,} bytes", length[:20], "a shorter text")


def _limited(receive: Receive) -> Receive:
    """The same messages; a body that goes on past the limit, whatever its header said, ends as a disconnect."""
    read = 0

    async def limited() -> MutableMapping[str, Any]:
        nonlocal read
        message = await receive()
        if message["type"] == "http.request":
            read += len(message.get("body", b""))
            if read > LARGEST_BODY:
                return {"type": "http.disconnect"}
        return message

    return limited


def _body(error: str, expected: str, got: str, hint: str) -> dict[str, str]:
    return {"error": error, "expected": expected, "got": got[:200], "try": hint}


async def _refuse(send: Send, status: int, body: dict[str, str]) -> None:
    content = json.dumps(body).encode()
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(content)).encode())]
    await send(
        {"type": "http.response.start", "status": status, "headers": [*headers, (b"cache-control", b"no-store")]}
    )
    await send({"type": "http.response.body", "body": content})
