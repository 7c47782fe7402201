"""A run read back from its folder, layer by layer, when it is asked for."""

from __future__ import annotations

import re
import stat
from pathlib import Path
from typing import Any

from sightline.lens.described import flag, items, one_of, record, whole
from sightline.lens.tensor_file import short
from sightline.watching.record.folder import INDEX, StoredLayer, bad, read_index
from sightline.watching.record.image import NAMES
from sightline.watching.seen import Seen


def load(folder: Path) -> Seen:
    """Read a folder's index; anything that `save` did not write is a SightFileError."""
    if not folder.exists():
        raise FileNotFoundError(f"no such folder: {folder}")
    content = read_index(folder)
    try:
        if content["version"] < 3:
            content = ({"unseen": {}} if content["version"] == 1 else {}) | content | {"runs": []}
        content = record("index", content, _FIELDS)
        seen = Seen(meta=_meta(content["meta"]), complete=flag("complete", content["complete"]))
        seen._folder = folder
        if seen.image is not None:
            _inside("meta.image", folder, seen.image.name)
        seen._ids = (_numbers("ids", content["ids"]), _numbers("memory_ids", content["memory_ids"]))
        seen.tokens, seen.memory_tokens = content["tokens"], content["memory_tokens"]
        seen._unseen = {name: _text("unseen", why) for name, why in record("unseen", content["unseen"]).items()}
        for i, entry in enumerate(items("layers", content["layers"])):
            layer = _layer(f"layers.{i}", record(f"layers.{i}", entry, _LAYER_FIELDS), folder)
            if layer.name in seen._layers:
                raise ValueError(f"layers.{i}.name: {short(layer.name)} twice")
            seen._layers[layer.name] = layer
        seen._runs = [_run(f"runs.{i}", folder, name) for i, name in enumerate(items("runs", content["runs"]))]
    except (TypeError, ValueError) as error:
        raise bad(folder, f"{INDEX}: {short(str(error), 300)}") from error
    return seen


_FIELDS = (
    "format",
    "version",
    "complete",
    "meta",
    "ids",
    "memory_ids",
    "tokens",
    "memory_tokens",
    "layers",
    "unseen",
    "runs",
)
_LAYER_FIELDS = ("name", "index", "kind", "module", "heads", "file", "rows", "mask_known")


def _layer(field: str, entry: dict[str, Any], folder: Path) -> StoredLayer:
    heads = entry["heads"]
    if heads is not None:
        heads = [whole(f"{field}.heads", head) for head in items(f"{field}.heads", heads)]
        if len(set(heads)) < len(heads):
            raise ValueError(f"{field}.heads: a head twice")
    return StoredLayer(
        _text(f"{field}.name", entry["name"]),
        whole(f"{field}.index", entry["index"]),
        one_of(f"{field}.kind", entry["kind"], ("self", "cross")),
        _text(f"{field}.module", entry["module"]),
        heads,
        _inside(f"{field}.file", folder, entry["file"]),
        _inside(f"{field}.rows", folder, entry["rows"]),
        flag(f"{field}.mask_known", entry["mask_known"]),
    )


def _run(field: str, folder: Path, name: Any) -> Seen:
    """A run before the last one, in a folder inside its own; it has none in it."""
    if not isinstance(name, str) or not re.fullmatch(r"run-[0-9]{6}", name):
        raise ValueError(f"{field}: a folder {short(name)}")
    path = folder / name
    if path.is_symlink() or not path.is_dir():
        raise ValueError(f"{field}: {name} is no folder")
    run = load(path)
    if run._runs:
        raise ValueError(f"{field}: runs inside a run")
    return run


def _inside(field: str, folder: Path, name: Any) -> Path:
    """A plain file of the folder: no path out of it, and no link, pipe or device."""
    if not isinstance(name, str) or Path(name).name != name or name in ("", ".", "..") or not name.isprintable():
        raise ValueError(f"{field}: a file name {short(name)}")
    if "\\" in name or len(name.encode()) > 255:
        raise ValueError(f"{field}: a file name {short(name)}")
    path = folder / name
    try:
        mode = path.lstat().st_mode
    except FileNotFoundError:  # said when the layer is asked for
        return path
    if not stat.S_ISREG(mode):
        raise ValueError(f"{field}: {short(name)} is a link, a folder, a pipe or a device")
    return path


def _numbers(field: str, ids: Any) -> list[list[int]] | None:
    if ids is None:
        return None
    for row in items(field, ids):
        for number in items(field, row):
            whole(field, number, -(1 << 63), (1 << 63) - 1)
    return ids


def _text(field: str, value: Any) -> str:
    if not isinstance(value, str):
        raise ValueError(f"{field}: {short(value)} instead of a text")
    return value


def _meta(said: Any) -> dict[str, Any]:
    """What a run says of itself: anything, but for the few things that are read."""
    record("meta", said)
    for name in ("model", "name", "text"):
        if said.get(name) is not None:
            _text(f"meta.{name}", said[name])
    if said.get("spans") is not None:
        for pair in items("meta.spans", said["spans"]):
            for number in items("meta.spans", pair, 2):
                whole("meta.spans", number)
    if said.get("grid") is not None:
        for number in items("meta.grid", said["grid"], 3):
            whole("meta.grid", number)
    for start in items("meta.patches", said.get("patches") or []):
        if start is not None:
            whole("meta.patches", start)
    for layer, parts in record("meta.joint", said.get("joint", {})).items():
        for name, ends in record(f"meta.joint.{short(layer)}", parts).items():
            for number in items(f"meta.joint.{short(layer)}.{short(name)}", ends, 2):
                whole("meta.joint", number)
    if said.get("image") is not None and said["image"] not in NAMES.values():
        raise ValueError(f"meta.image: {short(said['image'])}")
    return said
