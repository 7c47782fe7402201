"""Edits in files: JSON, and their tensors in a safetensors file beside it. Nothing in them is executed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from sightline.editing.sources import Source, Stored
from sightline.errors import InputError, SightFileError
from sightline.files import parse_json, read_bytes, write_whole
from sightline.lens.described import items, mask_alone, mask_to_json, record, whole
from sightline.lens.tensor_file import DTYPES, FLOATS, TensorFile, write_tensors
from sightline.masks import Mask

_FORMAT, _LARGEST = 1, 1 << 24
# Cells of a pattern that may be written for each layer.
_CELLS = 1 << 26


def beside(path: Path) -> Path:
    """The file of the tensors."""
    return path.with_name(f"{path.name}.safetensors")


def save(edits: list[tuple[str, dict[str, Any]]], path: Path) -> Path:
    """Write edits, each a kind and its options."""
    tensors: dict[str, Tensor] = {}
    written = []
    for kind, options in edits:
        given = {name: value for name, value in options.items() if value is not None}
        what = given.get("what", "")
        written.append([kind, {name: _written(value, tensors, what) for name, value in given.items()}])
    about = {"sightline": "edits", "format": _FORMAT, "edits": written, "tensors": bool(tensors)}
    text = json.dumps(about, indent=1)
    if tensors:
        numbers = {name: x.detach().cpu().contiguous() for name, x in tensors.items()}
        write_whole(beside(path), lambda file: write_tensors(file, numbers, "sightline", {"edits": _FORMAT}))
    write_whole(path, lambda file: file.write_text(text, encoding="utf-8"))
    return path


def _written(value: Any, tensors: dict[str, Tensor], what: str) -> Any:
    if isinstance(value, Tensor):
        name = f"tensor.{len(tensors)}"
        tensors[name] = value
        return {"tensor": name}
    if isinstance(value, Mask):
        return {"mask": mask_to_json(value, tensors)}
    if isinstance(value, Source):
        return {"source": [_layer(value, name, tensors, what) for name in value.layers]}
    if isinstance(value, slice):
        return {"slice": [value.start, value.stop, value.step]}
    if isinstance(value, dict):
        return {"dict": [[key, _written(x, tensors, what)] for key, x in value.items()]}
    if isinstance(value, tuple | list):
        return [_written(x, tensors, what) for x in value]
    return value


def _layer(source: Source, name: str, tensors: dict[str, Tensor], what: str) -> dict[str, Any]:
    shape = tuple(source.shape(name))
    if what == "pattern" and torch.Size(shape).numel() > _CELLS:
        raise InputError(
            f"the pattern of {name} is too large for a file",
            expected=f"at most {_CELLS:,} cells",
            got=f"{torch.Size(shape).numel():,}",
            hint='what="queries" and what="keys" are linear in the context',
        )
    return {"layer": name, "shape": list(shape), "heads": source.heads(name)} | _written(
        source.part(name, what), tensors, what
    )


def load(path: Path) -> list[tuple[str, dict[str, Any]]]:
    """Read edits: kinds and options, as `Edits` takes them."""
    try:
        about = parse_json(read_bytes(path, _LARGEST))
    except (ValueError, UnicodeDecodeError) as error:
        raise damaged(path, str(error)) from error
    if not isinstance(about, dict) or about.get("sightline") != "edits":
        raise damaged(path, "something else")
    if about.get("format") != _FORMAT:
        raise damaged(path, f"format {about.get('format')!r}")
    try:
        if about.get("tensors"):
            with TensorFile(beside(path)) as file:
                return _edits(about, file)
        return _edits(about, None)
    except (ValueError, KeyError, AttributeError, OSError) as error:
        raise damaged(path, str(error)) from error


def _edits(about: dict[str, Any], file: TensorFile | None) -> list[tuple[str, dict[str, Any]]]:
    found = []
    for edit in items("edits", about.get("edits")):
        kind, options = items("edit", edit, 2)
        if not isinstance(kind, str):
            raise ValueError(f"a kind that is {kind!r}")
        given = record(kind, options)
        what = str(given.get("what", ""))
        found.append((kind, {name: _read(f"{kind}.{name}", x, file, what) for name, x in given.items()}))
    return found


def _read(field: str, said: Any, file: TensorFile | None, what: str) -> Any:
    if isinstance(said, list):
        parts = [_read(field, x, file, what) for x in said]
        return [tuple(x) if isinstance(x, list) else x for x in parts]
    if not isinstance(said, dict):
        return said
    kind, value = next(iter(said.items())) if len(said) == 1 else ("", None)
    match kind:
        case "slice":
            return slice(*items(field, value, 3))
        case "dict":
            pairs = [items(field, pair, 2) for pair in items(field, value)]
            return {key: _read(field, x, file, what) for key, x in pairs}
        case "tensor":
            return _tensor(field, value, file)
        case "mask":
            return mask_alone(field, value, file)
        case "source":
            return Stored(what, dict(_stored(field, one, file) for one in items(field, value)))
    raise ValueError(f"{field}: {str(said)[:60]}")


def _stored(field: str, said: Any, file: TensorFile | None) -> tuple[str, tuple[tuple[int, ...], list[int], Tensor]]:
    given = record(field, said, ("layer", "shape", "heads", "tensor"))
    if not isinstance(given["layer"], str):
        raise ValueError(f"{field}.layer: {given['layer']!r}")
    shape = tuple(whole(f"{field}.shape", n) for n in items(f"{field}.shape", given["shape"], 4))
    heads = [whole(f"{field}.heads", n) for n in items(f"{field}.heads", given["heads"], shape[1])]
    numbers = _tensor(field, given["tensor"], file)
    if numbers.dim() != 4 or numbers.shape[0] != shape[0] or not numbers.is_floating_point():
        raise ValueError(f"{field}: a tensor of shape {tuple(numbers.shape)}")
    return given["layer"], (shape, heads, numbers)


def _tensor(field: str, name: Any, file: TensorFile | None) -> Tensor:
    if not isinstance(name, str) or file is None:
        raise ValueError(f"{field}: {name!r} instead of the name of a tensor")
    return file.take(name, None, (*FLOATS, *DTYPES.values()))


def damaged(path: Path, got: str) -> SightFileError:
    """The error for a file that holds no edits."""
    return SightFileError(
        f"{path.name} holds no edits that can be read",
        expected="what Edits.save wrote",
        got=got,
        hint="edits.save(path)",
    )


def same_masks(one: Mask, other: Mask) -> bool:
    """Whether two masks are written alike, tensor by tensor."""
    try:
        tensors: tuple[dict[str, Tensor], dict[str, Tensor]] = ({}, {})
        texts = [mask_to_json(mask, held) for mask, held in zip((one, other), tensors)]
    except TypeError:
        return False
    alike = texts[0] == texts[1] and tensors[0].keys() == tensors[1].keys()
    return alike and all(torch.equal(x, tensors[1][name]) for name, x in tensors[0].items())
