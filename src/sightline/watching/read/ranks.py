"""The sights of a model that lies on several ranks, put together.

Of tensor parallel every rank saw some heads of every layer, of a pipeline every rank saw some layers. What was computed
travels, as the files that `seen.save` writes; q and k stay where they are, and any tile is computed there.
"""

from __future__ import annotations

import hashlib
import json
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor

from sightline.errors import InputError, SightlineError
from sightline.lens import Picture, Received, Top
from sightline.lens.job import Allowed, Weighted
from sightline.lens.joined import JoinedSight
from sightline.lens.kept import KeptSight
from sightline.parallel.ranks import Ranks
from sightline.watching.record.folder import StoredLayer, read_index, save

if TYPE_CHECKING:
    from sightline.lens.plan import Asked
    from sightline.watching.seen import LayerLike, Seen

_OVER = ("heads", "layers")
# What ranks give each other first.
_SEEN = "what was seen"


class _Run(NamedTuple):
    """What one rank saw."""

    content: dict[str, Any]  # its index
    layers: dict[str, StoredLayer]


def gather(seen: Seen, group: Any, over: str | None = None) -> Seen:
    """One run of those of all ranks; every rank gets it."""
    if over is not None and over not in _OVER:
        raise InputError("unknown way to gather", expected="heads, layers or None", got=repr(over), hint='over="heads"')
    ranks = Ranks(group)
    with tempfile.TemporaryDirectory() as place:
        with ranks.refusing(f"{_SEEN}, how much"):
            packed = _packed(save(seen, Path(place, "own"), keep_qk=False))
        runs = []
        for rank, content in enumerate(ranks.shared(_SEEN, packed)):
            folder = Path(place, str(rank))
            folder.mkdir()
            _unpack(content, folder)
            runs.append(_read(folder))
    over = over or _told(runs)
    if over == "heads":
        _check_heads(ranks, runs)
    found = type(seen)(meta=dict(runs[0].content["meta"]) | {"ranks": ranks.size})
    for name, layers in _in_order(runs, over).items():
        found._layers[name] = _join(ranks, seen, name, layers, len(found))
    for said in (run.content for run in reversed(runs)):  # the first that knows its tokens has the say
        if said["ids"] is not None or said["memory_ids"] is not None:
            found._ids = (said["ids"], said["memory_ids"])
        found._tokens = said["tokens"] or found._tokens
        found._memory_tokens = said["memory_tokens"] or found._memory_tokens
        found._unseen |= said["unseen"]
    return found


def _packed(folder: Path) -> bytes:
    """The files of a folder in one: their names and sizes, and then what they hold."""
    files = sorted(folder.iterdir())
    names = json.dumps([[file.name, file.stat().st_size] for file in files]).encode()
    return b"".join([len(names).to_bytes(8, "little"), names, *(file.read_bytes() for file in files)])


def _unpack(content: bytes, folder: Path) -> None:
    start = 8 + int.from_bytes(content[:8], "little")
    for name, size in json.loads(content[8:start]):
        Path(folder, Path(name).name).write_bytes(content[start : start + size])
        start += size


def _read(folder: Path) -> _Run:
    content = read_index(folder)
    layers = {
        said["name"]: StoredLayer(
            said["name"],
            said["index"],
            said["kind"],
            said["module"],
            said["heads"],
            folder / said["file"],
            folder / said["rows"],
            said["mask_known"],
        )
        for said in content["layers"]
    }
    for layer in layers.values():
        layer.sight()
        layer.rows("real")  # before the folder is gone
    return _Run(content, layers)


def _told(runs: list[_Run]) -> str:
    """Whether the ranks saw heads of the same layers, or layers of their own."""
    names = [set(run.layers) for run in runs if run.layers]
    if all(one == names[0] for one in names[1:]) and len(names) > 1:
        if all(run.content["ids"] is None and run.content["memory_ids"] is None for run in runs):
            raise InputError(
                "nobody can tell whether the ranks saw heads of one run",
                expected="tokens: the same under tensor parallel, others where ranks have their own examples",
                got=f"layers of the same names on {len(names)} ranks, from inputs that are no tokens",
                hint='over="heads" under tensor parallel, over="layers" for stages of a pipeline; '
                "examples of each rank's own need no gathering",
            )
        return "heads"
    if sum(map(len, names)) == len(set().union(*names)):
        return "layers"
    raise InputError(
        "some layers were seen by several ranks and others were not",
        expected="the same layers on every rank (tensor parallel), or none twice (a pipeline)",
        got=f"{', '.join(map(str, map(len, names)))} layers, {len(set().union(*names))} of them different",
        hint='the group of one of the two: seen.gather(tp).gather(pp); or over="layers"',
    )


def _check_heads(ranks: Ranks, runs: list[_Run]) -> None:
    """Refuse what are not different heads of one run: other inputs, the same heads twice, heads that were chosen."""
    ids = [run.content["ids"] for run in runs]
    if any(one != ids[0] for one in ids[1:]):
        raise InputError(
            "the ranks saw different inputs",
            expected="the same tokens on every rank, as under tensor parallel",
            got="different tokens: each rank has examples of its own, as under FSDP",
            hint="the group along which the heads are divided: seen.gather(mesh['tp'])",
        )
    for name, first in runs[0].layers.items():
        others = [run.layers[name] for run in runs[1:] if name in run.layers]
        if any(one.heads is not None for one in (first, *others)):
            raise InputError(
                f"of {name} only some heads were watched",
                expected="all heads of every rank: else their numbers are not known",
                got=f"heads {first.heads}",
                hint="sl.watch(model) without heads=",
            )
        rows = [hashlib.sha256(one.sight().row.numpy().tobytes()).digest() for one in (first, *others)]
        if len(set(rows)) < len(rows) and first.sight().row.numel():
            raise InputError(
                f"the ranks saw the same heads of {name}",
                expected="different heads on every rank, as under tensor parallel",
                got="the same numbers twice: each rank has the whole layer",
                hint="rank-local use: seen as it is; it needs no gathering",
            )


def _in_order(runs: list[_Run], over: str) -> dict[str, dict[int, StoredLayer]]:
    """The layers by name, each with the ranks that saw something of it, in the order of ranks and of layers."""
    found: dict[str, dict[int, StoredLayer]] = {}
    for rank, run in enumerate(runs):
        for name, layer in run.layers.items():
            taken = over == "layers" and name in found
            found.setdefault(f"{rank}.{name}" if taken else name, {})[rank] = layer
    return found


def _join(ranks: Ranks, seen: Seen, name: str, layers: dict[int, StoredLayer], index: int) -> GatheredLayer:
    first = next(iter(layers.values()))
    mine = seen._layer(layers[ranks.rank].name) if ranks.rank in layers else None
    starts, heads = {}, 0
    for rank, layer in layers.items():
        starts[rank] = heads
        heads += layer.sight().shape[1]
    fetch = _Fetch(ranks, name, mine, starts, {rank: layer.sight().shape[1] for rank, layer in layers.items()})
    # The numbers of heads that were chosen on their one rank stay what they are.
    numbers = first.heads if len(layers) == 1 else None
    sight = JoinedSight.joined([layer.sight() for layer in layers.values()], fetch)
    return GatheredLayer(name, index, first.kind, first.module, numbers, sight, list(layers.values()))


@dataclass
class GatheredLayer:
    """A layer whose heads were seen by several ranks, or by another one."""

    name: str
    index: int
    kind: str
    module: str
    heads: list[int] | None
    joined: JoinedSight
    parts: list[StoredLayer] = field(repr=False)

    def sight(self) -> KeptSight:
        return self.joined

    def rows(self, name: str) -> Tensor | None:
        found = [part.rows(name) for part in self.parts]
        if any(one is None for one in found):
            return None
        # What is said of queries, whichever head looks, is the same on every rank.
        return found[0] if found[0].dim() == 2 else torch.cat(found, 1)  # type: ignore[union-attr, arg-type]


