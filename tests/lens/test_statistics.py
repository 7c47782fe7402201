"""A statistic that nobody has thought of, declared here alone: it works wherever entropy does."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from pydantic import TypeAdapter
from torch import Tensor

import sightline as sl
import sightline.plots
import watch_cases as tiny
from cases import Case
from explore_cases import make_run, sights, words
from lens_cases import gaps, whole_map
from sightline.errors import InputError, InputTypeError, SightFileError
from sightline.explore import measures
from sightline.explore.atlas import Atlas
from sightline.lens import declared, plan
from sightline.lens.requests import names
from sightline.lens.statistics import FUSED, STATISTICS, Cells, Rows, Statistic
from sightline.lens.tiles.accumulators import RowSums
from sightline.lens.tiles.walk import walk
from sightline.watching.record import account
from sightline.watching.record.gather import Gather
from sightline.watching.record.shares import SHARES
from sightline.web.shapes import Cell as CellShape
from sightline.web.shapes import Portraits

NAME = "distance_variance"


def far(cells: Cells) -> Tensor:
    return (cells.shares * cells.distance).sum(-1)


def far_squared(cells: Cells) -> Tensor:
    return (cells.shares * cells.distance**2).sum(-1)


def variance(rows: Rows) -> Tensor:
    return (rows.mean("far_squared") - rows.mean("far") ** 2).clamp_min(0.0)


VARIANCE = Statistic(
    NAME,
    sums={"far": far, "far_squared": far_squared},
    finish=variance,
    by_place=True,
    label="variance of the distance",
    unit="tokens²",
    about="how spread out along the text a row looks",
)


@pytest.fixture(autouse=True)
def declaration() -> Iterator[None]:
    sl.declare(VARIANCE)
    yield
    for name in STATISTICS.keys() - FUSED:
        declared.forget(name)


def truth(weights: Tensor) -> tuple[Tensor, Tensor]:
    """The variance of each row by its definition, and the mean of the squares, which rounding is relative to."""
    weights = weights.double().cpu()
    total = weights.sum(-1, keepdim=True)
    p = torch.where(total > 0, weights / total, 0.0)
    gap = gaps(*weights.shape[-2:]).double()
    mean = (p * gap).sum(-1, keepdim=True)
    return (p * (gap - mean) ** 2).sum(-1), (p * gap**2).sum(-1)


def holds(found: Tensor, weights: Tensor, within: float, telling: bool = True) -> None:
    exact, squares = truth(weights)
    assert found.shape == exact.shape
    assert torch.isfinite(found).all()
    assert ((found.cpu().double() - exact).abs() <= within * squares.clamp_min(1.0)).all()
    assert not telling or exact.max() > 1


BESIDE: tuple[Any, ...] = ("received", "entropy", sl.Top(3), sl.Picture(9, 7), sl.Picture(cell=(4, 4), reduce="max"))
LIMIT = {torch.float64: 1e-12, torch.float32: 2e-6, torch.bfloat16: 2e-6}


def padded(n: int, left: int) -> Tensor:
    """The second of two sequences has padding at its left."""
    real = torch.ones(2, n, dtype=torch.bool)
    real[1, :left] = False
    return real


def case(queries: int, keys: int, kind: str, dtype: torch.dtype = torch.float32, **options: Any) -> Case:
    q, k = torch.randn(2, 6, queries, 16), torch.randn(2, 3, keys, 16)  # grouped heads
    masks = {
        "none": None,
        "causal": sl.causal(),
        "window": sl.window(17, 3),
        "left padding": sl.causal() & sl.padding(padded(keys, 5)),
        "blocks": sl.dense(torch.rand(6, queries, keys) < 0.4),
    }
    mask = masks[kind]
    table = None if mask is None else mask.to_dense(queries, keys)
    return Case(q.to(dtype), k.to(dtype), k.to(dtype), {"mask": mask, **options}, table)


KINDS = ("none", "causal", "window", "left padding", "blocks")
LENGTHS = ((1, 1), (3, 7), (37, 53), (53, 37), (301, 417))  # the last one is swept on a CPU


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("queries, keys", LENGTHS)
@pytest.mark.parametrize("dtype", LIMIT, ids=str)
def test_it_is_observed_alone_and_beside_the_others(queries: int, keys: int, kind: str, dtype: torch.dtype) -> None:
    one = case(queries, keys, kind, dtype)
    weights = whole_map(one).weights
    _, alone = sl.observe(one.q, one.k, one.v, stats=NAME, **one.options)
    assert set(alone.kept) == {NAME}
    beside = sl.look(one.q, one.k, stats=(NAME, *BESIDE), **one.options)
    plain = sl.look(one.q, one.k, stats=BESIDE, **one.options)
    for sight in (alone, beside):
        holds(sight.statistic(NAME), weights, LIMIT[dtype], telling=keys > 1)
        assert torch.equal(getattr(sight, NAME), sight.statistic(NAME))
    for request, value in plain.kept.items():  # nothing else is another number for it
        for was, now in zip(*(x if isinstance(x, tuple) else (x,) for x in (value, beside.kept[request])), strict=True):
            assert torch.equal(was.nan_to_num(nan=7.0), now.nan_to_num(nan=7.0))


@pytest.mark.parametrize("normalizer", ["relu", "sigmoid", "uniform", "sinks"])
@pytest.mark.parametrize("queries, keys", LENGTHS[2:])
def test_rows_that_sum_to_something_else(queries: int, keys: int, normalizer: str) -> None:
    options: dict[str, Any] = {"normalizer": normalizer} if normalizer != "sinks" else {"sinks": torch.randn(6) + 3}
    one = case(queries, keys, "left padding", torch.float64, **options)
    sight = sl.look(one.q, one.k, stats=(NAME, "distance"), **one.options)
    holds(sight.statistic(NAME), whole_map(one).weights, 1e-12)


def test_what_the_fast_pass_does_not_know_goes_to_the_walk_beside_it(monkeypatch: pytest.MonkeyPatch) -> None:
    walks: list[list[str]] = []

    def counting(levels: Any, accumulators: Any, *args: Any, **kwargs: Any) -> None:
        walks.append([type(one).__name__ for one in accumulators])
        walk(levels, accumulators, *args, **kwargs)

    monkeypatch.setattr(plan, "walk", counting)
    one = case(301, 417, "causal")
    sl.look(one.q, one.k, stats=BESIDE, **one.options)
    assert walks == []
    sl.look(one.q, one.k, stats=(NAME, *BESIDE), **one.options)
    assert walks == [["RowSums"]]
    small = case(37, 53, "causal")
    sl.look(small.q, small.k, stats=(NAME, *BESIDE), **small.options)
    assert len(walks) == 2  # one walk for all


def test_kernels_are_asked_for_what_they_know(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a GPU, with a stand-in for its kernels; what they leave out is one walk."""
    asked: list[set[str]] = []
    jobs: list[Any] = []
    by_walk = plan._by_walk

    def kernels(levels: Any, job: Any) -> Any:
        asked.append(set(job.rows))
        return by_walk(levels, job._replace(tops=[]))

    def walking(levels: Any, job: Any) -> Any:
        jobs.append((set(job.rows), list(job.tops), list(job.received), dict(job.grids)))
        return by_walk(levels, job)

    monkeypatch.setattr(plan.gpu_plan, "takes", lambda levels: True)
    monkeypatch.setattr(plan.trial, "passed", lambda call, job, *_: job.rows <= FUSED)
    monkeypatch.setattr(plan.gpu_plan, "run", kernels)
    monkeypatch.setattr(plan, "_by_walk", walking)
    one = case(37, 53, "causal")
    sight = sl.look(one.q, one.k, stats=(NAME, *BESIDE), **one.options)
    assert asked == [{"entropy"}]
    assert jobs == [({NAME}, [sl.Top(3)], [], {})]
    holds(sight.statistic(NAME), whole_map(one).weights, 2e-6)
    sl.look(one.q, one.k, stats=NAME, **one.options)
    assert len(asked) == 1, "there is nothing for them to do"


