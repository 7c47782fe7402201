"""How the routes answer: raw numbers, what a browser may keep, and nothing for those who have left."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Awaitable
from typing import Any

from fastapi import Request
from fastapi.responses import Response

from sightline.explore.run import Run
from sightline.web.problems import Problem
from sightline.web.service import Service

FOREVER = "private, max-age=31536000, immutable"


def binary(body: bytes) -> Response:
    """Raw numbers."""
    return Response(body, media_type="application/octet-stream")


def finished(request: Request, run: Run, response: Response, complete: bool = True) -> Response:
    """Cache headers: what is finished never changes under its id; the rest is not to be kept."""
    if run.growing or not complete:
        response.headers["Cache-Control"] = "no-store"
        if not complete:
            response.headers["X-Sightline-Estimate"] = "1"
        return response
    tag = f'"{hashlib.sha256(bytes(response.body)).hexdigest()[:20]}"'
    response.headers.update({"Cache-Control": FOREVER, "ETag": tag})
    if tag in request.headers.get("if-none-match", ""):
        return Response(status_code=304, headers={"Cache-Control": FOREVER, "ETag": tag})
    return response


async def unless_over(service: Service, request: Request, work: Awaitable[Any]) -> Any:
    """The result, unless the client leaves first, or the server stops: then nobody waits for it any more."""
    task = asyncio.ensure_future(work)
    gone = asyncio.ensure_future(_gone(request))
    stopped = asyncio.get_running_loop().create_future()
    service.waiters.add(stopped)
    try:
        await asyncio.wait({task, gone, stopped}, return_when=asyncio.FIRST_COMPLETED)
        if task.done():
            return task.result()
        if stopped.done():
            raise Problem(503, "the server stops", expected="a running server", got="Ctrl-C", hint="start it again")
        raise Problem(499, "the client has gone", expected="a client", got="none", hint="ask again")
    finally:
        service.waiters.discard(stopped)
        gone.cancel()
        if not task.done():
            task.cancel()
        elif not task.cancelled():
            task.exception()  # whoever would have fetched it may have gone in the same moment


async def _gone(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass
