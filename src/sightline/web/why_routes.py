"""The routes behind "why": one link in every head, the path of a token, readings, edits, bookmarks, images."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Query, Request
from fastapi.responses import Response
from pydantic import BaseModel, ConfigDict, Field

from sightline.explore import aims, bookmarks, effects, every_head, images, places
from sightline.explore.aims import Aim
from sightline.explore.effects import EffectsRequest
from sightline.explore.links import Special
from sightline.explore.readings import ReadingRequest
from sightline.web import why_shapes as shapes
from sightline.web.answers import finished, unless_over
from sightline.web.problems import Answer, Problem
from sightline.web.service import Service
from sightline.web.shapes import Ordered

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


class NewReading(BaseModel):
    """What to read a run for."""

    model_config = ConfigDict(extra="forbid")

    token: str = Field("", max_length=aims.LONGEST, description="a token, the likeliest if empty")
    than: str = Field("", max_length=aims.LONGEST, description="another one instead of it")
    after: int | None = Field(None, ge=0, description="the position it comes after; the last if left out")


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
    ) -> Response:
        """One cell in every layer and head; without k the strongest keys of a query. `layer`: where it was pinned."""
        it = service.run(run)

        def make() -> dict:
            return every_head.strongest(it, q, layer) if k is None else every_head.grid(it, q, k, layer)

        key = (it.key, "grid", q, k, layer)
        return finished(request, it, Answer(await unless_over(service, request, service.slow(key, make))))

    @api.get("/runs/{run}/path", tags=["why"], response_model=shapes.Path)
    async def path(
        request: Request,
        run: str,
        q: Annotated[int, Query(ge=0)],
        start: Annotated[int | None, Query(ge=0)] = None,
        layer: Annotated[int, Query(ge=0)] = 0,
        least: Annotated[float, Query(gt=0, le=1)] = every_head.LEAST,
    ) -> Response:
        """The strongest sources of a token, from one layer down, followed where a link is strong enough.

        Enough is at least this weight; of another reading this share of the largest in those rows.
        """
        it = service.run(run)
        key = (it.key, "path", q, start, layer, least)
        work = service.slow(key, lambda: every_head.follow(it, q, start, least, layer))
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
            found = places.strong_links(view, Special.of(it, about))
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
        if job is None or job.over or not job.request.generate:
            raise Problem(
                404, "nothing is being written here", expected="a run that is made", got=run[:40], hint="runs"
            )
        job.pace.set(new.do)
        return Response(status_code=204)

    @api.get("/runs/{run}/bookmarks", tags=["why"], response_model=shapes.Marks)
    async def marks(request: Request, run: str) -> Response:
        """The bookmarks of a run."""
        it = service.run(run)
        work = service.quick((it.key, "bookmarks"), lambda: bookmarks.read(it))
        found = await unless_over(service, request, work)
        return Answer({"marks": found, "saved": it.folder is not None}, headers=NOT_KEPT)

    @api.put("/runs/{run}/bookmarks", status_code=204, tags=["why"])
    async def mark(run: str, new: NewMarks) -> Response:
        """Put these bookmarks in the place of those before; those of a saved run lie in its folder."""
        it = service.run(run)
        made = [one.model_dump() for one in new.marks]
        # No two are joined, even equal ones; and whoever leaves has them written all the same.
        await service.quick((it.key, "bookmarks", object()), lambda: bookmarks.write(it, made))
        return Response(status_code=204)

    @api.get("/runs/{run}/image", tags=["why"])
    async def image(request: Request, run: str) -> Response:
        """The picture that a vision model was given, PNG or JPEG."""
        it = service.run(run)
        content, kind = await unless_over(service, request, service.quick((it.key, "image"), lambda: images.read(it)))
        return Response(content, media_type=kind, headers={"X-Content-Type-Options": "nosniff", **NOT_KEPT})

    @api.post("/runs/{run}/readings", status_code=202, tags=["why"], response_model=Ordered)
    async def read(run: str, new: NewReading) -> Response:
        """Read a run once more, with gradients of a token's logit: what was carried, and what mattered.

        It waits as a run does, and has events; then `{run}_{id}_norms` and `{run}_{id}_influence` are runs too.
        """
        it = service.run(run)
        request = ReadingRequest(it if it.base is None else it.base, Aim(new.token, new.than, new.after))
        job = service.order_reading(request)
        return Answer({"id": job.id, "position": service.jobs.position(job)}, 202)

    @api.post("/runs/{run}/effects", status_code=202, tags=["why"], response_model=Ordered)
    async def take_out(run: str, new: NewReading) -> Response:
        """Take every head out once, and see what a token's logit loses by that: `sl.effects`.

        It waits as a run does, has events, and can be taken back; then GET has the table.
        """
        it = service.run(run)
        request = EffectsRequest(it if it.base is None else it.base, Aim(new.token, new.than, new.after))
        job = service.order_reading(request)
        return Answer({"id": job.id, "position": service.jobs.position(job)}, 202)

    @api.get("/runs/{run}/effects", tags=["why"], response_model=shapes.Effects)
    async def taken_out(
        run: str,
        token: Annotated[str, Query(max_length=aims.LONGEST)] = "",
        than: Annotated[str, Query(max_length=aims.LONGEST)] = "",
        after: Annotated[int | None, Query(ge=0)] = None,
    ) -> Response:
        """The exact effects of all heads on a token's logit, and the first-order figures of the same."""
        it = service.run(run)
        request = EffectsRequest(it if it.base is None else it.base, Aim(token, than, after))
        found = effects.find(request.run, request.aim)
        if found is None and (job := service.jobs.by_id.get(request.id)) is not None and not job.over:
            raise service.unfinished(job)
        if found is None:
            raise Problem(
                404,
                "the effects of these heads are not there",
                expected="an order that is done",
                got="none, or none any more: a few are kept for each run",
                hint=f"POST /api/runs/{run[:40]}/effects",
            )
        return Answer(found, headers=NOT_KEPT)
