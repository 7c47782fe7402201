"""Hostile checkpoints of every kind, all given to `load` in one process, which must not grow by them."""

from __future__ import annotations

import json
import struct
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer, models

from model_files import LLAMA, llama_tensors, safetensors_bytes, write_folder, write_gguf, write_index

# In megabytes, over what the process had with honest checkpoints; what the hostile ones claim takes far more.
GROWTH = 8
SECONDS = 5


def truncated_header(path: Path) -> Path:
    write_folder(path, llama_tensors())
    file = path / "model.safetensors"
    file.write_bytes(file.read_bytes()[:100])
    return path


def truncated_data(path: Path) -> Path:
    write_folder(path, llama_tensors())
    file = path / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-1])
    return path


def oversized_header(path: Path) -> Path:
    write_folder(path, llama_tensors())
    (path / "model.safetensors").write_bytes(safetensors_bytes({}, bytes(100), length=1 << 62))
    return path


def header_of_a_sparse_gigabyte(path: Path) -> Path:
    write_folder(path, llama_tensors())
    with (path / "model.safetensors").open("wb") as file:
        file.write(struct.pack("<Q", 1 << 30) + b"{")
        file.truncate(1 << 31)
    return path


def shape_beyond_the_file(path: Path) -> Path:
    write_folder(path, llama_tensors())
    entry = {"dtype": "F32", "shape": [1 << 20, 1 << 20], "data_offsets": [0, 1 << 42]}
    (path / "model.safetensors").write_bytes(safetensors_bytes({"model.norm.weight": entry}, bytes(64)))
    return path


def weights_of_a_sparse_terabyte(path: Path) -> Path:
    path.mkdir()
    entry = {"dtype": "F32", "shape": [1 << 29, 512], "data_offsets": [0, 1 << 40]}
    content = safetensors_bytes({"model.embed_tokens.weight": entry})
    with (path / "model.safetensors").open("wb") as file:
        file.write(content)
        file.truncate(len(content) + (1 << 40))
    config = {**LLAMA, "vocab_size": 1 << 29, "hidden_size": 512, "num_hidden_layers": 1}
    (path / "config.json").write_text(json.dumps(config))
    return path


def config_with(**changes: object) -> Callable[[Path], Path]:
    def make(path: Path) -> Path:
        return write_folder(path, llama_tensors(), {**LLAMA, **changes})

    return make


def an_honest_axis_for_a_million_heads(path: Path) -> Path:
    """One tensor long enough for the heads to pass as an axis: the shapes of the others still say no."""
    tensors = {**llama_tensors(), "extra": torch.zeros(1_000_000, dtype=torch.int8)}
    return write_folder(path, tensors, {**LLAMA, "num_attention_heads": 1_000_000, "head_dim": 1})


def index_pointing_outside(path: Path) -> Path:
    write_folder(path, llama_tensors(), shards=2)
    save_file({"model.norm.weight": torch.ones(32)}, path.parent / "outside.safetensors")
    where = json.loads((path / "model.safetensors.index.json").read_text())["weight_map"]
    write_index(path, {**where, "model.norm.weight": "../outside.safetensors"})
    return path


def index_linked_outside(path: Path) -> Path:
    write_folder(path, llama_tensors(), shards=2)
    shard = path / "model-00001-of-00002.safetensors"
    shard.rename(path.parent / "linked.safetensors")
    shard.symlink_to("../linked.safetensors")
    return path


def gguf_bytes(*content: bytes, size: int = 0) -> Callable[[Path], Path]:
    def make(path: Path) -> Path:
        path = path.with_suffix(".gguf")
        with path.open("wb") as file:
            file.write(b"GGUF" + struct.pack("<I", 3) + b"".join(content))
            file.truncate(max(size, file.tell()))
        return path

    return make


def counts(tensors: int, settings: int) -> bytes:
    return struct.pack("<QQ", tensors, settings)


def gguf_cut_short(path: Path) -> Path:
    path = write_gguf(path.with_suffix(".gguf"), llama_tensors())
    path.write_bytes(path.read_bytes()[:-100])
    return path


def tokenizer_of_another_model(path: Path) -> Path:
    write_folder(path, llama_tensors())
    words = {f"w{i}": i for i in range(41)}
    Tokenizer(models.WordLevel(words, unk_token="w0")).save(str(path / "tokenizer.json"))
    return path


def only_a_pickle(path: Path) -> Path:
    path.mkdir()
    (path / "config.json").write_text(json.dumps(LLAMA))
    (path / "pytorch_model.bin").write_bytes(b"\x80\x04cbuiltins\nexit\n(I7\ntR.")
    return path


