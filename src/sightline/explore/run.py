"""A run: what a model attended to on one text, with all that the explorer shows of it."""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from sightline.errors import InputError
from sightline.explore import labels, parts
from sightline.explore.cache import Cache
from sightline.explore.changes import read
from sightline.explore.head_view import HeadView, tile_of
from sightline.explore.labels import Labels
from sightline.explore.overview import stored_levels
from sightline.lens import Sight
from sightline.watching import Seen


class NotInRun(InputError):
    """A layer or a head that a run does not have."""


class Account(Protocol):
    """What a run is made of; a `Seen` of `sl.watch` is one."""

    @property
    def layers(self) -> Sequence[str]: ...

    def __getitem__(self, name: str) -> Sight: ...


@dataclass(frozen=True)
class Layer:
    """One attention layer, by the path of its module."""

    index: int  # among the layers of the run
    number: int  # as the model counts it: of a run of some layers, another one
    name: str
    heads: int
    numbers: list[int]  # of the heads, as the model counts them
    queries: int
    keys: int
    cross: bool
    exact: bool
    causal: bool
    normalizer: str
    floor: list[int] | None  # the lowest levels that can be shown; None if there is no picture at all


@dataclass
class Run:
    """One text of one account, with everything that is shown of it."""

    id: str
    account: Account
    tokens: Sequence[str]
    memory: Sequence[str] | None = None
    batch: int = 0
    model: str | None = None
    text: str | None = None
    origin: str = "run"
    revision: int = 0
    growing: bool = False
    spans: Sequence[Sequence[int]] | None = None  # where in the text each token stands
    cleanup: Callable[[], None] | None = None
    folder: Path | None = None  # of a saved run
    picture: bytes | None = None  # that a vision model was given, where it lies in no folder
    named: str | None = None  # what it is called, where its text does not say it
    marks: list[dict[str, Any]] = field(default_factory=list)  # bookmarks, where there is no folder
    of: str = "weights"  # what its cells are
    base: Run | None = None  # of a reading: the run that is read
    readings: dict[tuple[str, str], Run] = field(default_factory=dict)  # by what for, and of what
    effects: dict[str, dict[str, Any]] = field(default_factory=dict)  # of all heads, by what for
    layers: list[Layer] = field(init=False)
    labels: Labels = field(init=False)
    memory_labels: Labels | None = field(init=False)

    def __post_init__(self) -> None:
        self._lock = threading.Lock()
        self._views: Cache[HeadView] = Cache(limit=256 << 20)
        numbers = _numbers(self.account)
        self.layers = [_layer(i, numbers[i], name, self.account) for i, name in enumerate(self.account.layers)]
        self.labels = labels.read(self.tokens)
        for i in self._patches:
            self.labels.kinds[i] = 0  # names of places, whatever the words around them are glued by
        if self.text is not None and self.spans is not None:
            self.labels = labels.placed(self.labels, self.text, self.spans)
        self.memory_labels = None if self.memory is None else labels.read(self.memory)

    @property
    def key(self) -> tuple[str, int]:
        """What names this state of the run among everything that is kept."""
        return self.id, self.revision

    @property
    def unseen(self) -> dict[str, str]:
        """What attended without being caught: modules and reasons."""
        return getattr(self.account, "unseen", {})

    @property
    def _patches(self) -> range:
        """The tokens that are patches of a picture."""
        grid, first = getattr(self.account, "grid", None), getattr(self.account, "first", None)
        if grid is None or first is None:
            return range(0)
        return range(first, min(first + grid.rows * grid.columns, len(self.tokens)))

    @property
    def meta(self) -> dict[str, Any]:
        """What the account says of itself beside its sights."""
        return getattr(self.account, "meta", {})

    def layer(self, index: int) -> Layer:
        """A layer by its number."""
        if not 0 <= index < len(self.layers):
            raise NotInRun(
                "there is no such layer", expected=f"0 to {len(self.layers) - 1}", got=index, hint="layers count from 0"
            )
        return self.layers[index]

    def view(self, layer: int, head: int) -> HeadView:
        """One head. Few are kept at a time: an opened one may hold an overview of up to 32 MiB."""
        about = self.layer(layer)
        if not 0 <= head < about.heads:
            raise NotInRun(
                "there is no such head",
                expected=f"0 to {about.heads - 1} in layer {about.number}",
                got=head,
                hint="heads count from 0",
            )
        key = (layer, head)
        with self._lock:
            view = self._views.get(key)
            if view is None:
                view = HeadView(self.account[about.name].select(self.batch, [head]), self.of)
                self._views.put(key, view, view.pyramid.nbytes + (1 << 16))
            return view

    def cells(self, layer: int, rows: slice, columns: slice) -> np.ndarray:
        """A rectangle of all heads of a layer, `[heads, rows, columns]`; NaN where hidden."""
        about = self.layer(layer)
        if about.exact:
            return tile_of(self.account[about.name].select(self.batch), rows, columns, self.of)
        return np.stack([self.view(layer, head).tile(rows, columns) for head in range(about.heads)])

    def key_labels(self, layer: Layer) -> Labels:
        """The labels of a layer's keys."""
        return self.memory_labels if layer.cross and self.memory_labels is not None else self.labels

    def special_keys(self, layer: Layer) -> np.ndarray:
        """Which keys are special tokens."""
        return _special(self.key_labels(layer), layer.keys)

    def special_queries(self, layer: Layer) -> np.ndarray:
        """Which queries are special tokens."""
        return _special(self.labels, layer.queries)

    def rest(self) -> None:
        """Keep nothing in memory that can be made again."""
        self._views = Cache(limit=self._views.limit)

    @property
    def whole_text(self) -> str:
        """The text as it was given, or as its tokens have it."""
        return self.text if self.text is not None else _joined(self.labels, len(self.labels.texts), self._patches)

    def close(self) -> None:
        """Remove what the run has on disk, if that was made for it alone."""
        if self.cleanup is not None:
            self.cleanup()

    def about(self) -> dict[str, Any]:
        """The run as JSON."""
        text = self.text if self.text is not None else _joined(self.labels, skip=self._patches)
        return {
            "id": self.id,
            "model": self.model,
            "origin": self.origin,
            "title": self._changed + (self.named or text)[:80],
            "text": text[:20_000],
            "tokens": len(self.tokens),
            "memory_tokens": None if self.memory is None else len(self.memory),
            "layers": [dict(vars(layer)) for layer in self.layers],
            "layer_numbers": [layer.number for layer in self.layers],
            "unseen": self.unseen,
            "revision": self.revision,
            "growing": self.growing,
            "prompt": (self.meta.get("written") or {}).get("prompt"),
            "asked": self.meta.get("asked"),
        }

    @property
    def _changed(self) -> str:
        edits = self.meta.get("edits")
        return f"({'; '.join(read(text).words() for text in edits)}) " if edits else ""

    def summary(self) -> dict[str, Any]:
        """What a list of runs says of each."""
        about = self.about()
        names = ("id", "model", "origin", "title", "tokens", "layer_numbers", "growing", "revision")
        return {name: about[name] for name in names}


