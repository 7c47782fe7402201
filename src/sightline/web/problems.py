"""What goes wrong, as JSON: `{error, expected, got, try}` and the right status, whatever it was."""

from __future__ import annotations

import json
import logging
import math
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException

from sightline.errors import MissingExtraError, SightFileError, SightlineError, TooLargeError
from sightline.explore.run import NotInRun

log = logging.getLogger("sightline.web")
# What Sightline's own errors are in HTTP; all others are 422.
STATUS = {NotInRun: 404, TooLargeError: 413, MissingExtraError: 501, SightFileError: 500}


class Answer(JSONResponse):
    """An answer that is JSON whatever it holds."""

    def render(self, content: Any) -> bytes:
        return to_json(content)


def to_json(content: Any) -> bytes:
    """JSON as every browser reads it: null for NaN and infinities, a question mark for half a character.

    >>> to_json({"weight": float("nan"), "text": "a\\ud800"})
    b'{"weight":null,"text":"a?"}'
    """
    options: dict[str, Any] = {"ensure_ascii": False, "allow_nan": False, "separators": (",", ":")}
    try:
        text = json.dumps(content, **options)
    except ValueError:
        text = json.dumps(_finite(content), **options)
    return text.encode("utf-8", "replace")


def _finite(content: Any) -> Any:
    if isinstance(content, dict):
        return {key: _finite(value) for key, value in content.items()}
    if isinstance(content, list | tuple):
        return [_finite(value) for value in content]
    return None if isinstance(content, float) and not math.isfinite(content) else content


class Problem(Exception):
    """An answer that is not the one that was hoped for.

    >>> Problem(404, "no such run", expected="one of a, b", got="c", hint="GET /api/runs").body["try"]
    'GET /api/runs'
    """

    def __init__(
        self, status: int, error: str, *, expected: object, got: object, hint: str, retry_after: int | None = None
    ) -> None:
        super().__init__(error)
        self.status = status
        self.body = {"error": error, "expected": str(expected), "got": str(got), "try": hint}
        self.headers = {} if retry_after is None else {"Retry-After": str(retry_after)}

    def response(self) -> Answer:
        return Answer(self.body, self.status, {**self.headers, "Cache-Control": "no-store"})


def from_error(error: SightlineError) -> Problem:
    """One of Sightline's own errors, whose text has the same four parts.

    >>> from sightline.errors import InputError
    >>> from_error(InputError("no", expected="a", got="b", hint="c")).body
    {'error': 'no', 'expected': 'a', 'got': 'b', 'try': 'c'}
    """
    first, *rest = str(error).splitlines() or [type(error).__name__]
    parts = {"expected": "", "got": "", "try": ""}
    for line in rest:
        name, _, value = line.strip().partition(": ")
        if name in parts:
            parts[name] = value
    status = next((status for kind, status in STATUS.items() if isinstance(error, kind)), 422)
    return Problem(status, first, expected=parts["expected"], got=parts["got"], hint=parts["try"])


def install(app: FastAPI) -> None:
    """Give an application these answers for everything that can go wrong in it."""

    @app.exception_handler(Problem)
    async def problem(request: Request, error: Problem) -> Answer:
        return error.response()

    @app.exception_handler(SightlineError)
    async def ours(request: Request, error: SightlineError) -> Answer:
        return from_error(error).response()

    @app.exception_handler(RequestValidationError)
    async def invalid(request: Request, error: RequestValidationError) -> Answer:
        return _invalid(error.errors()).response()

    @app.exception_handler(HTTPException)
    async def http(request: Request, error: HTTPException) -> Answer:
        what = "there is nothing here" if error.status_code == 404 else str(error.detail)
        return Problem(
            error.status_code,
            what,
            expected="one of the paths in /api/docs",
            got=f"{request.method} {request.url.path}"[:200],
            hint="GET /api/docs",
        ).response()

    @app.exception_handler(Exception)
    async def unexpected(request: Request, error: Exception) -> Answer:
        log.error("%s %s", request.method, request.url.path, exc_info=error)
        return Problem(
            500,
            "this is a mistake of the server's",
            expected="an answer",
            got=type(error).__name__,
            hint="the server's own output says more; the next request is not affected",
        ).response()


def _invalid(errors: Any) -> Problem:
    first = errors[0] if errors else {}
    where = ".".join(str(part) for part in first.get("loc", ()) if part not in ("path", "query", "body"))[:80]
    return Problem(
        422,
        f"{where or 'the request'} cannot be understood",
        expected=str(first.get("msg", "another value"))[:200],
        got=repr(first.get("input"))[:200],
        hint="GET /api/docs",
    )