HOSTILE: dict[str, tuple[Callable[[Path], Path], str]] = {
    "truncated header": (truncated_header, "model.safetensors is damaged"),
    "truncated data": (truncated_data, "model.safetensors is damaged"),
    "oversized header": (oversized_header, "a header of 4611686018427387904 bytes"),
    "header of a sparse gigabyte": (header_of_a_sparse_gigabyte, "has a header that is too large"),
    "shape beyond the file": (shape_beyond_the_file, "model.safetensors is damaged"),
    "sparse terabyte": (weights_of_a_sparse_terabyte, "would need 1.0 TiB"),
    "a million heads": (config_with(num_attention_heads=1_000_000), "num_attention_heads of at most 64"),
    "a million heads that pass for an axis": (an_honest_axis_for_a_million_heads, "do not fit its config"),
    "a million layers": (config_with(num_hidden_layers=1_000_000), "num_hidden_layers of at most 20"),
    "layers that are not there": (config_with(num_hidden_layers=19), "layers"),
    "wider than its tensors": (config_with(hidden_size=64, intermediate_size=64), "of shape"),
    "positions without end": (config_with(max_position_embeddings=1 << 29), "max_position_embeddings"),
    "an epsilon that is not a number": (config_with(rms_norm_eps=float("nan")), "rms_norm_eps=nan"),
    "no sizes at all": (lambda path: write_folder(path, llama_tensors(), {"model_type": "llama"}), "hidden_size"),
    "an unknown family": (config_with(model_type="no-such"), "no-such"),
    "index pointing outside": (index_pointing_outside, "model.safetensors.index.json cannot be followed"),
    "shard linked outside": (index_linked_outside, "is a link that leads out of the folder"),
    "GGUF of 2^60 tensors": (gguf_bytes(counts(1 << 60, 0)), "1152921504606846976 tensors"),
    "GGUF of 2^60 settings": (gguf_bytes(counts(0, 1 << 60)), "1152921504606846976 settings"),
    "GGUF of 2^40 tensors, sparse": (gguf_bytes(counts(1 << 36, 0), size=1 << 42), "tensors in a file"),
    "GGUF with a text of 2^39 bytes, sparse": (
        gguf_bytes(counts(0, 1), struct.pack("<Q", 1 << 39), size=1 << 41),
        "bytes in one text",
    ),
    "GGUF cut short": (gguf_cut_short, "is damaged"),
    "tokenizer of another model": (tokenizer_of_another_model, "belongs to another model"),
    "only a pickle": (only_a_pickle, "no pickle is ever loaded"),
}

SCRIPT = """
import json, resource, sys, time
from pathlib import Path
from sightline.errors import SightlineError
from sightline.models import load

def memory(which):
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(which + ":")) / 1024

honest, *hostile = json.load(sys.stdin)
for path in honest:  # everything that is imported on the way is here now
    load(path)
room = int((memory("VmSize") + 512) * 2**20)
resource.setrlimit(resource.RLIMIT_AS, (room, room))  # not even reserved, let alone used

def answer(path):
    Path("/proc/self/clear_refs").write_text("5")  # the peak begins anew
    before, began = memory("VmRSS"), time.process_time()
    try:
        said = "loaded" if path else str(len(bytearray(64 << 20)))
        if path:
            load(path)
    except SightlineError as error:
        said = str(error)
    return [said, memory("VmHWM") - before, time.process_time() - began]

json.dump([answer(path) for path in (None, *hostile)], sys.stdout)
"""


@pytest.fixture(scope="module")
def answers(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[str, float, float]]:
    folder = tmp_path_factory.mktemp("hostile")
    honest = [
        str(write_folder(folder / "honest", llama_tensors(), shards=2)),
        str(write_gguf(folder / "honest.gguf", llama_tensors())),
    ]
    paths = [str(make(folder / f"case{i}")) for i, (make, _) in enumerate(HOSTILE.values())]
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT],
        input=json.dumps([honest, *paths]),
        capture_output=True,
        text=True,
        check=False,
        timeout=240,
    )
    assert done.returncode == 0, done.stderr
    control, *rest = json.loads(done.stdout)
    assert 60 < control[1] < 80, "64 MiB that were taken must be seen, or the other figures mean nothing"
    return dict(zip(HOSTILE, rest, strict=True))


@pytest.mark.parametrize("case", HOSTILE)
def test_refused_before_memory_is_taken(case: str, answers: dict[str, tuple[str, float, float]]) -> None:
    said, growth, seconds = answers[case]
    assert said != "loaded"
    assert HOSTILE[case][1] in said
    assert [line.split(":")[0].strip() for line in said.splitlines()[1:4]] == ["expected", "got", "try"]
    assert growth < GROWTH
    assert seconds < SECONDS
