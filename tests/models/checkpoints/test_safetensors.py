"""The header of a safetensors file is held against the file before anything else happens."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import save_file

from model_files import safetensors_bytes
from sightline.models.checkpoints.base import CheckpointError
from sightline.models.checkpoints.safetensors import DTYPES, HEADER_LIMIT, TensorFile, read_header


@pytest.mark.parametrize("dtype", DTYPES.values(), ids=str)
def test_every_dtype_reads_as_the_library_wrote_it(dtype: torch.dtype, tmp_path: Path) -> None:
    tensors = {"a": (torch.randn(3, 5) * 9).to(dtype), "empty": torch.zeros(0, 4, dtype=dtype), "one": torch.ones(())}
    save_file(tensors, tmp_path / "x.safetensors", metadata={"format": "pt"})
    file = TensorFile(tmp_path / "x.safetensors")
    assert set(file.entries) == set(tensors)
    for name, tensor in tensors.items():
        assert (file.entries[name].shape, file.entries[name].dtype) == (tuple(tensor.shape), tensor.dtype)
        assert torch.equal(file.read(name), tensor)


def test_a_tensor_has_memory_of_its_own(tmp_path: Path) -> None:
    """What happens to the file later does not change weights that were read, nor end the process."""
    path = tmp_path / "x.safetensors"
    save_file({"a": torch.arange(10.0)}, path)
    file = TensorFile(path)
    read = file.read("a")
    with path.open("r+b") as raw:
        raw.seek(-40, os.SEEK_END)
        raw.write(bytes(40))
    assert torch.equal(read, torch.arange(10.0))
    assert torch.equal(file.read("a", torch.float16), torch.zeros(10, dtype=torch.float16))
    os.truncate(path, path.stat().st_size - 5)
    with pytest.raises(CheckpointError, match="'a' without its last 5 bytes"):
        file.read("a")


def entry(**changes: object) -> dict[str, object]:
    return {"dtype": "F32", "shape": [2], "data_offsets": [0, 8], **changes}


HOSTILE = {
    "empty file": (b"", "a header of 0 bytes in a file of 0"),
    "seven bytes": (b"\1" * 7, "in a file of 7"),
    "a header longer than the file": (safetensors_bytes({}, length=1 << 60), "a header of 1152921504606846976 bytes"),
    "a negative length": (b"\xff" * 8 + b"{}", "a header of 18446744073709551615 bytes"),
    "not JSON": (safetensors_bytes(b"not json"), "cannot be understood"),
    "not UTF-8": (safetensors_bytes(b'{"\xff": 1}'), "cannot be understood"),
    "a list": (safetensors_bytes([1]), "a JSON list"),
    "deeper than any parser": (safetensors_bytes(b"[" * 100_000), "cannot be understood"),
    "a number of 10,000 digits": (safetensors_bytes(b'{"a": ' + b"9" * 10_000 + b"}"), "cannot be understood"),
    "a name twice": (safetensors_bytes(b'{"a": 1, "a": 2}'), "the key 'a' twice"),
    "no offsets": (safetensors_bytes({"a": {"dtype": "F32", "shape": [2]}}, bytes(8)), "without dtype, shape"),
    "three offsets": (safetensors_bytes({"a": entry(data_offsets=[0, 4, 8])}, bytes(8)), "without dtype, shape"),
    "not an entry": (safetensors_bytes({"a": 7}), "without dtype, shape"),
    "an unknown dtype": (safetensors_bytes({"a": entry(dtype="F128")}, bytes(8)), "'F128'"),
    "a dtype that is a list": (safetensors_bytes({"a": entry(dtype=[])}, bytes(8)), "dtype"),
    "a negative size": (safetensors_bytes({"a": entry(shape=[-2, -1])}, bytes(8)), "shape [-2, -1]"),
    "a size that is text": (safetensors_bytes({"a": entry(shape=["2"])}, bytes(8)), "shape ['2']"),
    "a size that is a fraction": (safetensors_bytes({"a": entry(shape=[2.0])}, bytes(8)), "shape [2.0]"),
    "a size that is true": (safetensors_bytes({"a": entry(shape=[True, 2])}, bytes(8)), "shape [True, 2]"),
    "sizes beyond 64 bits": (safetensors_bytes({"a": entry(shape=[1 << 40, 1 << 40])}, bytes(8)), "takes"),
    "a hundred axes": (safetensors_bytes({"a": entry(shape=[1] * 99 + [2])}, bytes(8)), "shape [1, 1"),
    "shape and bytes disagree": (safetensors_bytes({"a": entry(shape=[3])}, bytes(8)), "takes 12"),
    "bytes that end before they begin": (safetensors_bytes({"a": entry(data_offsets=[8, 0])}, bytes(8)), "-8 bytes"),
    "data cut short": (safetensors_bytes({"a": entry()}, bytes(7)), "7 bytes of tensors, where the header counts 8"),
    "data left over": (safetensors_bytes({"a": entry()}, bytes(9)), "9 bytes of tensors"),
    "a hole": (
        safetensors_bytes({"a": entry(), "b": entry(data_offsets=[12, 20])}, bytes(20)),
        "'b' from byte 12, where byte 8 was next",
    ),
    "one over the other": (
        safetensors_bytes({"a": entry(), "b": entry(data_offsets=[4, 12])}, bytes(12)),
        "'b' from byte 4, where byte 8 was next",
    ),
}


@pytest.mark.parametrize("content, message", HOSTILE.values(), ids=HOSTILE.keys())
def test_what_does_not_hold_is_refused(content: bytes, message: str, tmp_path: Path) -> None:
    path = tmp_path / "x.safetensors"
    path.write_bytes(content)
    with pytest.raises(CheckpointError) as error:
        read_header(path)
    assert message in str(error.value)
    assert "x.safetensors" in str(error.value)


def test_a_header_of_absurd_size_is_refused_unread(tmp_path: Path) -> None:
    path = tmp_path / "x.safetensors"
    with path.open("wb") as file:  # sparse: the file only claims its gigabyte
        file.write((HEADER_LIMIT + 1).to_bytes(8, "little"))
        file.truncate(1 << 30)
    with pytest.raises(CheckpointError, match="a header that is too large"):
        read_header(path)


def test_a_pipe_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "x.safetensors")
    with pytest.raises(CheckpointError, match="is not a file"):
        read_header(tmp_path / "x.safetensors")


@given(cut=st.integers(0, 10_000), place=st.integers(0, 10_000), byte=st.integers(0, 255))
def test_damage_is_refused_or_harmless(
    cut: int, place: int, byte: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """A cut file is always refused; a changed byte gives an error of ours or tensors of the size that is there."""
    path = tmp_path_factory.mktemp("damage") / "x.safetensors"
    save_file({"a": torch.arange(6.0).view(2, 3), "b": torch.zeros(4, dtype=torch.int64)}, path)
    whole = path.read_bytes()
    path.write_bytes(whole[: cut % len(whole)])
    with pytest.raises(CheckpointError):
        read_header(path)
    changed = bytearray(whole)
    changed[place % len(whole)] = byte
    path.write_bytes(changed)
    try:
        file = TensorFile(path)
        for name in file.entries:
            file.read(name)
    except CheckpointError:
        return
    assert sum(e.stop - e.start for e in file.entries.values()) == 56