class _Fetch:
    """The ranks that hold q and k of a layer, asked all together."""

    def __init__(
        self, ranks: Ranks, name: str, mine: LayerLike | None, starts: dict[int, int], heads: dict[int, int]
    ) -> None:
        self._ranks, self._name, self._mine, self._starts, self._heads = ranks, name, mine, starts, heads

    def compute(self, requests: Sequence[Asked]) -> dict[Any, Any]:
        def own(sight: KeptSight, heads: slice) -> list[Tensor]:
            asked = [_of_heads(request, heads) for request in requests]
            found = sight.compute(asked)
            return [part for one in asked for part in _flat(found[one])]

        said = f"{[one if isinstance(one, str | Top | Picture | Received) else type(one).__name__ for one in requests]}"
        tensors = iter(self._all(said, own))
        return {request: _like(request, tensors) for request in requests}

    def tile(self, rows: slice, columns: slice, of: str) -> Tensor:
        return self._all(f"tile {rows} {columns} {of}", lambda sight, _: [sight.tile(rows, columns, of)])[0]

    def _all(self, said: str, own: Callable[[KeptSight, slice], list[Tensor]]) -> list[Tensor]:
        """What every holder computes, its heads one after the other, on every rank."""
        ranks, found, error = self._ranks, [], None
        if self._mine is not None:
            start = self._starts[ranks.rank]
            try:
                found = own(self._mine.sight(), slice(start, start + self._heads[ranks.rank]))
            except SightlineError as problem:
                error = str(problem)
        asked = f"{self._name}, {said}"
        about: dict[str, Any] = {"asked": asked, "error": None if error is None else error[:800]}
        about["tensors"] = [[list(one.shape), str(one.dtype).removeprefix("torch.")] for one in found]
        heard = ranks.agree("what is asked of the layers", about)
        for rank, other in enumerate(heard):
            if other["asked"] != about["asked"] or other["error"] is not None:
                raise InputError(
                    f"{self._name} cannot be asked on rank {ranks.members[rank]}",
                    expected="all ranks to ask for the same of a layer whose q and k were kept",
                    got=other["error"] or f"there {other['asked'][:200]}; here {asked[:200]}",
                    hint="sl.watch(model, keep_qk=True) on every rank, and the same questions in the same order",
                )
        every: dict[int, list[Tensor]] = {}
        passing = [one.to(ranks.device).contiguous() for one in found]
        for step in range(ranks.size):
            source = ranks.source(step)
            every[source] = passing
            if step < ranks.size - 1:
                passing = self._pass(
                    f"{self._name}, step {step + 1}", passing, heard[ranks.source(step + 1)]["tensors"]
                )
        holders = [every[rank] for rank in self._starts]
        return [torch.cat(parts, 1).cpu() for parts in zip(*holders, strict=True)]

    def _pass(self, step: str, tensors: list[Tensor], coming: list) -> list[Tensor]:
        """Give some tensors on and take others, each as bytes: ranks need not hold as many."""
        flat = torch.cat([one.flatten().view(torch.uint8) for one in tensors] or [torch.empty(0, dtype=torch.uint8)])
        shapes = [(shape, getattr(torch, dtype)) for shape, dtype in coming]
        sizes = [torch.Size(shape).numel() * dtype.itemsize for shape, dtype in shapes]
        (got,) = self._ranks.rotate(step, [flat.to(self._ranks.device)], [(sum(sizes),)])
        parts = zip(got.split(sizes), shapes, strict=True) if sizes else ()
        return [part.clone().view(dtype).view(shape) for part, (shape, dtype) in parts]


def _of_heads(request: Asked, heads: slice) -> Asked:
    """What a request asks of some heads: weights of queries, and rules, may differ from head to head."""
    if isinstance(request, Weighted):
        return Weighted(request.weights[:, heads], request.of, request.reduce)
    if isinstance(request, Allowed):
        return Allowed(request.rule.select(None, range(heads.start, heads.stop)))
    return request


def _flat(value: Any) -> list[Tensor]:
    return list(value) if isinstance(value, tuple) else [value]


def _like(request: Any, tensors: Any) -> Any:
    """As many tensors as a request has: strongest keys have two."""
    return (next(tensors), next(tensors)) if isinstance(request, Top) else next(tensors)
