"""A run as a folder: one safetensors file for the sight of each layer, and a JSON index. Never pickle.

Every file is written beside its place and then renamed, the index last: whoever reads finds whole files only, also
while the run goes on (`complete` is false then). When it is complete, all of it is on the disk.
"""

from __future__ import annotations

import json
import os
import shutil
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from sightline.errors import InputError, SightFileError
from sightline.files import make_folder, parse_json, read_bytes, sync_file, sync_folder, write_whole
from sightline.lens import store
from sightline.lens.kept import KeptSight
from sightline.lens.tensor_file import TensorFile, short, write_tensors
from sightline.watching.record.image import NAMES, read_image
from sightline.watching.record.layer import Layer
from sightline.watching.record.shares import SHARES

if TYPE_CHECKING:
    from sightline.watching.seen import LayerLike, Seen

# Version 2 says what was not seen, version 3 holds runs.
FORMAT, VERSION = "sightline-seen", 3
INDEX = "index.json"
_FLAGS = ("real", "repeated")
_ROWS = (*SHARES, *_FLAGS)
# The index holds names and tokens: at most so many bytes, and so many more for each byte of tensors beside it.
_SMALL_INDEX, _PER_BYTE = 4 << 20, 64
# A table of queries x keys is written beside a map that is known whole.
_SMALL = 512 * 512


def save(seen: Seen, folder: Path, keep_qk: bool, image: str | Path | bytes | None = None) -> Path:
    """Write a whole run, and an image beside it."""
    found = None if image is None else read_image(image)
    if seen._folder is not None and folder.exists() and folder.samefile(seen._folder):
        raise InputError(
            "the run is in this folder already",
            expected="another folder: its layers are read from this one",
            got=folder.name,
            hint="a new path",
        )
    writer = Writer(folder, seen, free=False, keep_qk=keep_qk)
    writer.begin()
    for number, run in enumerate(seen._runs):
        save(run, folder / run_name(number), keep_qk)
        writer.runs.append(run_name(number))
    for layer in list(seen._layers.values()):
        writer.write(layer)
    if found is not None:
        writer.image, content = found
        write_whole(folder / writer.image, lambda path: path.write_bytes(content), durable=True)
    writer.finish(complete=seen.complete)
    return folder


def add_image(folder: Path, image: bytes) -> None:
    """Put an image beside a run that was saved already."""
    name, content = read_image(image)
    write_whole(folder / name, lambda path: path.write_bytes(content), durable=False)
    index = read_index(folder)
    index["meta"] = {**index["meta"], "image": name}
    text = json.dumps(index).encode()
    write_whole(folder / INDEX, lambda path: path.write_bytes(text), durable=False)


