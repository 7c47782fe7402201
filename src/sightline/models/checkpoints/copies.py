"""A copy of a checkpoint in the form that loads fastest, kept in the user's cache folder.

The copy is itself a checkpoint folder (config.json, model.safetensors, tokenizer.json) with a list of its files, their
sizes, times and sums (sightline.json). It is written to a folder beside its place and renamed, so that it is there as a
whole or not at all, also when two processes write at once. A cache that cannot be used never stops anybody: `store`
then says why in a warning and gives None.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import shutil
import tempfile
import time
import warnings
from pathlib import Path
from secrets import token_hex
from typing import Any

import torch

from sightline.folders import cache_folder
from sightline.models.checkpoints.base import Checkpoint, CheckpointError
from sightline.models.checkpoints.safetensors import DTYPES
from sightline.models.checkpoints.strict_json import read_json

FORMAT = 1
LIST = "sightline.json"
LIST_LIMIT = 1 << 16
PART = ".part-"
# A folder that was being written this long ago belongs to a process that is gone.
ABANDONED_S = 3600.0
# How often a copy is put into its place, if others put damaged ones there at the same time.
_TRIES = 20


def place(name: str, source_sum: str) -> Path:
    """The folder of a copy; another version of the weights, or of this file's format, has another one."""
    return cache_folder() / f"{name}-{source_sum[:12]}-{FORMAT}"


def find(name: str, source_sum: str) -> Path | None:
    """The folder of a copy whose files have the sizes and times they had when it was made, or None."""
    try:
        folder = place(name, source_sum)
        for file, said in _listed(folder, source_sum).items():
            stat = (folder / file).stat()
            if (said["size"], said["time"]) != (stat.st_size, stat.st_mtime_ns):
                return None
    except (OSError, RuntimeError, CheckpointError, KeyError, TypeError, AttributeError):
        return None
    return folder


def wrong_files(folder: Path, source_sum: str) -> list[str]:
    """The files of a copy that are not what was written: every byte is read."""
    try:
        files = _listed(folder, source_sum)
        return [file for file, said in files.items() if sha256(folder / file) != said["sha256"]]
    except (OSError, CheckpointError, KeyError, TypeError, AttributeError):
        return [LIST]


def store(name: str, source_sum: str, checkpoint: Checkpoint) -> Path | None:
    """Write a copy, and give its folder; None, with a warning, if there is no room or no permission for it."""
    part = None
    try:
        final = place(name, source_sum)
        final.parent.mkdir(parents=True, exist_ok=True)
        _sweep(final.parent)
        # Made as any folder is made, for whom the umask allows; tempfile's are for their owner alone.
        part = final.parent / f"{PART}{token_hex(6)}"
        part.mkdir()
        needed = sum(math.prod(checkpoint.shape(n)) * checkpoint.dtype(n).itemsize for n in checkpoint.names)
        if shutil.disk_usage(part).free < 1.1 * needed:
            raise OSError(f"{needed} bytes would hardly fit")
        _write(part, source_sum, checkpoint)
        _publish(part, final, name, source_sum)
        return final
    except (OSError, RuntimeError) as error:
        warnings.warn(f"{name} is loaded, but not cached, and will load slower again: {error}", stacklevel=2)
        return None
    finally:
        if part is not None:
            shutil.rmtree(part, ignore_errors=True)


def sha256(path: Path) -> str:
    """The sum of a file, as hexadecimal digits."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _listed(folder: Path, source_sum: str) -> dict[str, dict[str, Any]]:
    said = read_json(folder / LIST, LIST_LIMIT)
    if said["format"] != FORMAT or said["source"] != source_sum or "model.safetensors" not in said["files"]:
        raise KeyError("another format, or a copy of something else")
    files: dict[str, dict[str, Any]] = said["files"]
    return files


def _write(folder: Path, source_sum: str, checkpoint: Checkpoint) -> None:
    special, tokenizer = checkpoint.special, checkpoint.tokenizer
    generation = {"bos_token_id": special.bos, "eos_token_id": list(special.eos), "pad_token_id": special.pad}
    about: dict[str, Any] = {"chat_template": special.chat_template}
    if tokenizer is not None and special.unk is not None:
        about["unk_token"] = tokenizer.id_to_token(special.unk)
    texts = {
        "config.json": json.dumps(checkpoint.config, indent=1),
        "generation_config.json": json.dumps(generation, indent=1),
        "tokenizer_config.json": json.dumps(about, indent=1),
    }
    if tokenizer is not None:
        texts["tokenizer.json"] = tokenizer.to_str()
    for name, text in texts.items():
        (folder / name).write_text(text, encoding="utf-8")
    sums = {name: hashlib.sha256(text.encode()).hexdigest() for name, text in texts.items()}
    sums["model.safetensors"] = _write_tensors(folder / "model.safetensors", checkpoint)
    stats = {name: (folder / name).stat() for name in sums}
    files = {n: {"size": stats[n].st_size, "time": stats[n].st_mtime_ns, "sha256": sums[n]} for n in sums}
    said = {"format": FORMAT, "source": source_sum, "files": files}
    (folder / LIST).write_text(json.dumps(said, indent=1), encoding="utf-8")


def _write_tensors(path: Path, checkpoint: Checkpoint) -> str:
    """A safetensors file, one tensor in memory at a time; gives its sum."""
    kinds = {dtype: kind for kind, dtype in DTYPES.items()}
    header, end = {}, 0
    for name in checkpoint.names:
        shape, dtype = checkpoint.shape(name), checkpoint.dtype(name)
        start, end = end, end + math.prod(shape) * dtype.itemsize
        header[name] = {"dtype": kinds[dtype], "shape": list(shape), "data_offsets": [start, end]}
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    total = hashlib.sha256()
    with path.open("wb") as file:
        for content in (len(text).to_bytes(8, "little"), text):
            file.write(content)
            total.update(content)
        for name in checkpoint.names:
            # Bytes of any dtype; bfloat16 has no numpy type of its own.
            numbers = checkpoint.read(name).flatten().view(torch.uint8).numpy()
            file.write(numbers.data)
            total.update(numbers.data)
        # Before it is renamed: after a loss of power a whole list with empty files would be believed.
        file.flush()
        os.fsync(file.fileno())
    return total.hexdigest()


def _publish(part: Path, final: Path, name: str, source_sum: str) -> None:
    """Rename the finished folder into place; a damaged copy there is put aside, a good one of another process wins."""
    for _ in range(_TRIES):
        try:
            part.rename(final)
            return
        except OSError:
            if find(name, source_sum) is not None:
                return
            aside = Path(tempfile.mkdtemp(prefix=PART, dir=final.parent))
            try:
                final.rename(aside / "old")
            except FileNotFoundError:
                pass  # another process put it aside in the same moment
            finally:
                shutil.rmtree(aside, ignore_errors=True)
    raise OSError(f"others write to {final} all the time")


def _sweep(folder: Path) -> None:
    """Remove what processes left behind that were stopped while they wrote."""
    for left in folder.glob(f"{PART}*"):
        try:
            abandoned = time.time() - left.stat().st_mtime > ABANDONED_S
        except FileNotFoundError:
            continue  # its process finished in this moment
        if abandoned:
            shutil.rmtree(left, ignore_errors=True)
