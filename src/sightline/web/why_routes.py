"""The routes behind "why": one link in every head, the path of a token, readings, edits, bookmarks, images."""

from __future__ import annotations

import asyncio
from typing import Annotated, Any

from fastapi import APIRouter, Query, Request
from fastapi.responses import Response
from pydantic import BaseModel, ConfigDict, Field

from sightline.explore import bookmarks, every_head, places
from sightline.explore.links import Special
from sightline.web import why_shapes as shapes
from sightline.web.answers import finished, unless_over
from sightline.web.problems import Answer, Problem
from sightline.web.service import Service

OF = Query(pattern="^(weights|norms|influence|pull)$", description="which reading: weights, norms, influence or pull")

NOT_KEPT = {"Cache-Control": "no-store"}


class NewMark(BaseModel):
    """A bookmark."""

    model_config = ConfigDict(extra="forbid")

    layer: int = Field(ge=0, description="as the model counts")
    head: int = Field(ge=0)
    q: int | None = Field(None, ge=0, description="the pinned query")
    k: int | None = Field(None, ge=0, description="the pinned key")
    text: str = Field("", max_length=bookmarks.LONGEST, description="a sentence")


class NewMarks(BaseModel):
    """All bookmarks of a run."""

    model_config = ConfigDict(extra="forbid")

    marks: list[NewMark] = Field(max_length=bookmarks.MOST)


class NewPace(BaseModel):
    """How to go on writing."""

    model_config = ConfigDict(extra="forbid")

    do: str = Field(pattern="^(pause|step|go|stop)$", description="pause, step (one more token), go, or stop here")


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

    @api.get("/runs/{run}/links/{layer}/{head}", tags=["why"], response_model=shapes.Links)
    async def links(
        request: Request,
        run: str,
        layer: int,
        head: int,
        q: Annotated[int | None, Query(ge=0)] = None,
        k: Annotated[int | None, Query(ge=0)] = None,
    ) -> Response:
        """The strong links of a head, the strongest first; with q and k those like that one, the most alike first."""
        it = service.run(run)
        about, view = it.layer(layer), it.view(layer, head)

        def make() -> dict[str, Any]:
            special = Special(it.special_queries(about), it.special_keys(about))
            found = places.strong_links(view, special)
            if q is not None and k is not None:
                found = places.like(found, q, k, it.labels.texts, it.key_labels(about).texts)
            return {"links": [list(link) for link in found]}

        key = (it.key, "links", layer, head, q, k)
        return finished(request, it, Answer(await unless_over(service, request, service.slow(key, make))))

    @api.get("/runs/{run}/written", tags=["why"], response_model=shapes.Written)
    async def written(run: str) -> Response:
        """What the model wrote: each token with its probability and four others; as far as it is written."""
        job = service.jobs.by_id.get(run)
        live = job is not None and not job.over
        found = job.pace.written if job is not None and live else None
        if found is None:
            found = service.run(run).meta.get("written")
        if found is None:
            raise Problem(
                404, "nothing was written here", expected="a run with generate", got="a text", hint="generate=8"
            )
        total = job.request.generate if job is not None and live else len(found["tokens"])
        paused = job is not None and live and job.pace.paused
        return Answer({**found, "total": total, "writing": live, "paused": paused}, headers=NOT_KEPT)

    @api.post("/runs/{run}/pace", status_code=204, tags=["why"])
    async def pace(run: str, new: NewPace) -> Response:
        """Hold a text that is being written, let it go on for one token, let it go on, or end it here."""
        job = service.jobs.by_id.get(run)
        if job is None or job.over:
            raise Problem(
                404, "nothing is being written here", expected="a run that is made", got=run[:40], hint="runs"
            )
        job.pace.set(new.do)
        return Response(status_code=204)

    @api.get("/runs/{run}/bookmarks", tags=["why"], response_model=shapes.Marks)
    async def marks(run: str) -> Response:
        """The bookmarks of a run."""
        it = service.run(run)
        found = await asyncio.to_thread(bookmarks.read, it)
        return Answer({"marks": found, "saved": it.folder is not None}, headers=NOT_KEPT)

    @api.put("/runs/{run}/bookmarks", status_code=204, tags=["why"])
    async def mark(run: str, new: NewMarks) -> Response:
        """Put these bookmarks in the place of those before; those of a saved run lie in its folder."""
        it = service.run(run)
        await asyncio.to_thread(bookmarks.write, it, [one.model_dump() for one in new.marks])
        return Response(status_code=204)