class Writer:
    """Writes a run into a folder, layer by layer, as it comes."""

    def __init__(self, folder: Path, seen: Seen, free: bool, keep_qk: bool = True) -> None:
        self.folder, self.seen, self.free, self.keep_qk = folder, seen, free, keep_qk
        self.written: dict[str, str] = {}  # layers in the folder, and how far they had come then
        self.known: dict[str, bool] = {}  # whether their masks are in the folder
        self.files: dict[str, tuple[str, str]] = {}
        self.numbers: dict[str, int] = {}  # of its files; a layer that is dropped leaves its number to nobody
        self.stale: list[list[str]] = [[], []]  # files that no index names any more: just now, and before
        self.rest = 0.0  # when it may write again
        self.runs: list[str] = []  # folders of the runs before this one
        self.image: str | None = None  # the file of an image

    def begin(self) -> None:
        """Make the folder, and an index without layers; what another run left there is removed."""
        if self.folder.exists() and not self.folder.is_dir():
            raise InputError(
                "a run is saved as a folder",
                expected="a folder",
                got=f"the file {self.folder.name}",
                hint="another path",
            )
        if self.folder.exists() and any(self.folder.iterdir()):
            if not (self.folder / INDEX).is_file():
                raise InputError(
                    "the folder holds something else",
                    expected="a new or empty folder, or a run that was saved before",
                    got=f"{self.folder.name} without {INDEX}",
                    hint="another path",
                )
            read_index(self.folder)  # only a run of ours is replaced
            self._index(False)
            for old in self.folder.glob("[0-9][0-9][0-9][0-9]-*.safetensors"):
                old.unlink()
            for name in NAMES.values():
                (self.folder / name).unlink(missing_ok=True)
            for run in self.folder.glob("run-[0-9][0-9][0-9][0-9][0-9][0-9]"):
                if run.is_dir() and not run.is_symlink() and (run / INDEX).is_file():
                    shutil.rmtree(run)
        make_folder(self.folder)
        self._index(False)
        if self.free:
            self.seen._folder = self.folder

    def add(self, layer: LayerLike) -> None:
        """A new layer: written at once."""
        if layer.name in self.written:  # a second run in one block
            self.written.clear()
        self.write(layer)
        self._index(False)

    def drop(self, name: str) -> None:
        """A layer that is no part of the run any more: the next index does without it."""
        if self.written.pop(name, None) is not None:
            self.stale[0] += self.files.pop(name)

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
        for layer in self.seen._layers.values() if self.free else ():
            if isinstance(layer, Layer):
                layer.forget_gradients()
        self.seen.complete = complete
        # The layers are on the disk before the index that names them.
        for name in self.written:
            for file in self.files[name]:
                sync_file(self.folder / file)
        sync_folder(self.folder)
        self._index(complete, durable=True)

    def _write_grown(self) -> bool:
        grown = [
            layer
            for layer in self.seen._layers.values()
            if isinstance(layer, Layer) and self.written.get(layer.name) != layer.state
        ]
        for layer in grown:
            self.write(layer)
        return bool(grown)

    def write(self, layer: LayerLike) -> None:
        number = self.numbers.setdefault(layer.name, len(self.numbers))
        sight = layer.sight()
        call = sight.call
        _, _, queries, keys = sight.shape
        keep = self.keep_qk and sight.has_qk
        mask, bias = call.mask, call.bias if keep else None
        # Without q and k a mask only says what is hidden: a table of all cells would be larger than all else.
        known = keep or queries * keys <= _SMALL or mask is None or not mask.is_large
        mask = mask.writable(queries, keys) if known and mask is not None else None
        if bias is not None and not isinstance(bias, Tensor):
            bias = bias.writable(queries, keys)
        self.known[layer.name] = known and sight.mask_known
        copy = KeptSight(call.replace(mask=mask, bias=bias), sight.row, sight.kept, extra=sight.extra)
        # A layer that has grown is written beside what was there: whoever holds the last index finds its files.
        state = layer.state if isinstance(layer, Layer) else "1"
        names = (f"{number:04d}-{state}.safetensors", f"{number:04d}-{state}-rows.safetensors")
        path = self.folder / names[0]
        # It waits for the disk once, at the end, and not in the middle of the model.
        store.save(copy, path, keep_qk=keep, durable=False)
        rows = {name: found for name in _ROWS if (found := layer.rows(name)) is not None}
        write_whole(self.folder / names[1], lambda temporary: write_tensors(temporary, rows), durable=False)
        self.stale[0] += [old for old in self.files.get(layer.name, ()) if old not in names]
        self.files[layer.name] = names
        self.stale = [[old for old in group if old not in names] for group in self.stale]
        self.written[layer.name] = state
        if isinstance(layer, Layer) and self.free and layer.orders is None:
            layer.forget(lambda: _read_sight(path))

    def _index(self, complete: bool, durable: bool = False) -> None:
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
            "meta": {name: x for name, x in self.seen.meta.items() if name != "image"}
            | ({} if self.image is None else {"image": self.image}),
            # Of a long text they would be larger than all that is there before the first layer.
            "ids": self.seen.ids if layers else None,
            "memory_ids": self.seen.memory_ids if layers else None,
            "tokens": self.seen.tokens if layers else None,
            "memory_tokens": self.seen.memory_tokens if layers else None,
            "layers": layers,
            "unseen": self.seen.unseen,
            "runs": self.runs,
        }
        text = json.dumps(content).encode()
        if len(text) > _largest_index(self.folder):
            raise InputError(
                "the tokens are too long for the run",
                expected=f"{INDEX} of at most {_largest_index(self.folder):,} bytes beside its tensors",
                got=f"{len(text):,} bytes",
                hint="seen.tokens = shorter ones, or less in seen.meta",
            )
        write_whole(self.folder / INDEX, lambda path: path.write_bytes(text), durable)
        for old in self.stale.pop():
            (self.folder / old).unlink(missing_ok=True)
        self.stale.insert(0, [])
        if complete:
            for old in self.stale.pop():
                (self.folder / old).unlink(missing_ok=True)
            self.stale.append([])


def run_name(number: int) -> str:
    """The folder of a run, inside that of the last one."""
    return f"run-{number:06d}"


def _largest_index(folder: Path) -> int:
    """How many bytes of index can belong to the tensors of a folder."""
    with os.scandir(folder) as files:
        beside = sum(file.stat(follow_symlinks=False).st_size for file in files if file.name.endswith(".safetensors"))
    return _SMALL_INDEX + _PER_BYTE * beside


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
                raise bad(self.path.parent, f"{self.path.name} is not the sight of {self.name}")
        return self._sight

    def rows(self, name: str) -> Tensor | None:
        if self._rows is None:
            batch, heads, queries, _ = self.sight().shape
            try:
                with TensorFile(self.rows_path) as file:
                    self._rows = {
                        key: file.take(key, (batch, queries), (torch.bool,))
                        if key in _FLAGS
                        else file.take(key, (batch, heads, queries), (torch.float32, torch.float64))
                        for key in _ROWS
                        if key in file.names
                    }
                    file.check_all_taken()
            except (ValueError, OSError) as error:
                raise bad(self.rows_path.parent, f"{self.rows_path.name}: {short(str(error), 300)}") from error
        return self._rows.get(name)


def _read_sight(path: Path) -> KeptSight:
    try:
        found = store.load(path, torch.device("cpu"))
    except FileNotFoundError as error:
        raise bad(path.parent, f"{path.name} is missing") from error
    if found.flat or len(found.call.sizes.batch) != 1:
        raise bad(path.parent, f"{path.name} is the sight of a single map")
    return KeptSight(found.call, found.row, found.kept, found.lacks, found.extra)


def read_index(folder: Path) -> dict:
    path = folder / INDEX
    try:
        if path.is_symlink():
            raise ValueError("a link")
        content = parse_json(read_bytes(path, _largest_index(folder)), nan=True)
        if not isinstance(content, dict) or content.get("format") != FORMAT:
            raise ValueError("the index of something else")
        store.check_format(folder.name, content.get("version"), VERSION)
    except SightFileError:
        raise
    except (OSError, ValueError) as error:
        raise bad(folder, f"{INDEX}: {short(str(error), 300)}") from error
    return content


def bad(folder: Path, got: str) -> SightFileError:
    return SightFileError(
        f"{folder.name} is not a watched run",
        expected="a folder written by seen.save or sl.watch(…, folder=…)",
        got=got,
        hint="save it again; a copy may have been cut short",
    )
