"""`sl.Edits`: edits as values. A list of changes to a model's attention that prints, is saved, loaded and compared."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from numbers import Integral
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from sightline.backends.call import check_number
from sightline.editing import files
from sightline.editing.sources import Source, Watched
from sightline.editing.where import Where, columns, spelled
from sightline.errors import InputError, InputTypeError
from sightline.masks import as_mask
from sightline.masks.base import Mask
from sightline.watching.seen import Seen

if TYPE_CHECKING:
    from collections.abc import Callable

FORCED = ("uniform", "previous", "itself", "first")
PATCHED = ("output", "pattern", "queries", "keys", "values")


@dataclass(frozen=True, eq=False)
class Edit:
    """One edit: what is done, with which numbers, and where. It prints as the call that made it."""

    kind: str
    where: Where
    options: dict[str, Any] = field(default_factory=dict)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Edit) or (self.kind, self.where) != (other.kind, other.where):
            return False
        one, two = ({name: x for name, x in e.options.items() if x is not None} for e in (self, other))
        return one.keys() == two.keys() and all(
            same(value, two[name], one.get("what", "")) for name, value in one.items()
        )

    __hash__ = None  # type: ignore[assignment]

    @property
    def from_end(self) -> bool:
        """Whether it can be told only of a whole prompt: columns that count from its end, or the mean over it."""
        placed = (self.where.queries, self.options.get("keys"), tuple(self.options.get("positions") or ()))
        by = self.options.get("by")
        return any(map(_counts_back, placed)) or (isinstance(by, str) and by == "mean")

    def __repr__(self) -> str:
        said = [f"{name}={_short(value)}" for name, value in self.options.items() if value is not None]
        return f"{self.kind}({', '.join([*said, *self.where.words()])})"


class Edits:
    """Changes to a model's attention, in the order in which they were added; `sl.edit` puts them in force.

    Whatever the order, they apply as: temperature, boost, cut; force or a patched pattern; patched output, ablate,
    scale. Every method takes the same `where`: `layers=` (an index in the order in which layers run, a name or a
    pattern, or a list of these), `heads=` (numbers, or (layer, head) pairs), `queries=` (columns: a number, a list or a
    slice; negative ones count from the prompt's end, and open slices take in tokens that are written later) and
    `examples=` (rows of the batch). What is not said is all of them.

    >>> edits = Edits()
    >>> edits.cut(queries=-1, keys=9, heads=[(23, 3)])
    >>> edits.ablate(by="mean", layers=[0, 1], heads=2)
    >>> print(edits)
    cut(keys=9, heads=[(23, 3)], queries=-1)
    ablate(by='mean', layers=[0, 1], heads=2)
    """

    def __init__(self, edits: Any = ()) -> None:
        self._edits: list[Edit] = []
        self.uncompiled: list[str] = []  # layers that torch.compile had compiled, and that ran as they are
        self._check: Callable[[Edit], None] | None = None
        for edit in edits:
            if not isinstance(edit, Edit):
                raise InputTypeError(
                    "Edits are made of edits",
                    expected="the edits of another sl.Edits",
                    got=type(edit).__name__,
                    hint="edits = sl.Edits(); edits.cut(…)",
                )
            self._edits.append(edit)

    def cut(
        self,
        queries: Any = None,
        keys: Any = None,
        *,
        mask: Any = None,
        renormalize: bool = True,
        layers: Any = None,
        heads: Any = None,
        examples: Any = None,
    ) -> None:
        """Hide keys from queries: the edges between them carry nothing.

        Args:
            queries: which queries no longer see the keys; all if not given.
            keys: which keys they no longer see; all if not given.
            mask: a rule or a boolean tensor, True = cut; with queries or keys, only there.
            renormalize: whether the weights of the keys that are left grow until they sum to what they did, as if the
                model had never seen the others; if not, what went to the keys that were cut is lost.
            layers, heads, examples: where; all if not given.
        """
        if queries is None and keys is None and mask is None:
            raise InputError(
                "nothing is said to be cut",
                expected="queries, keys or a mask",
                got="none of them",
                hint="edits.cut(queries=-1, keys=9); edits.ablate(…) takes out whole heads",
            )
        rule = None if mask is None else as_mask(mask)
        options = {"keys": columns("keys", keys), "mask": rule}
        if not _flag("renormalize", renormalize):
            options["renormalize"] = False
        self._add("cut", Where.of(layers, heads, queries, examples), options)

    def boost(
        self,
        factor: float,
        keys: Any = None,
        *,
        layers: Any = None,
        heads: Any = None,
        queries: Any = None,
        examples: Any = None,
    ) -> None:
        """Multiply the weights of some keys before they are normalised: + log(factor) on their scores."""
        number = _positive("factor", factor, "edits.cut(keys=…) takes keys away")
        options = {"factor": number, "keys": columns("keys", keys)}
        self._add("boost", Where.of(layers, heads, queries, examples), options)

    def temperature(
        self, t: float, *, layers: Any = None, heads: Any = None, queries: Any = None, examples: Any = None
    ) -> None:
        """Divide scores by t, after soft-cap and bias, and the sink's too: above 1 flattens, below 1 sharpens."""
        number = _positive("t", t, 'edits.force("uniform") for no preference at all')
        self._add("temperature", Where.of(layers, heads, queries, examples), {"t": number})

    def force(
        self, pattern: str, *, layers: Any = None, heads: Any = None, queries: Any = None, examples: Any = None
    ) -> None:
        """Have queries look as told, among the keys that they see: "uniform", "previous", "itself" or "first".

        "first" is the first key that a query sees. A query that sees none of what it is told to look at gives 0.
        """
        if pattern not in FORCED:
            raise InputError(
                "no such pattern", expected=f"one of {', '.join(FORCED)}", got=repr(pattern), hint='force("uniform")'
            )
        self._add("force", Where.of(layers, heads, queries, examples), {"pattern": pattern})

    def patch(
        self,
        source: Seen,
        what: str = "output",
        positions: dict[int, int] | None = None,
        *,
        layers: Any = None,
        heads: Any = None,
        queries: Any = None,
        examples: Any = None,
    ) -> None:
        """Put in what heads did in another run.

        Args:
            source: that run, a `Seen`: watched with `keep_output=True` for outputs, with `keep_qk=True` for queries,
                keys and (of more than 512 tokens) patterns, with both `keep_qk` and `influence` for values.
            what: `"output"`, `"pattern"`, `"queries"`, `"keys"` or `"values"`.
            positions: which column here is which column there, `{here: there}`; without it both runs are equally long.
                Positions that are not named run as they are; in a pattern, keys that are not named get 0, and the
                rows keep their sum.
            layers, heads, queries, examples: where; all if not given.
        """
        if not isinstance(source, Seen | Source):
            raise InputTypeError(
                "a patch comes from a run that was watched",
                expected="a Seen",
                got=type(source).__name__,
                hint="with sl.watch(model, keep_output=True) as source: model(…)",
            )
        if what not in PATCHED:
            raise InputError(
                "no such part of attention",
                expected=f"one of {', '.join(PATCHED)}",
                got=repr(what),
                hint='what="output"',
            )
        if what in ("keys", "values") and queries is not None:
            raise InputError(
                f"patched {what} are seen by all queries",
                expected="positions={here: there} for some keys alone",
                got=f"queries={queries!r}",
                hint="positions={3: 3}",
            )
        origin = Watched(source) if isinstance(source, Seen) else source
        options = {"source": origin, "what": what, "positions": _positions(positions)}
        self._add("patch", Where.of(layers, heads, queries, examples), options)

    def ablate(
        self, by: Any = "zero", *, layers: Any = None, heads: Any = None, queries: Any = None, examples: Any = None
    ) -> None:
        """Replace the outputs of heads, which are what enters the output projection.

        Args:
            by: `"zero"`; `"mean"`, of that head over the unpadded queries of the same example and forward pass;
                a tensor, `[value_dim]` or `[heads, value_dim]`; or one for each layer, `{layer: tensor}`, as
                `seen.mean_output()` gives them.
            layers, heads: one of them is required.
            queries, examples: where; all if not given.
        """
        if layers is None and heads is None:
            raise InputError(
                "nothing is said to be ablated",
                expected="layers or heads",
                got="neither",
                hint="edits.ablate(heads=[(23, 3)])",
            )
        self._add("ablate", Where.of(layers, heads, queries, examples), {"by": _replacement(by)})

    def scale(
        self, factor: float, *, layers: Any = None, heads: Any = None, queries: Any = None, examples: Any = None
    ) -> None:
        """Multiply the outputs of heads."""
        self._add("scale", Where.of(layers, heads, queries, examples), {"factor": check_number("factor", factor)})

    def clear(self) -> None:
        """Take all edits back."""
        self._edits.clear()

    def save(self, path: str | PathLike) -> Path:
        """Write them as JSON, with their tensors in a safetensors file and the runs they patch from beside it.

        >>> import tempfile
        >>> edits = Edits()
        >>> edits.boost(2.0, keys=slice(3, 7))
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     Edits.load(edits.save(f"{folder}/steer.json")) == edits
        True
        """
        return files.save([(e.kind, vars(e.where) | e.options) for e in self], Path(path))

    @classmethod
    def load(cls, path: str | PathLike) -> Edits:
        """Read what `save` wrote. Each edit is checked as if it were made anew."""
        edits, path = cls(), Path(path)
        for kind, options in files.load(path):
            if kind not in KINDS:
                raise files.damaged(path, f"an edit of the kind {kind!r}")
            try:
                getattr(edits, kind)(**options)
            except TypeError as error:
                raise files.damaged(path, str(error)) from None
        return edits

    def _add(self, kind: str, where: Where, options: dict[str, Any]) -> None:
        edit = Edit(kind, where, options)
        if self._check is not None:
            self._check(edit)
        self._edits.append(edit)

    def __iter__(self) -> Iterator[Edit]:
        return iter(list(self._edits))

    def __len__(self) -> int:
        return len(self._edits)

    def __bool__(self) -> bool:
        return True  # an Edits without edits is one all the same

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Edits) and self._edits == other._edits

    __hash__ = None  # type: ignore[assignment]

    def __str__(self) -> str:
        return "\n".join(map(repr, self._edits)) or "no edits"

    def __repr__(self) -> str:
        return f"Edits({', '.join(map(repr, self._edits))})"