def _special(tokens: Labels, length: int) -> np.ndarray:
    kinds = np.array(tokens.kinds[:length], dtype=np.int64)
    return (np.pad(kinds, (0, max(0, length - len(kinds)))) & labels.SPECIAL) > 0


def _numbers(account: Account) -> list[int]:
    """The numbers of the layers, as the model counts them; their places where nobody said, or not one for each."""
    number = getattr(account, "number", None)
    places = list(range(len(account.layers)))
    found = places if number is None else [number(name) for name in account.layers]
    return found if len(set(found)) == len(found) and min(found, default=0) >= 0 else places


def _layer(index: int, number: int, name: str, account: Account) -> Layer:
    sight = account[name]
    call = sight.call
    heads = 1 if len(sight.shape) == 2 else sight.shape[-3]
    queries, keys = sight.shape[-2:]
    kind = getattr(account, "kind", None)
    numbers = getattr(account, "heads", None)
    return Layer(
        index,
        number,
        name,
        heads,
        list(range(heads)) if numbers is None else numbers(name),
        queries,
        keys,
        cross=kind is not None and kind(name) == "cross",
        exact=sight.has_qk,
        causal="causal()" in repr(call.mask),
        normalizer=call.normalizer.name,
        floor=[0, 0] if sight.has_qk else stored_levels(sight),
    )


def as_run(id: str, seen: Seen, part: int = 0, **about: Any) -> Run:
    """A watched run as the explorer shows it, or one of its parts."""
    batch = about.get("batch", 0)
    found = parts.parts(seen, batch)[part]
    meta = seen.meta
    return Run(
        id,
        found.account,
        found.tokens,
        memory=found.memory,
        model=meta.get("name") or meta.get("model"),
        text=found.text,
        spans=meta.get("spans") if found.text else None,
        named=found.named,
        **about,
    )


def runs_of(seen: Seen, most: int | None = None, **about: Any) -> list[Run]:
    """A run for every text of a watched batch, or for the first of them, named by what it holds.

    A model of images and texts has one for each, as they are sequences of different tokens.
    """
    runs = []
    for batch in range(seen[0].shape[0])[:most]:
        for number, part in enumerate(parts.parts(seen, batch)):
            tokens = seen.tokens[batch] if seen.tokens else []
            id = content_id(part.account, tokens, batch, {"name": seen.meta.get("name")})
            runs.append(as_run(id, seen, number, batch=batch, **about))
    return runs[:most]


def content_id(account: Account, tokens: Sequence[str], batch: int, about: Mapping[str, Any]) -> str:
    """A name made of what a run holds, so that an address or a cached tile never means another run."""
    digest = hashlib.sha256(json.dumps([list(tokens), batch, dict(about)], sort_keys=True, default=str).encode())
    for name in account.layers:
        sight = account[name]
        digest.update(f"{name} {sight.shape} {sight.call.normalizer.name} {sight.call.mask}".encode())
        rows = sight.row.flatten()
        digest.update(rows[:: max(1, rows.numel() // 4096)].float().cpu().numpy().tobytes())
    return digest.hexdigest()[:16]


def _joined(tokens: Labels, most: int = 4000, skip: range = range(0)) -> str:
    parts: list[str] = []
    for i, (text, kind) in enumerate(zip(tokens.texts[:most], tokens.kinds[:most], strict=True)):
        if not kind & labels.SPECIAL and i not in skip:
            parts.append(text if kind & labels.GLUED or not parts else f" {text}")
    return "".join(parts).strip()
