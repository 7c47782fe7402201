"""Saved runs: folders that `seen.save` or `sl.watch(…, folder=…)` wrote, found under the folders a server was given."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

from sightline.errors import InputError, SightlineError, explain
from sightline.watch import Seen
from sightline.watch import load as load_run
from sightline.web.library import Library, Shelf
from sightline.web.running import as_run
from sightline.web.runs import Run, content_id

INDEX = "index.json"


def find(folder: Path) -> list[Path]:
    """The saved runs of a folder: itself, or those directly inside it, sorted by name."""
    if (folder / INDEX).is_file():
        return [folder]
    found = sorted(path.parent for path in folder.glob(f"*/{INDEX}")) if folder.is_dir() else []
    if not found:
        raise InputError(
            explain(
                f"there is no saved run in {folder.name or folder}",
                expected=f"a folder with {INDEX}, or one that holds such folders",
                got="none" if folder.exists() else "no such folder",
                hint="sightline look TEXT --out FOLDER, or seen.save(folder)",
            )
        )
    return found


def shelve(library: Library, folder: Path) -> list[str]:
    """List the runs of a folder in a library; gives a line for each of several that cannot be read."""
    skipped = []
    for path in find(folder):
        try:
            seen = load_run(path)
            if not seen.layers:
                raise InputError("no layers in it yet")
        except SightlineError as error:
            if path == folder:
                raise
            # One of several that is damaged does not keep the others from being seen.
            skipped.append(f"{path.name}: {' '.join(str(error).split())}")
            continue
        for batch in range(seen[0].shape[0]):
            id = content_id(seen, _tokens(seen, batch), batch, {"name": seen.meta.get("name")})
            library.shelve(id, Shelf(_about(id, seen, batch, path), partial(_open, id, path, batch)))
    return skipped


def _open(id: str, path: Path, batch: int) -> Run:
    seen = load_run(path)
    return as_run(id, seen, origin=path.name, batch=batch, growing=not seen.complete)


def _tokens(seen: Seen, batch: int) -> list[str]:
    return seen.tokens[batch] if seen.tokens else []


def _about(id: str, seen: Seen, batch: int, path: Path) -> dict[str, Any]:
    tokens = _tokens(seen, batch)
    title = seen.meta.get("text") or " ".join(tokens[:20]) or path.name
    return {
        "id": id,
        "model": seen.meta.get("name") or seen.meta.get("model"),
        "origin": path.name,
        "title": title[:80],
        "tokens": len(tokens) or seen[0].shape[-2],
        "growing": not seen.complete,
        "revision": 0,
    }