def test_it_is_prepared_and_computed_when_asked_for() -> None:
    one = case(37, 53, "window")
    prepared, later = (sl.look(one.q, one.k, **one.options) for _ in range(2))
    assert NAME in prepared.prepare(NAME, "received").kept
    assert NAME in repr(prepared)
    assert torch.equal(prepared.statistic(NAME), getattr(later, NAME))
    flat = sl.look(torch.randn(5, 8), torch.randn(7, 8), stats=NAME)
    assert flat.statistic(NAME).shape == (5,)


def test_chunks_of_keys_and_of_rows_are_merged() -> None:
    for normalizer in ("softmax", "relu"):
        one = case(61, 97, "left padding", torch.float64, normalizer=normalizer)
        sight = sl.look(one.q, one.k, **one.options)
        call, merged = sight.call, None
        for columns in (slice(40, 97), slice(0, 11), slice(11, 40)):
            part = RowSums(call, {NAME, "entropy", "max_score"})
            for rows in (slice(31, 61), slice(0, 31)):
                walk(sight._levels, [part], rows, columns)
            if merged is None:
                merged = part
            else:
                merged.join(part, slice(0, 61))
        assert merged is not None
        holds(merged.result()[NAME], whole_map(one).weights, 1e-12)
        torch.testing.assert_close(merged.result()["entropy"], sight.entropy)
        torch.testing.assert_close(merged.result()["max_score"], sight.max_score)