KINDS = ("cut", "boost", "temperature", "force", "patch", "ablate", "scale")


def same(one: Any, other: Any, what: str = "") -> bool:
    """Whether two options are equal, tensors and masks included."""
    if one is other:
        return True
    if isinstance(one, Tensor) or isinstance(other, Tensor):
        return (
            isinstance(one, Tensor)
            and isinstance(other, Tensor)
            and one.shape == other.shape
            and torch.equal(one, other)
        )
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(same(value, other[name]) for name, value in one.items())
    if isinstance(one, Source) and isinstance(other, Source):
        return one.same_as(other, what)
    if isinstance(one, Mask) and isinstance(other, Mask):
        return one == other or files.same_masks(one, other)
    return type(one) is type(other) and bool(one == other)


def _counts_back(chosen: Any) -> bool:
    """Whether columns are said that count from the end."""
    numbers = (chosen.start, chosen.stop) if isinstance(chosen, slice) else (chosen,)
    numbers = chosen if isinstance(chosen, tuple) else numbers
    return any(n is not None and n < 0 for n in numbers)


def _short(value: Any) -> str:
    if isinstance(value, Tensor):
        return f"<{' x '.join(map(str, value.shape))}>"
    if isinstance(value, dict) and any(isinstance(x, Tensor) for x in value.values()):
        return f"<{len(value)} layers>"
    return spelled(value) if isinstance(value, tuple | slice) else repr(value)


