"""The routes that ask a run's model: what comes next, and what is on the screen as a program."""

from __future__ import annotations

import re
from typing import Annotated, Any

from fastapi import APIRouter, Query, Request
from fastapi.responses import Response

from sightline.explore import aims, effects, outcome, programs, readings
from sightline.explore.aims import Aim
from sightline.explore.once_more import attention_layers
from sightline.explore.run import Run
from sightline.explore.screen import PARTS, Beside, Model, Screen, Walk
from sightline.web import why_shapes as shapes
from sightline.web.answers import finished, unless_over
from sightline.web.parse import numbers, span
from sightline.web.problems import Answer, Problem
from sightline.web.service import Service

MOST_QUERIES = 64
Word = Annotated[str, Query(max_length=aims.LONGEST)]
Place = Annotated[int | None, Query(ge=0)]
Places = Annotated[str | None, Query(max_length=400)]
_TAKEN = re.compile(r"(\d{1,4})\.(\d{1,9})")
_BESIDE = re.compile(r"([\w-]{1,120}),(\d{1,4}),(\d{1,4})")


def add_asked(api: APIRouter, service: Service) -> None:
    """Add these routes to the others."""

    def with_model(it: Run) -> tuple[Any, Any]:
        if service.models is None or it.model not in service.models:
            raise Problem(
                422,
                "the model of this run is not at hand",
                expected="a model of this server",
                got=str(it.model),
                hint="limits",
            )
        return service.models.get(str(it.model))

    async def row_after(request: Request, it: Run, after: int) -> Any:
        make = lambda: (outcome.row_of(it, with_model(it)[0], after), True)  # noqa: E731
        return (await unless_over(service, request, service.slow((it.key, "logits", after), make)))[0]

    @api.get("/runs/{run}/next", tags=["why"], response_model=shapes.Next)
    async def following(
        request: Request,
        run: str,
        token: Annotated[str, Query(max_length=aims.LONGEST)] = "",
        than: Annotated[str, Query(max_length=aims.LONGEST)] = "",
        after: Annotated[int | None, Query(ge=0)] = None,
        n: Annotated[int, Query(ge=1, le=20)] = 5,
    ) -> Response:
        """What the model would write next, its edits and all: probabilities, and the difference of two logits."""
        it = service.run(run)
        aim = Aim(token, than, after)
        body = outcome.kept(it, n, aim)
        if body is None:
            ids = outcome.ids_of(it)
            row = await row_after(request, it, aims.place(aim, len(ids)))
            make = lambda: outcome.outcome(it, with_model(it)[1], row, aim, n)  # noqa: E731
            body = await unless_over(service, request, service.slow((it.key, "next", aim, n), make))
        return finished(request, it, Answer(body))

    async def target_of(request: Request, it: Run, aim: Aim, wanted: bool) -> tuple[int, int | None, int] | None:
        """The ids of what is asked about; a reading knows its own."""
        known = (it.meta.get("aim") or {}).get("ids") if it.base is not None else None
        if known is None and (found := effects.find(it, aim)) is not None:
            known = found["ids"]
        if known is None and (wanted or aim != Aim()):
            ids = outcome.ids_of(it)
            row = await row_after(request, it, aims.place(aim, len(ids)))
            find = lambda: aims.aimed(aim, with_model(it)[1], ids, row)  # noqa: E731
            target = await unless_over(service, request, service.slow((it.key, "aim", aim), find))
            known = [target.token, target.than, target.after]
        return None if known is None else tuple(known)

    async def model_of(request: Request, it: Run) -> Model:
        """How a program comes by the model of a run."""
        models = service.models
        at_hand = models is not None and it.model in models and not readings.why_not(it, models)
        if models is None or not at_hand:
            return Model(at_hand=False)

        def make() -> Model:
            model, tokenizer = with_model(it)
            spelled = None if models.held else outcome.spelled(it, tokenizer)
            some = len(it.layers) < len(attention_layers(model))
            return Model(True, models.held, spelled, some, models.device)

        return await unless_over(service, request, service.slow((it.key, "spelled"), make))

    @api.get("/runs/{run}/python/{layer}/{head}", tags=["why"], response_model=shapes.Python)
    async def python(
        request: Request,
        run: str,
        layer: int,
        head: int,
        q: Places = None,
        k: Place = None,
        rows: str | None = None,
        cols: str | None = None,
        pool: Annotated[str, Query(pattern="^(mean|max)$")] = "mean",
        token: Word = "",
        than: Word = "",
        after: Place = None,
        also: Annotated[str, Query(max_length=100)] = "",
        origin: Annotated[int | None, Query(alias="from", ge=0)] = None,
        taken: Annotated[str, Query(max_length=4000)] = "",
        beside: Annotated[str | None, Query(max_length=140)] = None,
        beside_q: Places = None,
        beside_k: Place = None,
        difference: bool = False,
    ) -> Response:
        """What is on the screen as a program: text, edits, target, head, and the cell, rows, column or rectangle.

        `also` names what else is shown, with commas: row, column, received, rollout, link, path (`from` a token, by the
        sources that were `taken`, each as layer.key), effects, heads, written, likely (the tokens of the target).
        `beside` is the second of two maps, as run,layer,head.
        """
        it, parts, aim = service.run(run), _parts(also), Aim(token, than, after)
        wanted = "effects" in parts or "likely" in parts

        def queries(text: str | None) -> list[int]:
            return [] if text is None else numbers("q", text, MOST_QUERIES)

        shown = Screen(
            layer,
            head,
            queries(q),
            k,
            rows=None if rows is None else span("rows", rows),
            columns=None if cols is None else span("cols", cols),
            pool=pool,
            parts=parts,
            walk=None if origin is None else Walk(origin, _taken(taken)),
            target=await target_of(request, it, aim, wanted),
            model=await model_of(request, it),
        )
        second = None
        if beside is not None:
            other, at = _beside(service, beside)
            model = await model_of(request, other)
            asked = shown.target is not None and model.at_hand
            target = await target_of(request, other, aim, wanted) if asked else None
            likely = [part for part in parts if part == "likely"]
            its = Screen(*at, queries(beside_q), beside_k, parts=likely, target=target, model=model)
            second = Beside(other, its, difference)
        return finished(request, it, Answer({"python": programs.python(it, shown, second)}))


def _parts(text: str) -> list[str]:
    parts = [part for part in text.split(",") if part]
    if not set(parts) <= set(PARTS):
        raise Problem(422, "no such parts", expected=", ".join(PARTS), got=text[:40], hint="also=row")
    return parts


def _taken(text: str) -> dict[int, int]:
    found = [_TAKEN.fullmatch(part) for part in text.split(",") if part]
    if None in found:
        raise Problem(422, "taken cannot be understood", expected="layer.key, …", got=text[:40], hint="taken=3.2")
    return {int(one[1]): int(one[2]) for one in found if one is not None}


def _beside(service: Service, text: str) -> tuple[Run, tuple[int, int]]:
    found = _BESIDE.fullmatch(text)
    if found is None:
        raise Problem(422, "beside cannot be understood", expected="run,layer,head", got=text[:40], hint="beside=a,3,1")
    return service.run(found[1]), (int(found[2]), int(found[3]))