def test_it_is_saved_and_read_also_by_who_does_not_know_it(tmp_path: Path) -> None:
    one = case(37, 53, "causal")
    sight = sl.look(one.q, one.k, stats=(NAME, "received"), **one.options)
    sight.save(tmp_path / "a", keep_qk=False)
    sight.save(tmp_path / "b")
    for loaded in (sl.Sight.load(tmp_path / "a"), copy.deepcopy(sight), pickle.loads(pickle.dumps(sight))):
        assert torch.equal(loaded.statistic(NAME), sight.statistic(NAME))
    declared.forget(NAME)
    assert torch.equal(sl.Sight.load(tmp_path / "a").statistic(NAME), sight.statistic(NAME))
    with pytest.raises(InputError, match="unknown statistic"):
        sl.look(one.q, one.k).statistic(NAME)
    with pytest.raises(InputError, match="unknown statistic"):
        sl.look(one.q, one.k, stats=NAME)
    with pytest.raises(AttributeError, match=NAME):
        getattr(sight, NAME)
    sl.declare(VARIANCE)
    plain = sl.look(one.q, one.k, **one.options)
    plain.save(tmp_path / "c")
    torch.testing.assert_close(sl.Sight.load(tmp_path / "c").statistic(NAME), sight.statistic(NAME))


def test_a_file_gives_a_statistic_no_odd_name(tmp_path: Path) -> None:
    sight = sl.look(torch.randn(5, 8), torch.randn(7, 8), stats="entropy")
    for name in ("<b>bold</b>", "", "a b", "_kept", "x" * 65, "picture", "lse"):
        sight._kept = {name: sight._kept.pop(next(iter(sight._kept)))}
        sight.save(tmp_path / "a")
        with pytest.raises(SightFileError, match="instead of a statistic's name"):
            sl.Sight.load(tmp_path / "a")


# Watching


