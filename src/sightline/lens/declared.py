"""Make a statistic known. It does a small map first, so that what would be wrong somewhere is refused at once.

A sum that is not one (cut the keys elsewhere and it differs), that counts hidden cells, that forgets that shares need
not sum to 1, or that gives NaN for a row without keys would go wrong in some pass, some normaliser or some patch of the
explorer, and nobody would see it.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise

import torch
from torch import Tensor

from sightline.backends.call import make_call
from sightline.errors import InputError, InputTypeError
from sightline.lens.requests import OTHERS
from sightline.lens.sight import Sight
from sightline.lens.statistics import FUSED, LEAST, STATISTICS, Cells, Statistic, is_name
from sightline.lens.tiles.accumulators import RowSums, Seen

# What watched runs and the explorer call other numbers.
TAKEN = (
    *OTHERS, "lse", "overview", "overview_max", "shares", "row", "off", "real", "repeated", "q", "k", "sinks", "lost",
    "mass", "unit", "previous", "first", "same", "induction", "layer", "head", "spread", "focus", "interest", "others",
)  # fmt: skip
_BATCH, _HEADS, _QUERIES, _KEYS = 2, 3, 5, 9
# Keys that nobody sees, whose tiles are skipped; and two more behind them, which move all places.
_UNSEEN, _MORE = 2, 2
_BOUND = 1e-5


def declare(statistic: Statistic, *, replace: bool = False) -> Statistic:
    """Make a row statistic known by its name, everywhere: `stats=`, sights, watched runs, files, the explorer.

    It is tried on a small map first. With `replace` it may take the place of one that was declared before, as when a
    cell of a notebook runs again. In a file it is numbers with a name: whoever reads it needs no declaration.

    >>> import sightline as sl
    >>> from sightline.lens.declared import forget
    >>> far = sl.Statistic("squared_distance", sums={"far": lambda cells: (cells.shares * cells.distance**2).sum(-1)})
    >>> sl.declare(far)
    Traceback (most recent call last):
    sightline.errors.InputError: squared_distance would be wrong
      expected: the same wherever the queries stand among the keys, or by_place=True
    ...
    >>> far = sl.declare(sl.Statistic("squared_distance", sums=far.sums, by_place=True, unit="tokens²"))
    >>> sl.look(torch.eye(3), torch.eye(3), scale=0.0, stats="squared_distance").statistic("squared_distance")
    tensor([1.6667, 0.6667, 1.6667])
    >>> forget("squared_distance")
    """
    _check(statistic)
    before = STATISTICS.get(statistic.name)
    if before is not None and (statistic.name in FUSED or not replace):
        raise InputError(
            f"there is a statistic {statistic.name!r} already",
            expected=f"another name than {', '.join(STATISTICS)}",
            got=repr(statistic.name),
            hint=f'sl.Statistic("my_{statistic.name}", …), or replace=True for one of your own',
        )
    STATISTICS[statistic.name] = statistic
    try:
        _try(statistic)
    except BaseException:
        del STATISTICS[statistic.name]
        if before is not None:
            STATISTICS[statistic.name] = before
        raise
    return statistic


def forget(name: str) -> None:
    """Take a declared statistic back."""
    if name in FUSED or name not in STATISTICS:
        raise InputError(
            "only what was declared can be taken back",
            expected=", ".join(known for known in STATISTICS if known not in FUSED) or "one that was declared",
            got=repr(name),
            hint="sl.declare",
        )
    del STATISTICS[name]


def _check(statistic: Statistic) -> None:
    if not isinstance(statistic, Statistic):
        raise InputTypeError(
            "a statistic is declared",
            expected="sl.Statistic(name, sums={…}, …)",
            got=type(statistic).__name__,
            hint="sl.declare(sl.Statistic(…))",
        )
    name = statistic.name
    if not is_name(name) or name in TAKEN or (name not in STATISTICS and hasattr(Sight, name)):
        raise InputError(
            "this cannot be the name of a statistic",
            expected="a word of letters, digits and underscores that means nothing else",
            got=repr(name),
            hint='sl.Statistic("distance_variance", …)',
        )
    parts = [*_parts("sums", statistic.sums), *_parts("maxima", statistic.maxima)]
    if len(set(parts)) < max(len(parts), 1):
        raise InputError(
            f"{name} has no parts, or two of one name",
            expected="sums and maxima with names of their own, at least one",
            got=", ".join(parts) or "none",
            hint='sums={"far": lambda cells: (cells.shares * cells.distance).sum(-1)}',
        )
    if len(parts) > 1 and statistic.finish is None:
        raise InputError(
            f"{name} has several parts and no finish",
            expected="a function of the parts, finish(rows)",
            got=", ".join(parts),
            hint='finish=lambda rows: rows.mean("a") / rows.mean("b").clamp_min(1)',
        )
    if statistic.of not in ("shares", "weights"):
        raise InputError(
            f"{name} is of something else", expected='"shares" or "weights"', got=repr(statistic.of), hint='of="shares"'
        )
    ends = statistic.range
    if ends is not None and not (isinstance(ends, tuple) and len(ends) == 2 and ends[0] < ends[1]):
        raise InputError(
            f"{name} has a range that is none", expected="(low, high), or None", got=repr(ends), hint="range=(0, 1)"
        )


def _parts(what: str, parts: object) -> Mapping[str, object]:
    if not isinstance(parts, Mapping) or not all(isinstance(name, str) and callable(f) for name, f in parts.items()):
        raise InputTypeError(
            f"{what} are functions by name",
            expected="{name: function of cells}",
            got=type(parts).__name__ if not isinstance(parts, Mapping) else repr(dict(parts)),
            hint=f'{what}={{"far": lambda cells: …}}',
        )
    return parts


class _Map:
    """A map by hand: some cells hidden, one row without any key, the last keys seen by nobody."""

    def __init__(self) -> None:
        draw = torch.Generator("cpu").manual_seed(0)
        size = (_BATCH, _HEADS, _QUERIES, _KEYS)
        scores = 2 * torch.randn(size, generator=draw, dtype=torch.float64, device="cpu")
        self.visible = torch.rand(size, generator=draw, dtype=torch.float64, device="cpu") < 0.7
        self.visible[..., -_UNSEEN:] = False
        self.visible[:, :, 1] = False
        self.visible[:, :, 2, 0] = True
        self.scores = scores.masked_fill(~self.visible, -torch.inf)
        self.level = self.scores.logsumexp(-1, keepdim=True).nan_to_num(neginf=0.0)
        self.log = (self.scores - self.level).clamp_min(LEAST)
        self.shares = self.log.exp()

    def sums(
        self,
        statistic: Statistic,
        cuts: list[int],
        bands: tuple[tuple[int, int], ...] = ((0, 2), (2, _QUERIES)),
        softmax: bool = True,
        more: int = 0,
    ) -> RowSums:
        """What a statistic adds up of some tiles; with other normalisers nothing but the weights is known."""
        q, k = (torch.zeros(_BATCH, _HEADS, n, 2, dtype=torch.float64, device="cpu") for n in (_QUERIES, _KEYS + more))
        sums = RowSums(make_call(q, k, k, normalizer="softmax" if softmax else "relu"), {statistic.name})
        for top, bottom in bands:
            for left, right in pairwise(cuts):
                rows, columns = slice(top, bottom), slice(left, right)
                own = {name: getattr(self, name)[..., rows, columns].clone() for name in ("shares", "visible")}
                # As with a sink, which takes the same of every row: shares are what is left over their sum.
                seen = Seen(rows, columns, 0.6 * own["shares"], own["visible"])
                if softmax:
                    log = self.log[..., rows, columns].clone()
                    seen = seen._replace(log=log, shares=own["shares"], level=self.level[..., rows, :])
                else:
                    seen = seen._replace(scores=self.scores[..., rows, columns].clone())
                sums.add(seen)
        return sums


def _try(statistic: Statistic) -> None:
    """Do a small map in all the ways in which it may have to be done."""
    made = _Map()
    try:
        for part in (*statistic.sums.values(), *statistic.maxima.values()):
            _one(statistic, made, part)
        whole = made.sums(statistic, [0, _KEYS]).result()[statistic.name]
        cut = made.sums(statistic, [0, 4, 7, _KEYS]).result()[statistic.name]
        skipped = made.sums(statistic, [0, _KEYS - _UNSEEN], ((0, 1), (2, _QUERIES))).result()[statistic.name]
        one, other = (made.sums(statistic, cuts) for cuts in ([0, 3], [3, _KEYS]))
        one.join(other, slice(0, _QUERIES))
        by_weight = made.sums(statistic, [0, 4, _KEYS], softmax=False).result()[statistic.name]
        moved = made.sums(statistic, [0, _KEYS], more=_MORE).result()[statistic.name]
    except InputError:
        raise
    except Exception as error:
        raise InputError(
            f"{statistic.name} cannot be computed",
            expected="functions of cells that give a number for each row, and a finish of these",
            got=f"{type(error).__name__}: {error}",
            hint="(cells.shares * cells.distance).sum(-1); see sl.Statistic",
        ) from error
    shape = (_BATCH, _HEADS, _QUERIES)
    if not isinstance(whole, Tensor) or whole.shape != shape or not whole.is_floating_point():
        raise _wrong(statistic, f"a floating number for each row, {shape}", _said(whole), "finish=lambda rows: …")
    if bool(whole.isnan().any()):
        hint = "rows.mean(name) is 0 for a row without keys; torch.where(cells.visible, cells.scores, 0.0)"
        raise _wrong(statistic, "a number for every row, also one without any key", "NaN", hint)
    for what, found, hint in (
        ("cut at other keys", cut, "what is added up over one tile must not depend on the others"),
        ("done in two parts", one.result()[statistic.name], "sums are added, of maxima the larger one is taken"),
        ("done without what nobody sees", skipped, "torch.where(cells.visible, …, 0.0): hidden cells count as nothing"),
        ("made of weights that sum to anything", by_weight, "rows.mean(name) in finish; rescale= if not linear"),
    ):
        if not _same(found, whole):
            raise _wrong(statistic, f"the same of a map {what}", _furthest(found, whole), hint)
    if not statistic.by_place and not _same(moved, whole):
        raise _wrong(
            statistic,
            "the same wherever the queries stand among the keys, or by_place=True",
            _furthest(moved, whole),
            "by_place=True",
        )


def _one(statistic: Statistic, made: _Map, part: object) -> None:
    """One part of one tile gives one number for each row."""
    rows, columns, shares = slice(0, _QUERIES), slice(0, _KEYS), made.shares.clone()
    seen = Seen(rows, columns, shares, made.visible, log=made.log.clone(), shares=shares, level=made.level)
    cells = Cells(seen, _KEYS - _QUERIES, seen.shares if statistic.of == "shares" else None)
    found = part(cells)  # type: ignore[operator]
    assert seen.log is not None
    if not torch.equal(shares, made.shares) or not torch.equal(seen.log, made.log):
        raise _wrong(
            statistic, "cells that stay as they are: others read them too", "changes in place", "cells.shares.clone()"
        )
    shape = (_BATCH, _HEADS, _QUERIES)
    if not isinstance(found, Tensor) or found.shape != shape or not found.is_floating_point():
        hint = "(cells.shares * …).sum(-1), or .amax(-1)"
        raise _wrong(statistic, f"of each part a floating number for each row, {shape}", _said(found), hint)


def _same(one: Tensor, other: Tensor) -> bool:
    infinite = one.isinf() | other.isinf()
    if one.shape != other.shape or not torch.equal(one[infinite], other[infinite]):
        return False
    size = other[~infinite].abs().max() if bool((~infinite).any()) else 1.0
    return bool(((one - other)[~infinite].abs() <= _BOUND * (size + 1e-30)).all())


def _said(x: object) -> str:
    return f"{x.dtype} {tuple(x.shape)}" if isinstance(x, Tensor) else type(x).__name__


def _furthest(one: Tensor, other: Tensor) -> str:
    at = int((one - other).abs().nan_to_num(nan=torch.inf).argmax())
    return f"{one.flatten()[at]:.4g} instead of {other.flatten()[at]:.4g}"


def _wrong(statistic: Statistic, expected: str, got: str, hint: str) -> InputError:
    return InputError(f"{statistic.name} would be wrong", expected=expected, got=got, hint=hint)
