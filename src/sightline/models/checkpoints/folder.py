"""A checkpoint folder as Hugging Face lays it out: config.json, safetensors (one or in shards), tokenizer.json.

A snapshot folder of the hub's cache works as it is: there files are links into the `blobs` folder beside `snapshots`.
Links that lead anywhere else are refused, and so are shard names that are more than the name of a file in the folder.
"""

from __future__ import annotations

import os
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from sightline.models.checkpoints.base import Checkpoint, CheckpointError, SpecialTokens, refused
from sightline.models.checkpoints.config import check_config
from sightline.models.checkpoints.safetensors import Entry, TensorFile
from sightline.models.checkpoints.special_tokens import special_tokens
from sightline.models.checkpoints.strict_json import check_regular, parse_any, read_bytes, read_json
from sightline.models.checkpoints.tokenizer import tokenizer_from_json

if TYPE_CHECKING:
    from tokenizers import Tokenizer

# A config may list a label for each of 21,000 classes, an index name each of 100,000 tensors.
JSON_LIMIT = 16 << 20
TOKENIZER_LIMIT = 64 << 20
INDEX = "model.safetensors.index.json"
PICKLES = (".bin", ".pt", ".pth", ".ckpt", ".pkl")


class FolderCheckpoint(Checkpoint):
    """A folder with config.json and safetensors files."""

    def __init__(self, folder: Path) -> None:
        self.source = str(folder)
        self._folder = folder.resolve()
        files = _weights(self._folder)
        self._where = dict(sorted(files.items()))
        self.names = list(self._where)
        self.config = read_json(find(self._folder, "config.json"), JSON_LIMIT)
        check_config(self.config, self.source, (self.shape(name) for name in self.names))

    def _entry(self, name: str) -> Entry:
        if name not in self._where:
            raise refused(
                f"{self.source} has no tensor {name!r}",
                expected=f"one of its {len(self.names)} tensors",
                got=name,
                hint="`checkpoint.names` lists them",
            )
        return self._where[name].entries[name]

    def shape(self, name: str) -> tuple[int, ...]:
        return self._entry(name).shape

    def dtype(self, name: str) -> torch.dtype:
        return self._entry(name).dtype

    def read(self, name: str, dtype: torch.dtype | None = None) -> Tensor:
        self._entry(name)
        return self._where[name].read(name, dtype)

    def __contains__(self, name: str) -> bool:
        return name in self._where

    def beside(self, name: str) -> Any:
        if not (self._folder / name).exists():
            return None
        return parse_any(read_bytes(find(self._folder, name), JSON_LIMIT), name)

    @cached_property
    def tokenizer(self) -> Tokenizer | None:
        if not (self._folder / "tokenizer.json").exists():
            return None
        content = read_bytes(find(self._folder, "tokenizer.json"), TOKENIZER_LIMIT)
        return tokenizer_from_json(content, self)

    @cached_property
    def special(self) -> SpecialTokens:  # type: ignore[override]
        path = self._folder / "chat_template.jinja"
        template = read_bytes(find(self._folder, path.name), JSON_LIMIT).decode("utf-8") if path.exists() else None
        return special_tokens(self, template)


def find(folder: Path, name: str) -> Path:
    """The file of that name in a folder, which must be there and not lead out of it."""
    path = folder / name
    if not path.exists():
        raise refused(
            f"{name} is missing in {folder}",
            expected="config.json, and model.safetensors or its shards",
            got=_listing(folder),
            hint="give the folder in which config.json lies",
        )
    parent = path.parent.resolve()
    inside = {parent, *(part.parent / "blobs" for part in folder.parents if part.name == "snapshots")}
    if not parent.is_relative_to(folder) or path.resolve().parent not in inside:
        raise refused(
            f"{name} in {folder} is a link that leads out of the folder",
            expected="a file, or a link into the blobs of a hub cache",
            got=os.readlink(path) if path.is_symlink() else str(path.resolve()),
            hint="copy the file into the folder",
        )
    check_regular(path, name)
    return path


def _weights(folder: Path) -> dict[str, TensorFile]:
    """Which file each tensor is in."""
    if (folder / "model.safetensors").exists():
        return _all_of(find(folder, "model.safetensors"))
    if (folder / INDEX).exists():
        return _shards(folder, read_json(find(folder, INDEX), JSON_LIMIT).get("weight_map"))
    others = [path.name for path in folder.glob("*.safetensors")]
    if len(others) == 1:
        return _all_of(find(folder, others[0]))
    pickles = sorted(path.name for path in folder.iterdir() if path.suffix in PICKLES)
    if pickles and not others:
        raise refused(
            f"{folder} has only pickled weights, and no pickle is ever loaded: it can run any code",
            expected="model.safetensors, or shards with their index",
            got=", ".join(pickles[:3]),
            hint="where you trust the file: model = transformers.AutoModel.from_pretrained(folder), then "
            "model.save_pretrained(new_folder) writes safetensors",
        )
    snapshot = next(iter(sorted(folder.glob("snapshots/*/config.json"))), None)
    raise refused(
        f"{folder} has no weights that can be read",
        expected=f"model.safetensors, or shards with {INDEX}",
        got=_listing(folder),
        hint=f"give the folder in which config.json and the weights lie{f': {snapshot.parent}' if snapshot else ''}",
    )


def _all_of(path: Path) -> dict[str, TensorFile]:
    file = TensorFile(path)
    return dict.fromkeys(file.entries, file)


def _shards(folder: Path, weight_map: Any) -> dict[str, TensorFile]:
    if not isinstance(weight_map, dict) or not weight_map:
        raise _bad_index("no weight_map")
    files: dict[str, TensorFile] = {}
    for name, shard in weight_map.items():
        # Only the bare name of a file here: no folders, no drives, no way up.
        if not isinstance(shard, str) or not shard.endswith(".safetensors") or set(shard) & set("/\\:\0"):
            raise _bad_index(f"{name[:80]!r} in {str(shard)[:80]!r}")
        if shard not in files:
            files[shard] = TensorFile(find(folder, shard))
        if name not in files[shard].entries:
            raise _bad_index(f"{name[:80]!r} in {shard!r}, which does not hold it")
    return {name: files[shard] for name, shard in weight_map.items()}


def _bad_index(got: str) -> CheckpointError:
    return refused(
        f"{INDEX} cannot be followed",
        expected="for each tensor the name of a .safetensors file in the same folder that holds it",
        got=got,
        hint="fetch the checkpoint again, all of its files",
    )


def _listing(folder: Path) -> str:
    names = sorted(path.name for path in folder.iterdir())
    return (", ".join(names[:8]) + (", ..." if len(names) > 8 else "")) or "an empty folder"
