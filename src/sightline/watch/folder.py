"""A run as a folder: one safetensors file for the sight of each layer, and a JSON index. Never pickle.

Every file is written beside its place and then renamed, the index last: whoever reads finds whole files only, also
while the run goes on (`complete` is false then).
"""

from __future__ import annotations

import json
import os
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from sightline.errors import InputError, SightFileError, explain
from sightline.lens import store
from sightline.watch.grow import Layer
from sightline.watch.kept import KeptSight
from sightline.watch.portable import has_table, writable_bias, writable_mask
from sightline.watch.seen import LayerLike, Seen
from sightline.watch.shares import SHARES

FORMAT, VERSION = "sightline-seen", 1
INDEX = "index.json"
_ROWS = (*SHARES, "real", "repeated")
# The index holds names and tokens; one larger than this is not ours.
_LARGEST_INDEX = 256 << 20
# A table of queries x keys is written beside a map that is known whole.
_SMALL = 512 * 512


def save(seen: Seen, folder: Path, keep_qk: bool) -> Path:
    """Write a whole run."""
    if seen._folder is not None and folder.exists() and folder.samefile(seen._folder):
        raise InputError(
            explain(
                "the run is in this folder already",
                expected="another folder: its layers are read from this one",
                got=folder.name,
                hint="a new path",
            )
        )
    writer = Writer(folder, seen, free=False, keep_qk=keep_qk)
    writer.begin()
    for layer in list(seen._layers.values()):
        writer.write(layer)
    writer.finish(complete=seen.complete)
    return folder


