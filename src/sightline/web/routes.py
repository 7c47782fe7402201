"""The HTTP API: what the page, or anyone else, may ask. Everything is bounded, and every error has the same form."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Annotated, Any

import numpy as np
from fastapi import APIRouter, Query, Request
from fastapi.responses import Response, StreamingResponse
from pydantic import BaseModel, ConfigDict, Field

from sightline.explore import changes, image_runs, readings
from sightline.explore.model_runs import RunRequest
from sightline.explore.run import Run
from sightline.web import shapes
from sightline.web.answers import binary, finished, unless_over
from sightline.web.asked_routes import add_asked
from sightline.web.parse import numbers, span
from sightline.web.problems import Answer, Problem, to_json
from sightline.web.service import Service
from sightline.web.why_routes import add_why

TEXT_BYTES = 1_000_000
TOKENS_A_PAGE = 16_384
MOST_QUERIES = 64
# Seconds without an event before a line says that the connection is still there.
SILENCE = 15.0
# Each event is an order; FastAPI has no other word for it.
EVENTS = {"content": {"text/event-stream": {"schema": {"$ref": "#/components/schemas/Order"}}}}


class NewRun(BaseModel):
    """A text to run a model on."""

    model_config = ConfigDict(extra="forbid")

    text: str = Field(min_length=1, description="at most 1 MB of UTF-8")
    model: str = Field(min_length=1, max_length=100, description="one of the models in /api/limits")
    layers: str | None = Field(None, max_length=200, description="which layers to watch, e.g. 0-3,5; all if left out")
    generate: int = Field(0, ge=0, le=512, description="tokens to generate after the text (causal models)")
    edits: list[str] = Field([], max_length=32, description="edits of its attention, e.g. ablate:23.3, cut:23.3:q13:k9")
    image: str = Field(
        "", max_length=4 * image_runs.BYTES // 3 + 4, description="a PNG or JPEG in base64: then `text` names it"
    )
    begun: list[int] = Field([], max_length=512, description="ids of the first of them, e.g. up to an alternative")


def routes(service: Service) -> APIRouter:
    """All routes of the API, on one service.

    They say what they answer in `shapes`, for whoever reads the description; what they answer is JSON already, which
    FastAPI sends as it is.
    """
    api = APIRouter(prefix="/api")

    def found(run: str) -> Run:
        return service.run(run)

    async def wait_for(request: Request, work: Awaitable[Any]) -> Any:
        return await unless_over(service, request, work)

    @api.get("/limits", tags=["server"], response_model=shapes.Limits)
    async def limits() -> Answer:
        """What the server allows, and the models it can run."""
        return Answer(
            {
                "text_bytes": TEXT_BYTES,
                "image_bytes": image_runs.BYTES,
                "image_pixels": image_runs.PIXELS,
                "runs": service.library.limit,
                "queued": service.jobs.limit,
                "tokens_a_page": TOKENS_A_PAGE,
                "waiting_tiles": service.flights.limit,
                "tile": 256,
                "models": service.listed_models(),
            }
        )

    @api.get("/runs", tags=["runs"], response_model=shapes.Runs)
    async def runs() -> Answer:
        """Every run: made here or saved, the orders of runs that wait or run, and those that made room for others."""
        jobs = [job for job in service.jobs.by_id.values() if job.makes_run and not job.over]
        waiting = [job.about(service.jobs.position(job)) for job in jobs]
        body = {"runs": service.library.listed(), "orders": waiting, "closed": service.library.closed()}
        return Answer(body, headers={"Cache-Control": "no-store"})

    @api.post("/runs", status_code=202, tags=["runs"], response_model=shapes.Ordered)
    async def create(new: NewRun) -> Answer:
        """Run a model on a text, or on a picture. Answers at once with the run's id and its place in the queue."""
        size = len(new.text.encode("utf-8", "surrogatepass"))
        if size > TEXT_BYTES:
            raise Problem(
                413,
                "this text is too long",
                expected=f"at most {TEXT_BYTES:,} bytes",
                got=f"{size:,} bytes",
                hint="a part of it",
            )
        for edit in new.edits:
            changes.read(edit)  # says what it cannot be
        image = await asyncio.to_thread(image_runs.received, new.image) if new.image else b""
        options = (new.layers, new.generate, tuple(new.begun), tuple(new.edits), image)
        job = service.order(RunRequest(new.text, new.model, *options))
        return Answer({"id": job.id, "position": service.jobs.position(job)}, 202)

    @api.get("/runs/{run}", tags=["runs"], response_model=shapes.Run | shapes.Order)
    async def about(run: str) -> Answer:
        """A run: its model, text and layers; or where its order stands."""
        if run not in service.library and (job := service.jobs.by_id.get(run)) is not None:
            return Answer(job.about(service.jobs.position(job)), headers={"Cache-Control": "no-store"})
        body = {"state": "done", **await asyncio.to_thread(lambda: readings.about(service.run(run), service.models))}
        return Answer(body, headers={"Cache-Control": "no-store"})

    @api.delete("/runs/{run}", status_code=204, tags=["runs"])
    async def close(run: str) -> Response:
        """Close a run, or take its order back."""
        service.close_run(run)
        return Response(status_code=204)

    @api.post("/runs/{run}/reopen", status_code=204, tags=["runs"])
    async def reopen(run: str) -> Response:
        """Open a run again that was closed a moment ago."""
        await asyncio.to_thread(service.library.reopen, run)
        return Response(status_code=204)

    @api.get("/runs/{run}/text", tags=["runs"], response_model=shapes.Text)
    async def text(run: str) -> Answer:
        """The whole text of a run."""
        whole = await asyncio.to_thread(lambda: found(run).whole_text)
        return Answer({"text": whole}, headers={"Cache-Control": "no-store"})

    @api.post("/runs/{run}/look", status_code=204, tags=["runs"])
    async def look(run: str, by: Annotated[str, Query(max_length=64)] = "") -> Response:
        """Say that someone looks at a run, and no more at another: for a minute and a half it makes room for none."""
        await asyncio.to_thread(service.library.look, run, by)
        return Response(status_code=204)

    @api.get("/runs/{run}/events", tags=["runs"], response_class=StreamingResponse, responses={200: EVENTS})
    async def events(run: str) -> StreamingResponse:
        """How an order goes, as server-sent events, until it is over."""
        return StreamingResponse(
            stream(service.events(run)), media_type="text/event-stream", headers={"Cache-Control": "no-store"}
        )

    @api.get("/runs/{run}/tokens", tags=["numbers"], response_model=shapes.Tokens)
    async def tokens(
        request: Request,
        run: str,
        start: Annotated[int, Query(alias="from", ge=0)] = 0,
        to: Annotated[int | None, Query(ge=0)] = None,
        of: Annotated[str, Query(pattern="^(text|memory)$")] = "text",
    ) -> Response:
        """The tokens as text, and what kind each is: 1 special, 2 bytes as hex, 4 stuck to the one before."""
        it = found(run)
        labels = it.labels if of == "text" else it.memory_labels
        if labels is None:
            raise Problem(404, "this run has no memory", expected="of=text", got="of=memory", hint="of=text")
        stop = min(len(labels.texts), start + TOKENS_A_PAGE) if to is None else to
        if not start <= stop <= len(labels.texts) or stop - start > TOKENS_A_PAGE:
            raise Problem(
                422,
                "these are not tokens of the run",
                expected=f"at most {TOKENS_A_PAGE} inside 0 to {len(labels.texts)}",
                got=f"{start} to {stop}",
                hint="from=0",
            )
        body = {"from": start, "to": stop, "texts": labels.texts[start:stop], "kinds": labels.kinds[start:stop]}
        return finished(request, it, Answer(body))

    @api.get("/runs/{run}/portraits", tags=["numbers"], response_model=shapes.Portraits)
    async def portraits(request: Request, run: str) -> Response:
        """What every head is like, which heads are alike, and the head to look at first."""
        it = found(run)
        body, complete = await wait_for(
            request, service.slow((it.key, "portraits"), lambda: service.atlas.portraits(it))
        )
        return finished(request, it, Answer(body), complete)

    @api.get("/runs/{run}/thumbs", tags=["numbers"])
    async def thumbs(request: Request, run: str) -> Response:
        """Every head as 64 x 64 bytes, layer by layer: 0 masked, 1 zero, 2 to 255 logarithmic from 1e-7 to 1."""
        it = found(run)
        body, complete = await wait_for(request, service.slow((it.key, "thumbs"), lambda: service.atlas.thumbs(it)))
        return finished(request, it, binary(body), complete)

    @api.get("/runs/{run}/tiles/{layer}/{head}/{lq}/{lk}/{y}/{x}", tags=["numbers"])
    async def tile(
        request: Request, run: str, layer: int, head: int, lq: int, lk: int, y: int, x: int, pool: str = "mean"
    ) -> Response:
        """256 x 256 little-endian float32: bins of 2^lq queries and 2^lk keys. NaN where no cell is visible."""
        it = found(run)
        body, exact = await wait_for(request, service.tile(it, layer, head, (lq, lk), y, x, pool))
        if body is None:
            return finished(request, it, Response(status_code=204))
        return finished(request, it, binary(body), exact)

    @api.get("/runs/{run}/rows/{layer}/{head}", tags=["numbers"])
    async def rows(request: Request, run: str, layer: int, head: int, q: str) -> Response:
        """What queries attend to, added up: a float32 for every key, NaN where none of them may look."""
        it, queries = found(run), numbers("q", q, MOST_QUERIES)
        make = lambda: it.view(layer, head).row(queries).tobytes()  # noqa: E731
        return finished(
            request, it, binary(await wait_for(request, service.quick((it.key, "row", layer, head, q), make)))
        )

    @api.get("/runs/{run}/columns/{layer}/{head}", tags=["numbers"])
    async def columns(request: Request, run: str, layer: int, head: int, k: str) -> Response:
        """Who attends to keys, added up: a float32 for every query, NaN where it may look at none of them."""
        it, keys = found(run), numbers("k", k, MOST_QUERIES)
        make = lambda: it.view(layer, head).column(keys).tobytes()  # noqa: E731
        key = (it.key, "column", layer, head, k)
        return finished(request, it, binary(await wait_for(request, service.quick(key, make))))

    @api.get("/runs/{run}/tracks/{layer}/{head}", tags=["numbers"])
    async def tracks(request: Request, run: str, layer: int, head: int) -> Response:
        """The entropy of every query, then what every key received: float32."""
        it = found(run)
        make = lambda: it.view(layer, head).tracks()  # noqa: E731
        both = await wait_for(request, service.quick((it.key, "tracks", layer, head), make))
        if both is None:
            service.open_head(it, layer, head)
            # No error: it comes by itself, once the whole map has been walked over.
            return Response(status_code=202, headers={"Retry-After": "2", "Cache-Control": "no-store"})
        return finished(request, it, binary(np.concatenate(both).tobytes()))

    @api.get(
        "/runs/{run}/peek/{layer}/{head}",
        tags=["numbers"],
        response_model=shapes.Cell | shapes.Patch | shapes.Link,
    )
    async def peek(
        request: Request, run: str, layer: int, head: int, rows: str | None = None, cols: str | None = None
    ) -> Response:
        """One cell or a rectangle: weight, score, rank, entropy; or mean, maximum and where. Without both: the link."""
        it = found(run)
        if rows is None and cols is None:
            make: Callable[[], Any] = lambda: service.atlas.link(it, layer, head)  # noqa: E731
        elif rows is None or cols is None:
            raise Problem(422, "rows and cols belong together", expected="both", got="one", hint="rows=9&cols=5")
        else:
            band, columns = span("rows", rows), span("cols", cols)
            view = it.view(layer, head)
            single = band.stop - band.start == 1 == columns.stop - columns.start
            make = (lambda: view.cell(band.start, columns.start)) if single else (lambda: view.patch(band, columns))
        key = (it.key, "peek", layer, head, rows, cols)
        return finished(request, it, Answer(await wait_for(request, service.quick(key, make))))

    @api.get("/runs/{run}/rollout", tags=["numbers"])
    async def rollout(request: Request, run: str, q: str) -> Response:
        """Attention rollout through all layers: how much every token fed these, a float32 each. A heuristic."""
        it, queries = found(run), numbers("q", q, 8)
        make = lambda: service.atlas.rollout(it, queries).tobytes()  # noqa: E731
        return finished(request, it, binary(await wait_for(request, service.slow((it.key, "rollout", q), make))))

    @api.get("/runs/{run}/steps/{layer}/{head}", tags=["numbers"], response_model=shapes.Steps)
    async def steps(
        request: Request,
        run: str,
        layer: int,
        head: int,
        q: Annotated[int, Query(ge=0)],
        top: Annotated[int, Query(ge=1, le=512)] = 16,
        k: Annotated[int | None, Query(ge=0)] = None,
    ) -> Response:
        """How the output of one query comes about, key by key, with the real numbers."""
        it = found(run)
        make = lambda: service.atlas.steps(it, layer, head, q, top, k)  # noqa: E731
        body = await wait_for(request, service.slow((it.key, "steps", layer, head, q, top, k), make))
        return finished(request, it, Answer(body))

    @api.get("/runs/{run}/export", tags=["numbers"])
    async def export(
        request: Request,
        run: str,
        format: Annotated[str, Query(pattern="^(csv|npz|html)$")],
        layer: int = 0,
        head: int = 0,
        rows: str | None = None,
        cols: str | None = None,
    ) -> Response:
        """The exact numbers of a rectangle as CSV or npz, or the run as one page that needs no server."""
        it = found(run)
        band = None if rows is None else span("rows", rows)
        across = None if cols is None else span("cols", cols)
        make = lambda: service.atlas.export(it, format, layer, head, band, across)  # noqa: E731
        name, media, body = await wait_for(request, service.slow((it.key, format, layer, head, rows, cols), make))
        headers = {"Content-Disposition": f'attachment; filename="{name}"', "Cache-Control": "no-store"}
        return Response(body, media_type=media, headers=headers)

    add_why(api, service)
    add_asked(api, service)
    return api


def event(data: dict[str, Any]) -> str:
    """One server-sent event."""
    return f"data: {to_json(data).decode()}\n\n"


async def stream(items: AsyncIterator[dict[str, Any]]) -> AsyncIterator[str]:
    """Server-sent events of items, with a line now and then so that a silent connection is noticed."""
    item = asyncio.ensure_future(anext(items, None))
    try:
        while True:
            await asyncio.wait({item}, timeout=SILENCE)
            if not item.done():
                yield ": still here\n\n"
            elif (found := item.result()) is None:
                return
            else:
                yield event(found)
                item = asyncio.ensure_future(anext(items, None))
    finally:
        item.cancel()
