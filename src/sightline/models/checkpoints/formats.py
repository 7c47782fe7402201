"""The formats of checkpoints, and which of them a path is."""

from __future__ import annotations

from pathlib import Path

from sightline.models.checkpoints.base import Checkpoint, refused
from sightline.models.checkpoints.folder import FolderCheckpoint
from sightline.models.checkpoints.gguf.file import GGUFCheckpoint


def open_path(path: Path) -> Checkpoint:
    """Open a folder or a .gguf file."""
    if path.is_dir():
        return FolderCheckpoint(path)
    there = path.exists()
    if there and path.suffix == ".gguf":
        return GGUFCheckpoint(path)
    raise refused(
        f"{path} is not a checkpoint" if there else f"{path} is not there",
        expected="minilm, smollm2, a folder with config.json and *.safetensors, or a .gguf file",
        got="a file of another kind" if there else "nothing of that name",
        hint="give the folder the file lies in" if there else "check the path; nothing is downloaded",
    )
