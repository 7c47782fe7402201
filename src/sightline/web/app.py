"""The application: API, page and documentation behind one guard."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from fastapi import FastAPI, Request
from fastapi.responses import Response

from sightline.explore.page import STATIC
from sightline.web import problems
from sightline.web.guard import Guard
from sightline.web.routes import routes
from sightline.web.service import Service

TYPES = {
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".css": "text/css; charset=utf-8",
}
TYPES |= {".svg": "image/svg+xml", ".json": "application/json"}
NOT_BUILT = """<!doctype html><html lang="en"><meta charset="utf-8"><title>Sightline</title>
<body><h1>The page is not built</h1><p>In the repository: <code>cd web && npm ci && npm run build</code>.
The API works: <a href="/api/runs">/api/runs</a>.</p></body></html>"""


def application(service: Service, host: str = "127.0.0.1", static: Path = STATIC) -> Guard:
    """The whole explorer as one ASGI application."""

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        yield
        service.close()

    app = FastAPI(
        title="Sightline explorer",
        description="What a model attended to: runs, layers, tiles, rows, portraits.",
        docs_url=None,
        redoc_url=None,
        openapi_url="/api/openapi.json",
        lifespan=lifespan,
    )
    problems.install(app)
    app.include_router(routes(service))
    _pages(app, static)
    return Guard(app, host)


def _pages(app: FastAPI, static: Path) -> None:
    """The built page: exactly the files of one folder, read once, so that no path leads anywhere else."""
    files = {path.name: path.read_bytes() for path in sorted(static.glob("*")) if path.suffix in TYPES}

    def page(name: str) -> Response:
        body = files.get(name, NOT_BUILT.encode())
        return Response(body, media_type=TYPES[Path(name).suffix], headers={"Cache-Control": "no-cache"})

    @app.get("/", include_in_schema=False)
    async def index() -> Response:
        return page("index.html")

    @app.get("/api/docs", include_in_schema=False)
    async def docs() -> Response:
        return page("docs.html")

    @app.get("/static/{name}", include_in_schema=False)
    async def asset(request: Request, name: str) -> Response:
        if name not in files:
            raise problems.Problem(404, "there is no such file", expected="a file of the page", got=name[:80], hint="/")
        return page(name)

    @app.get("/favicon.ico", include_in_schema=False)
    async def icon() -> Response:
        return page("icon.svg") if "icon.svg" in files else Response(status_code=204)