class Writer:
    """Writes a run into a folder, layer by layer, as it comes."""

    def __init__(self, folder: Path, seen: Seen, free: bool, keep_qk: bool = True) -> None:
        self.folder, self.seen, self.free, self.keep_qk = folder, seen, free, keep_qk
        self.written: dict[str, int] = {}  # layers in the folder, and how many parts they had then
        self.known: dict[str, bool] = {}  # whether their masks are in the folder
        self.files: dict[str, tuple[str, str]] = {}
        self.stale: list[list[str]] = [[], []]  # files that no index names any more: just now, and before
        self.rest = 0.0  # when it may write again

    def begin(self) -> None:
        """Make the folder, and an index without layers; what another run left there is removed."""
        if self.folder.exists() and not self.folder.is_dir():
            raise InputError(
                explain(
                    "a run is saved as a folder",
                    expected="a folder",
                    got=f"the file {self.folder.name}",
                    hint="another path",
                )
            )
        if self.folder.exists() and any(self.folder.iterdir()):
            if not (self.folder / INDEX).is_file():
                raise InputError(
                    explain(
                        "the folder holds something else",
                        expected="a new or empty folder, or a run that was saved before",
                        got=f"{self.folder.name} without {INDEX}",
                        hint="another path",
                    )
                )
            _read_index(self.folder)  # only a run of ours is replaced
            self._index(False)
            for old in self.folder.glob("[0-9][0-9][0-9][0-9]-*.safetensors"):
                old.unlink()
        self.folder.mkdir(parents=True, exist_ok=True)
        self._index(False)
        if self.free:
            self.seen._folder = self.folder

    def add(self, layer: LayerLike) -> None:
        """A new layer: written at once."""
        if layer.name in self.written:  # a second run in one block
            self.written.clear()
        self.write(layer)
        self._index(False)

    def maybe_write(self) -> None:
        """Write layers that have grown, but spend no more than a fifth of the time on it."""
        if time.monotonic() < self.rest:
            return
        start = time.monotonic()
        if self._write_grown():
            self._index(False)
            self.rest = time.monotonic() + max(1.0, 5 * (time.monotonic() - start))

    def finish(self, complete: bool) -> None:
        """Write what has grown, and say that it is all."""
        self._write_grown()
        self.seen.complete = complete
        self._index(complete)

    def _write_grown(self) -> bool:
        grown = [
            layer
            for layer in self.seen._layers.values()
            if isinstance(layer, Layer) and self.written.get(layer.name, 0) != len(layer.parts)
        ]
        for layer in grown:
            self.write(layer)
        return bool(grown)

    def write(self, layer: LayerLike) -> None:
        number = list(self.seen._layers).index(layer.name)
        sight = layer.sight()
        call = sight._call
        _, _, queries, keys = sight.shape
        keep = self.keep_qk and sight.has_qk
        mask, bias = call.mask, call.bias if keep else None
        # Without q and k a mask only says what is hidden: a table of all cells would be larger than all else.
        known = keep or queries * keys <= _SMALL or not has_table(mask)
        mask = writable_mask(mask, queries, keys) if known else None
        bias = writable_bias(bias, queries, keys)
        self.known[layer.name] = known and sight.mask_known
        copy = KeptSight(call.replace(mask=mask, bias=bias), sight._row, sight._kept)
        # A layer that has grown is written beside what was there: whoever holds the last index finds its files.
        parts = len(layer.parts) if isinstance(layer, Layer) else 1
        names = (f"{number:04d}-{parts}.safetensors", f"{number:04d}-{parts}-rows.safetensors")
        path = self.folder / names[0]
        store.save(copy, path, keep_qk=keep)
        rows = {name: found for name in _ROWS if (found := layer.rows(name)) is not None}
        _write_tensors({name: t.contiguous() for name, t in rows.items()}, self.folder / names[1])
        self.stale[0] += [old for old in self.files.get(layer.name, ()) if old not in names]
        self.files[layer.name] = names
        self.written[layer.name] = parts
        if isinstance(layer, Layer) and self.free:
            layer.forget(lambda: _read_sight(path))

    def _index(self, complete: bool) -> None:
        layers = []
        for name, layer in self.seen._layers.items():
            if name not in self.written:
                continue
            layers.append(
                {
                    "name": name,
                    "index": layer.index,
                    "kind": layer.kind,
                    "module": layer.module,
                    "heads": layer.heads,
                    "file": self.files[name][0],
                    "rows": self.files[name][1],
                    "mask_known": self.known[name],
                }
            )
        content = {
            "format": FORMAT,
            "version": VERSION,
            "complete": complete,
            "meta": self.seen.meta,
            "ids": self.seen.ids,
            "memory_ids": self.seen.memory_ids,
            "tokens": self.seen.tokens,
            "memory_tokens": self.seen.memory_tokens,
            "layers": layers,
        }
        _replace(self.folder / INDEX, lambda path: Path(path).write_text(json.dumps(content), encoding="utf-8"))
        for old in self.stale.pop():
            (self.folder / old).unlink(missing_ok=True)
        self.stale.insert(0, [])
        if complete:
            for old in self.stale.pop():
                (self.folder / old).unlink(missing_ok=True)
            self.stale.append([])


def _write_tensors(tensors: dict[str, Tensor], path: Path) -> None:
    _replace(path, lambda temporary: save_file({n: t.clone() for n, t in tensors.items()}, temporary))


