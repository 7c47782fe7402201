"""Saved runs: looked at without being kept open, opened when someone asks for them, left out if they do not hold.

A single saved sight is a run of one layer, whose tokens are not known.
"""

from __future__ import annotations

import math
import os
import stat
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sightline.errors import InputError
from sightline.explore.reasons import left_out, plain
from sightline.explore.run import Run, as_run, content_id, runs_of
from sightline.explore.told import check_told
from sightline.lens import Sight
from sightline.watching import Seen
from sightline.watching import load as load_run

INDEX, SIGHT = "index.json", ".safetensors"
# More than any run has: texts in a batch, maps (layers x heads), tokens, letters of a model's name.
MEMBERS, MAPS, LONGEST, NAME = 1024, 1 << 14, 1 << 24, 1000


@dataclass(frozen=True)
class SavedRun:
    """One text of a saved batch: what is known without opening it, and where it lies."""

    about: dict[str, Any]
    path: Path
    batch: int
    part: int = 0

    @property
    def id(self) -> str:
        return str(self.about["id"])

    def open(self) -> Run:
        """The run itself; whatever a folder that was changed since leads to is raised."""
        if self.path.suffix == SIGHT:
            return _sight_run(self.path, OneSight(self.path), self.batch)
        seen = _load(self.path)
        about = {"origin": plain(self.path.name), "batch": self.batch, "growing": not seen.complete}
        return as_run(self.id, seen, self.part, folder=self.path, **about)


class OneSight:
    """A saved sight as the account of a run."""

    def __init__(self, path: Path) -> None:
        if not _is_file(path):
            raise InputError("it is not a regular file")
        self.name = plain(path.stem)
        self.sight = Sight.load(path)
        *batch, queries, keys = self.sight.shape
        heads = batch.pop() if batch else 1
        self.members = math.prod(batch)
        _check_size(self.name, (self.members, heads, queries, keys), heads)

    @property
    def layers(self) -> list[str]:
        return [self.name]

    def __getitem__(self, name: str) -> Sight:
        return self.sight

    def kind(self, name: str) -> str:
        """Keys that are more or fewer than the queries have names of their own."""
        queries, keys = self.sight.shape[-2:]
        return "self" if queries == keys else "cross"


def find(folder: Path) -> list[Path]:
    """The saved runs of a folder: itself, or those directly inside it, sorted by name; or a file with a sight."""
    if folder.suffix == SIGHT and os.path.lexists(folder) and not folder.is_dir():
        return [folder]
    if _is_file(folder / INDEX):
        return [folder]
    # Whatever is called like an index makes a run: one that is no file is named when it is left out.
    inside = folder.iterdir() if folder.is_dir() else []
    found = sorted(path for path in (folder, *inside) if os.path.lexists(path / INDEX))
    if not found:
        raise InputError(
            f"there is no saved run in {folder.name or folder}",
            expected=f"a folder with {INDEX}, one that holds such folders, or a sight in a file {SIGHT}",
            got=("none" if folder.is_dir() else "another file") if folder.exists() else "no such folder",
            hint=f'sightline look TEXT --out FOLDER, seen.save(folder), or sight.save("sight{SIGHT}")',
        )
    return found


def saved_runs(folder: Path) -> tuple[list[SavedRun], list[str]]:
    """The runs of a folder, and a line for each that cannot be read and is left out."""
    found, skipped = [], []
    for path in find(folder):
        try:
            found += _runs(path)
        except (KeyboardInterrupt, SystemExit):
            raise
        # Whatever a damaged or hostile folder leads to, panics of the libraries that read it included.
        except BaseException as error:
            skipped.append(left_out(path.name, error))
    return found, skipped


def _runs(path: Path) -> list[SavedRun]:
    """A run for every text of a saved batch."""
    if path.suffix == SIGHT and not path.is_dir():
        one = OneSight(path)
        made = [_sight_run(path, one, batch) for batch in range(one.members)]
    else:
        seen = _load(path)
        made = runs_of(seen, origin=plain(path.name), growing=not seen.complete)
    runs: list[SavedRun] = []
    for run in made:
        about = run.summary()
        about["title"] = about["title"] or run.origin
        part = sum(other.batch == run.batch for other in runs)
        runs.append(SavedRun(about, path, run.batch, part))
    return runs


def _sight_run(path: Path, one: OneSight, batch: int) -> Run:
    queries, keys = one.sight.shape[-2:]
    tokens, memory = [""] * queries, None if queries == keys else [""] * keys
    origin = plain(path.name) + (f" [{batch}]" if one.members > 1 else "")
    id = content_id(one, tokens, batch, {"keys": keys, "origin": origin})
    return Run(id, one, tokens, memory=memory, batch=batch, origin=origin)


def _load(path: Path) -> Seen:
    """A saved run of which all that is served has been looked at."""
    for file in (path / INDEX, *sorted(path.glob("*.safetensors"))):
        if not _is_file(file):  # a pipe would be waited for without end
            raise InputError(f"{file.name} in it is not a regular file")
    seen = load_run(path)
    if not seen.layers:
        raise InputError("no layers in it yet")
    _check_sizes(seen)
    _check_meta(seen.meta)
    for name, rows in (("tokens", seen.tokens), ("memory_tokens", seen.memory_tokens)):
        if rows and len(rows) < seen[0].shape[0]:
            raise InputError(f"{name} of {len(rows)} texts in a batch of {seen[0].shape[0]}")
    texts = [text for rows in (seen.tokens, seen.memory_tokens) for row in rows or [] for text in row]
    texts += [*seen.layers, *seen.unseen, *seen.unseen.values()]
    texts += [*(seen.meta.get(key) or "" for key in ("name", "model", "text", "asked"))]
    try:
        "".join(texts).encode()
    except UnicodeEncodeError as error:
        raise InputError(f"a text in it is no Unicode: {error.reason}") from error
    return seen


def _check_sizes(seen: Seen) -> None:
    maps = 0
    for name in seen.layers:
        shape = seen[name].shape
        maps += shape[1]
        _check_size(name, shape, maps)


def _check_size(name: str, shape: tuple[int, ...], maps: int) -> None:
    if not min(shape) or shape[0] > MEMBERS or maps > MAPS or max(shape[2:]) > LONGEST:
        raise InputError(f"{name} has sizes that cannot be served: {tuple(shape)}")


def _check_meta(meta: dict[str, Any]) -> None:
    for key in ("name", "model", "text", "asked"):
        value = meta.get(key)
        if value is not None and not isinstance(value, str):
            raise InputError(f"meta.{key} is not text: {value!r}"[:200])
        if value is not None and key not in ("text", "asked") and len(value) > NAME:
            raise InputError(f"meta.{key} has {len(value):,} letters")
    check_told(meta)
    spans = meta.get("spans")
    if spans is not None and not (isinstance(spans, list) and all(_is_span(span) for span in spans)):
        raise InputError("meta.spans are not pairs of whole numbers")


def _is_span(span: Any) -> bool:
    return isinstance(span, list) and len(span) == 2 and all(type(place) is int for place in span)


def _is_file(path: Path) -> bool:
    """Whether it is a regular file, and not a link to one either: a saved run has none."""
    try:
        return stat.S_ISREG(os.lstat(path).st_mode)
    except OSError:
        return False
