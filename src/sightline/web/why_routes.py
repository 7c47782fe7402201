"""The routes behind "why": one link in every head, the path of a token, readings, edits, bookmarks, images."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query, Request
from fastapi.responses import Response

from sightline.explore import every_head
from sightline.web import why_shapes as shapes
from sightline.web.answers import finished, unless_over
from sightline.web.problems import Answer
from sightline.web.service import Service

OF = Query(pattern="^(weights|norms|influence|pull)$", description="which reading: weights, norms, influence or pull")


def add_why(api: APIRouter, service: Service) -> None:
    """Add these routes to the others."""

    @api.get("/runs/{run}/grid", tags=["why"], response_model=shapes.Grid | shapes.Strongest)
    async def grid(
        request: Request,
        run: str,
        q: Annotated[int, Query(ge=0)],
        k: Annotated[int | None, Query(ge=0)] = None,
        layer: Annotated[int, Query(ge=0)] = 0,
        of: Annotated[str, OF] = "weights",
    ) -> Response:
        """One cell in every layer and head; without k the strongest keys of a query. `layer`: where it was pinned."""
        it = service.run(run)

        def make() -> dict:
            return every_head.strongest(it, q, layer, of) if k is None else every_head.grid(it, q, k, layer, of)

        key = (it.key, "grid", q, k, layer, of)
        return finished(request, it, Answer(await unless_over(service, request, service.slow(key, make))))

    @api.get("/runs/{run}/path", tags=["why"], response_model=shapes.Path)
    async def path(
        request: Request,
        run: str,
        q: Annotated[int, Query(ge=0)],
        start: Annotated[int | None, Query(ge=0)] = None,
        layer: Annotated[int, Query(ge=0)] = 0,
        of: Annotated[str, OF] = "weights",
        least: Annotated[float, Query(gt=0, le=1)] = every_head.LEAST,
    ) -> Response:
        """The strongest sources of a token, from one layer down, followed where a link has at least this weight."""
        it = service.run(run)
        key = (it.key, "path", q, start, layer, of, least)
        work = service.slow(key, lambda: every_head.follow(it, q, start, of, least, layer))
        return finished(request, it, Answer(await unless_over(service, request, work)))