def _flag(name: str, value: object) -> bool:
    if not isinstance(value, bool):
        raise InputTypeError(
            f"{name} is yes or no", expected="True or False", got=type(value).__name__, hint=f"{name}=False"
        )
    return value


def _positive(name: str, value: object, hint: str) -> float:
    number = check_number(name, value)
    if number <= 0:
        raise InputError(f"{name} must be positive", expected="more than 0", got=value, hint=hint)
    return number


def _positions(given: object) -> dict[int, int] | None:
    if given is None:
        return None
    whole = isinstance(given, dict) and all(
        isinstance(n, Integral) and not isinstance(n, bool) for pair in given.items() for n in pair
    )
    if not whole or not given:
        raise InputTypeError(
            "positions say which column here is which column there",
            expected="{here: there} of whole numbers",
            got=repr(given)[:60],
            hint="positions={3: 5, 4: 6}",
        )
    return {int(here): int(there) for here, there in given.items()}  # type: ignore[attr-defined]


def _replacement(by: Any) -> Any:
    if isinstance(by, str) and by in ("zero", "mean"):
        return by
    if isinstance(by, Tensor) and by.is_floating_point() and by.dim() in (1, 2):
        return by.detach().clone()
    if (
        isinstance(by, dict)
        and by
        and all(
            isinstance(name, str) and isinstance(x, Tensor) and x.is_floating_point() and x.dim() in (1, 2)
            for name, x in by.items()
        )
    ):
        return {name: x.detach().clone() for name, x in by.items()}
    raise InputTypeError(
        "heads cannot be replaced by this",
        expected='"zero", "mean", a tensor of [value_dim] or [heads, value_dim], or {layer: tensor}',
        got=repr(by)[:60] if isinstance(by, str) else type(by).__name__,
        hint='by="mean"',
    )