@pytest.mark.parametrize("together", [True, False])
@pytest.mark.parametrize("padding", [None, "left"])
def test_a_generation_grows(
    padding: str | None, together: bool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The prompt and its steps are one sight, with and without waiting for each other."""
    monkeypatch.setattr(Gather, "on", together)
    model, given = tiny.model("llama"), tiny.inputs("llama", padding)
    options = {"max_new_tokens": 7, "do_sample": False}
    stats = (NAME, "received", "overview", "shares", sl.Top(2), "distance")
    with torch.no_grad(), sl.watch(model, stats=stats) as seen:
        model.generate(**given, **options)
    with torch.no_grad(), sl.watch(model, keep_qk=True) as kept:
        model.generate(**given, **options)
    again = sl.load(seen.save(tmp_path / "run"))
    for layer in seen.layers:
        assert NAME in seen[layer].kept
        weights = kept[layer].tile(slice(None), slice(None))
        assert weights.shape[-2] > 12
        holds(seen[layer].statistic(NAME), weights, 2e-6)
        assert torch.equal(again[layer].statistic(NAME), seen[layer].statistic(NAME))
        # From q and k that were kept, and from a small map that was kept whole.
        torch.testing.assert_close(kept[layer].statistic(NAME), seen[layer].statistic(NAME), atol=1e-3, rtol=1e-4)
    with torch.no_grad(), sl.watch(model) as plain:
        model.generate(**given, **options)
    for layer in seen.layers:
        assert NAME not in plain[layer].kept
        torch.testing.assert_close(plain[layer].statistic(NAME), seen[layer].statistic(NAME), atol=1e-3, rtol=1e-4)


def test_a_long_text_is_done_by_tiles(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(account, "_WHOLE", 1 << 10)
    monkeypatch.setattr(Gather, "on", False)
    model, given = tiny.model("llama"), tiny.inputs("llama", "left", length=31)
    with torch.no_grad(), sl.watch(model, stats=(NAME, "overview"), keep_qk=True) as seen:
        model(**given)
    for layer in seen.layers:
        holds(seen[layer].statistic(NAME), seen[layer].tile(slice(None), slice(None)), 2e-6)


def test_a_cross_attention_that_grows_has_no_distances() -> None:
    """They count from where the last query stands, and every step moves that."""
    model, given = tiny.model("t5"), tiny.inputs("t5")
    given.pop("decoder_input_ids")
    with torch.no_grad(), sl.watch(model, stats=(NAME, "distance", "entropy")) as seen:
        model.generate(**given, max_new_tokens=4, do_sample=False)
    kinds = {kind: [layer for layer in seen.layers if seen._layers[layer].kind == kind] for kind in ("self", "cross")}
    assert all(NAME in seen[layer].kept for layer in kinds["self"])
    assert all({"entropy"} == {*seen[layer].kept} & {NAME, "distance", "entropy"} for layer in kinds["cross"])


# Declaring


def test_the_built_in_ones_would_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    for statistic in list(STATISTICS.values()):
        declared._check(statistic)
        declared._try(statistic)


def test_it_is_listed_where_statistics_are_listed() -> None:
    assert names() == ("entropy", "max_score", "distance", NAME, "received", "top", "picture")
    with pytest.raises(InputError, match=f"distance, {NAME}, received"):
        sl.look(torch.randn(3, 4), torch.randn(3, 4), stats="median")
    with pytest.raises(InputTypeError, match=NAME):
        account.read_stats(3)


def test_names_of_other_numbers_are_taken() -> None:
    assert {*SHARES, *account.OWN} <= {*declared.TAKEN}
    for name in ("received", "previous", "shape", "tile", "overview", "mass", "a b", "", "_x", "é", 3):
        with pytest.raises(InputError, match="this cannot be the name of a statistic"):
            sl.declare(Statistic(name, sums={"far": far}))  # type: ignore[arg-type]
    for name in ("entropy", NAME):
        with pytest.raises(InputError, match="already"):
            sl.declare(Statistic(name, sums={"far": far}, by_place=True))
    sl.declare(Statistic(NAME, sums={"far": far}, by_place=True), replace=True)
    assert STATISTICS[NAME].finish is None
    with pytest.raises(InputError, match="already"):
        sl.declare(Statistic("entropy", sums={"far": far}, by_place=True), replace=True)
    with pytest.raises(InputError, match="only what was declared"):
        declared.forget("entropy")


WRONG: dict[str, tuple[dict[str, Any], str]] = {
    "no parts": ({}, "has no parts"),
    "parts of one name": ({"sums": {"a": far}, "maxima": {"a": far}}, "two of one name"),
    "no finish": ({"sums": {"a": far, "b": far}}, "no finish"),
    "no functions": ({"sums": {"a": 3}}, "sums are functions by name"),
    "of nothing": ({"sums": {"a": far}, "of": "scores"}, "of something else"),
    "a range of one number": ({"sums": {"a": far}, "range": (1.0, 1.0)}, "range that is none"),
    "it depends on the place": ({"sums": {"a": far}}, "by_place=True"),
    "no sum": ({"sums": {"a": lambda c: c.shares}}, "a floating number for each row"),
    "whole numbers": ({"sums": {"a": lambda c: c.visible.sum(-1)}}, "a floating number for each row"),
    "NaN of hidden cells": ({"sums": {"a": lambda c: (c.shares * c.scores).sum(-1)}}, "got: NaN"),
    "NaN of an empty row": (
        {"sums": {"a": lambda c: c.shares.sum(-1)}, "finish": lambda rows: rows["a"] / rows["a"]},
        "got: NaN",
    ),
    "hidden cells count": (
        {"sums": {"a": lambda c: (c.weights == 0).double().sum(-1)}, "of": "weights"},
        "would be wrong",
    ),
    "a maximum that is added": ({"sums": {"a": lambda c: c.weights.amax(-1)}, "of": "weights"}, "cut at other keys"),
    "a sum of squares": ({"sums": {"a": lambda c: (c.shares**2).sum(-1)}}, "weights that sum to anything"),
    "a mean without its sum": (
        {"sums": {"a": lambda c: c.shares.sum(-1)}, "finish": lambda rows: rows["a"] + 1.0},
        "weights that sum to anything",
    ),
    "shares of weights": (
        {"sums": {"a": lambda c: c.shares.sum(-1)}, "of": "weights"},
        "no shares in sums over weights",
    ),
    "changes in place": ({"sums": {"a": lambda c: c.shares.mul_(2).sum(-1)}}, "others read them too"),
    "an error of its own": ({"sums": {"a": lambda c: c.shares.sum(-1) + c.nothing}}, "cannot be computed"),
}


@pytest.mark.parametrize("parts, said", WRONG.values(), ids=WRONG)
def test_what_would_be_wrong_somewhere_is_refused(parts: dict[str, Any], said: str) -> None:
    before = dict(STATISTICS)
    with pytest.raises((InputError, InputTypeError)) as caught:
        sl.declare(Statistic("mine", **parts))
    assert said in str(caught.value)
    assert before == STATISTICS


def test_squares_of_shares_say_how_they_scale() -> None:
    """How many keys share a row: one over the sum of the squared shares."""

    def smaller(rows: Rows, factor: Tensor) -> dict[str, Tensor]:
        return {"squares": rows["squares"] * factor**2}

    def finish(rows: Rows) -> Tensor:
        squares = rows.mean("squares", power=2)
        return torch.where(squares > 0, 1 / squares.clamp_min(1e-30), 0.0)

    sums = {"squares": lambda c: (c.shares**2).sum(-1)}
    sl.declare(Statistic("sharers", sums=sums, rescale=smaller, finish=finish))
    for normalizer in ("softmax", "relu", "uniform"):
        one = case(37, 53, "left padding", torch.float64, normalizer=normalizer)
        weights = whole_map(one).weights
        p = weights / weights.sum(-1, keepdim=True).clamp_min(1e-300)
        exact = torch.where(weights.sum(-1) > 0, 1 / (p**2).sum(-1).clamp_min(1e-30), 0.0)
        torch.testing.assert_close(sl.look(one.q, one.k, **one.options).statistic("sharers"), exact)


# Showing


def test_portraits_have_it() -> None:
    model, given = tiny.model("llama"), tiny.inputs("llama", "left")
    with torch.no_grad(), sl.watch(model, stats=(NAME, "shares", "max_score")) as seen:
        model(**given)
    portraits = seen.portraits()
    assert [set(one) for one in portraits.others] == [{NAME, "max_score"}] * len(portraits)
    assert NAME in portraits.table().columns
    assert "variance of the distance: " in portraits.svg()
    panels = {axes.get_title() for axes in sightline.plots.portraits(portraits).axes}
    assert {NAME, "previous", "max_score"} <= panels
    rows = seen[0].statistic(NAME)[:, 1].double()
    real = given["attention_mask"].bool()
    assert portraits.others[1][NAME] == pytest.approx(float(rows[real].mean()), rel=1e-5)


def test_the_explorer_shows_it() -> None:
    made = sights(41)
    for sight in made.values():
        sight.prepare(NAME)
    run = make_run(made, words(41))
    body, _ = Atlas().portraits(run)
    shown = {"name": NAME, "label": "variance of the distance", "unit": "tokens²", "about": VARIANCE.about}
    assert body["measures"][-1] == shown | {"range": None}
    assert [one["label"] for one in body["measures"]][:-1] == [
        *("focus", "first token", "previous token", "itself", "next token", "induction", "mean distance"),
        "entropy",
    ]
    found = made[run.layers[1].name].statistic(NAME).reshape(-1, 3, 41)[0]
    for head in range(3):
        assert body["heads"][1][head][NAME] == pytest.approx(float(found[head].mean()), rel=1e-5)
        value = pytest.approx(float(found[head, 7]))
        assert run.view(1, head).cell(7, 3)["others"] == [
            {"name": NAME, "label": shown["label"], "unit": shown["unit"], "value": value}
        ]
    TypeAdapter(Portraits).validate_python(body)
    TypeAdapter(CellShape).validate_python(run.view(1, 0).cell(7, 3), strict=True)
    declared.forget(NAME)  # a run that somebody else made
    assert Atlas().portraits(run)[0]["measures"][-1]["label"] == "distance variance"


def test_it_goes_from_a_watched_generation_into_the_explorer(tmp_path: Path) -> None:
    model, given = tiny.model("llama"), tiny.inputs("llama", "left")
    with torch.no_grad(), sl.watch(model, stats=(NAME, "overview", "shares")) as seen:
        model.generate(**given, max_new_tokens=3, do_sample=False)
    for seen_again in (seen, sl.load(seen.save(tmp_path / "run"))):
        run = make_run(seen_again, words(14))
        heads, _ = measures.measure(run)
        assert heads[0][0][NAME] == pytest.approx(seen.portraits().others[0][NAME])
        assert measures.listed(heads)[-1]["label"] == "variance of the distance"