def _replace(path: Path, write: Any) -> None:
    """Write beside the target, then rename: the target is never half-written."""
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.", suffix=".part")
    os.close(handle)
    try:
        write(temporary)
        umask = os.umask(0)
        os.umask(umask)
        os.chmod(temporary, 0o666 & ~umask)
        os.replace(temporary, path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise


@dataclass
class StoredLayer:
    """A layer in a folder; its sight is read when it is first asked for."""

    name: str
    index: int
    kind: str
    module: str
    heads: list[int] | None
    path: Path
    rows_path: Path
    mask_known: bool
    _sight: KeptSight | None = None
    _rows: dict[str, Tensor] | None = None

    def sight(self) -> KeptSight:
        if self._sight is None:
            self._sight = _read_sight(self.path)
            self._sight.mask_known = self.mask_known
            if len(self._sight.shape) != 4 or (self.heads is not None and len(self.heads) != self._sight.shape[1]):
                raise _bad(self.path.parent, f"{self.path.name} is not the sight of {self.name}")
        return self._sight

    def rows(self, name: str) -> Tensor | None:
        if self._rows is None:
            try:
                with safe_open(str(self.rows_path), framework="pt") as file:
                    self._rows = {key: file.get_tensor(key) for key in file.keys() if key in _ROWS}  # noqa: SIM118
            except (SafetensorError, OSError, ValueError) as error:
                raise _bad(self.rows_path.parent, f"{self.rows_path.name}: {error}") from error
            batch, heads, queries, _ = self.sight().shape
            for key, found in self._rows.items():
                if found.shape != ((batch, queries) if key in ("real", "repeated") else (batch, heads, queries)):
                    raise _bad(self.rows_path.parent, f"{key} of {self.name} has shape {tuple(found.shape)}")
        return self._rows.get(name)


def _read_sight(path: Path) -> KeptSight:
    try:
        call, row, flat, kept = store.load(path, torch.device("cpu"))
    except FileNotFoundError as error:
        raise _bad(path.parent, f"{path.name} is missing") from error
    if flat or (call.q is not None and call.q.dim() != 4):
        raise _bad(path.parent, f"{path.name} is the sight of a single map")
    return KeptSight(call, row, kept)


def load(folder: Path) -> Seen:
    """Read a folder's index; anything that `save` did not write is a SightFileError."""
    if not folder.exists():
        raise FileNotFoundError(f"no such folder: {folder}")
    content = _read_index(folder)
    try:
        seen = Seen(meta=dict(content["meta"]), complete=bool(content["complete"]))
        seen._folder = folder
        seen._ids = (_numbers(content["ids"]), _numbers(content["memory_ids"]))
        seen.tokens, seen.memory_tokens = content["tokens"], content["memory_tokens"]
        for entry in content["layers"]:
            name, kind = entry["name"], entry["kind"]
            heads = entry["heads"]
            if not isinstance(name, str) or name in seen._layers or kind not in ("self", "cross"):
                raise ValueError(f"a layer {name!r} of kind {kind!r}")
            if heads is not None and not all(isinstance(head, int) and head >= 0 for head in heads):
                raise ValueError(f"heads {heads!r}")
            files = _inside(folder, entry["file"]), _inside(folder, entry["rows"])
            index, module, known = int(entry["index"]), str(entry["module"]), bool(entry["mask_known"])
            seen._layers[name] = StoredLayer(name, index, kind, module, heads, *files, known)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise _bad(folder, f"an index that does not hold: {error}") from error
    return seen


def _inside(folder: Path, name: Any) -> Path:
    """A plain file of the folder: no path out of it, and no link."""
    if not isinstance(name, str) or Path(name).name != name or name in ("", ".", "..") or "\\" in name:
        raise ValueError(f"a file name {name!r}")
    path = folder / name
    if path.is_symlink():
        raise ValueError(f"a link {name!r}")
    return path


def _read_index(folder: Path) -> dict:
    path = folder / INDEX
    try:
        if path.is_symlink() or path.stat().st_size > _LARGEST_INDEX:
            raise _bad(folder, f"an {INDEX} that is a link or too large")
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        if isinstance(error, SightFileError):
            raise
        raise _bad(folder, f"{INDEX}: {type(error).__name__}") from error
    if not isinstance(content, dict) or content.get("format") != FORMAT:
        raise _bad(folder, f"an {INDEX} of something else")
    if content.get("version") != VERSION:
        raise _bad(folder, f"version {content.get('version')!r}; this version reads {VERSION}")
    return content


def _numbers(ids: Any) -> list[list[int]] | None:
    if ids is None:
        return None
    if not isinstance(ids, list) or not all(isinstance(row, list) and all(type(i) is int for i in row) for row in ids):
        raise ValueError("ids that are not lists of whole numbers")
    return ids


def _bad(folder: Path, got: str) -> SightFileError:
    return SightFileError(
        explain(
            f"{folder.name} is not a watched run",
            expected="a folder written by seen.save or sl.watch(…, folder=…)",
            got=got,
            hint="save it again; a copy may have been cut short",
        )
    )
