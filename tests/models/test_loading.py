"""From a name or a folder to a model and its tokenizer; what cannot work is refused before memory is taken."""

from __future__ import annotations

import json
import struct
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from tokenizers import Tokenizer, models

from model_files import LLAMA, llama_tensors, write_folder, write_gguf
from sightline.errors import InputError, InputTypeError, MissingExtraError, TooLargeError
from sightline.models import CheckpointError, build, load


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
def test_on_the_cpu_weights_are_float32_unless_asked(dtype: torch.dtype, tmp_path: Path) -> None:
    folder = write_folder(tmp_path, llama_tensors(dtype=dtype))
    model, tokenizer = load(folder)
    assert tokenizer is None
    assert {parameter.dtype for parameter in model.parameters()} == {torch.float32}
    assert {parameter.device.type for parameter in model.parameters()} == {"cpu"}
    assert {p.dtype for p in load(folder, dtype=torch.bfloat16)[0].parameters()} == {torch.bfloat16}


def test_a_folder_and_the_gguf_made_of_it_give_the_same(tmp_path: Path) -> None:
    tensors = llama_tensors()
    ids = torch.randint(0, 40, (2, 9))
    config = {**LLAMA, "rms_norm_eps": 2**-16}  # which float32 in the GGUF holds exactly
    a, _ = load(write_folder(tmp_path / "folder", tensors, config))
    b, _ = load(write_gguf(tmp_path / "x.gguf", tensors, config))
    c, _ = load(write_folder(tmp_path / "shards", tensors, config, shards=4))
    with torch.no_grad():
        assert torch.equal(a(ids), b(ids))
        assert torch.equal(a(ids), c(ids))


def test_loading_leaves_the_random_numbers_alone(tmp_path: Path) -> None:
    folder = write_folder(tmp_path, llama_tensors())
    torch.manual_seed(3)
    expected = torch.rand(4)
    torch.manual_seed(3)
    load(folder)
    assert torch.equal(torch.rand(4), expected)


@pytest.mark.parametrize("device", ["nonsense", "cuda:99", 3.5])
def test_a_device_that_is_not_there_is_refused(device: Any) -> None:
    with pytest.raises(InputError) as error:
        load("minilm", device=device)
    assert "this device cannot be used" in str(error.value)
    assert repr(device) in str(error.value)


@pytest.mark.parametrize("dtype", [torch.int64, torch.bool, "float32", torch.float8_e4m3fn])
def test_a_dtype_that_is_none_is_refused(dtype: Any) -> None:
    with pytest.raises(InputTypeError, match="weights cannot be of this dtype"):
        load("minilm", dtype=dtype)


@pytest.mark.parametrize("package", ["tokenizers", "gguf"])
def test_a_missing_package_names_the_extra(package: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path: Path | str = write_gguf(tmp_path / "x.gguf", llama_tensors()) if package == "gguf" else "minilm"
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(MissingExtraError) as error:
        load(path)
    assert f"`{package}`" in str(error.value)
    assert "pip install 'sightline[models]'" in str(error.value)


# Before memory is taken


@pytest.fixture
def never_built(monkeypatch: pytest.MonkeyPatch) -> None:
    def built(*_: object, **__: object) -> None:
        raise AssertionError("it was built")

    monkeypatch.setattr(build, "build", built)


@pytest.mark.usefixtures("never_built")
def test_a_tokenizer_that_does_not_match_is_refused_first(tmp_path: Path) -> None:
    write_folder(tmp_path, llama_tensors())
    Tokenizer(models.WordLevel({f"w{i}": i for i in range(41)}, unk_token="w0")).save(str(tmp_path / "tokenizer.json"))
    with pytest.raises(CheckpointError, match="belongs to another model"):
        load(tmp_path)


def sparse_folder(folder: Path, rows: int, width: int) -> Path:
    """A folder whose weights file claims a table of any size: the file is sparse and takes no room."""
    folder.mkdir(exist_ok=True)
    end = rows * width * 4
    entry = {"dtype": "F32", "shape": [rows, width], "data_offsets": [0, end]}
    header = json.dumps({"model.embed_tokens.weight": entry}).encode()
    with (folder / "model.safetensors").open("wb") as file:
        file.write(struct.pack("<Q", len(header)) + header)
        file.truncate(8 + len(header) + end)
    config = {**LLAMA, "vocab_size": rows, "hidden_size": width, "num_hidden_layers": 1, "intermediate_size": width}
    (folder / "config.json").write_text(json.dumps(config))
    return folder


@pytest.mark.usefixtures("never_built")
def test_weights_that_no_memory_holds_are_refused(tmp_path: Path) -> None:
    with pytest.raises(TooLargeError) as error:
        load(sparse_folder(tmp_path / "x", 1 << 29, 512))
    assert "would need 1.0 TiB" in str(error.value)
    assert "dtype=torch.bfloat16" in str(error.value)
