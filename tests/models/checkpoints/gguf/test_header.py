"""The header of a GGUF file: read as the library reads it, and refused where its counts cannot be."""

from __future__ import annotations

import os
import struct
import time
from pathlib import Path

import gguf
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from model_files import llama_tensors, write_gguf
from sightline.models.checkpoints.base import CheckpointError
from sightline.models.checkpoints.gguf.header import ITEMS_LIMIT, GGUFHeader

SETTINGS = {
    "a.bool": True,
    "a.int": 7,
    "a.float": 0.5,
    "a.text": "Grüße",
    "a.texts": ["x", "", "日本"],
    "a.numbers": [1, -2, 3],
    "a.floats": [0.5, 1.5],
    "general.alignment": 64,
}


def test_everything_is_as_the_library_reads_it(tmp_path: Path) -> None:
    path = write_gguf(tmp_path / "x.gguf", llama_tensors(), settings=SETTINGS, kind=gguf.GGMLQuantizationType.Q8_0)
    header, reader = GGUFHeader(path), gguf.GGUFReader(path)
    for key, field in reader.fields.items():
        if not key.startswith("GGUF."):
            assert key in header
            assert header.get(key) == field.contents(), key
    assert {key: header.get(key) for key in SETTINGS} == SETTINGS
    assert header.get("no.such", 5) == 5
    assert list(header.tensors) == [tensor.name for tensor in reader.tensors]
    for theirs in reader.tensors:
        ours = header.tensors[theirs.name]
        assert ours.shape == tuple(reversed(theirs.shape.tolist()))
        assert (ours.kind, ours.start, ours.size) == (theirs.tensor_type, theirs.data_offset, theirs.n_bytes)


# Files made by hand: "GGUF", version, tensors, settings, then settings and tensors


def text(content: str | bytes, length: int | None = None) -> bytes:
    content = content.encode() if isinstance(content, str) else content
    return struct.pack("<Q", len(content) if length is None else length) + content


def start(tensors: int = 0, settings: int = 0, version: int = 3) -> bytes:
    return b"GGUF" + struct.pack("<IQQ", version, tensors, settings)


def tensor(name: str = "t", shape: tuple[int, ...] = (4,), kind: int = 0, place: int = 0) -> bytes:
    return text(name) + struct.pack(f"<I{len(shape)}QIQ", len(shape), *shape, kind, place)


def array(kind: int, count: int, content: bytes = b"") -> bytes:
    return text("a") + struct.pack("<IIQ", 9, kind, count) + content


HOSTILE = {
    "empty": (b"", "does not begin with GGUF"),
    "another format": (b"GGML" + bytes(40), "does not begin with GGUF"),
    "version 1": (start(version=1), "version 1"),
    "big-endian": (start(version=3 << 24), "a big-endian file"),
    "2^60 tensors": (start(tensors=1 << 60), "1152921504606846976 tensors in a file of 24 bytes"),
    "2^64 - 1 settings": (start(settings=(1 << 64) - 1), "18446744073709551615 settings"),
    "more tensors than fit": (start(tensors=100) + bytes(1000), "100 tensors in a file of 1024"),
    "more settings than honest": (start(settings=5000) + bytes(100_000), "5000 settings"),
    "a key of 2^40 bytes": (start(settings=1) + text("k", 1 << 40) + bytes(99), "1099511627776 bytes in one text"),
    "a key that is cut": (start(settings=1) + text("k" * 50, 100), "100 bytes in one text"),
    "a key that is not UTF-8": (start(settings=1) + text(b"\xff") + struct.pack("<IB", 0, 1), "not UTF-8"),
    "a key twice": (start(settings=2) + 2 * (text("k") + struct.pack("<IB", 0, 1)), "the setting 'k' twice"),
    "an unknown type": (start(settings=1) + text("k") + struct.pack("<I", 77) + bytes(9), "the unknown type 77"),
    "a text of 2^50 bytes": (
        start(settings=1) + text("k") + struct.pack("<IQ", 8, 1 << 50) + bytes(20),
        "1125899906842624 bytes in one text",
    ),
    "an array of 2^61 numbers": (start(settings=1) + array(4, 1 << 61, bytes(64)), "items in one array"),
    "an array of more than there is": (start(settings=1) + array(8, 100, bytes(64)), "100 items in one array"),
    "an array of arrays": (start(settings=1) + array(9, 1, bytes(64)), "an array of the unknown type 9"),
    "an array with a long text": (
        start(settings=1) + array(8, 2, text("x") + text("y", 1 << 40)),
        "1099511627776 bytes in one text",
    ),
    "a tensor of 2^32 axes": (
        start(tensors=1) + text("t") + struct.pack("<I", (1 << 32) - 1) + bytes(64),
        "with 4294967295 axes",
    ),
    "a tensor of 2^120 elements": (start(tensors=1) + tensor(shape=(1 << 60, 1 << 60)) + bytes(64), "'t' in bytes"),
    "a tensor of a negative size": (start(tensors=1) + tensor(shape=((1 << 64) - 4,)) + bytes(64), "'t' in bytes"),
    "a tensor of an unknown type": (start(tensors=1) + tensor(kind=99) + bytes(64), "the unknown type 99"),
    "blocks that do not come out even": (
        start(tensors=1) + tensor(shape=(40, 4), kind=3) + bytes(200),
        "in blocks of 32",
    ),
    "a tensor beyond the end": (start(tensors=1) + tensor(place=1 << 20) + bytes(64), "'t' in bytes 1048640"),
    "a tensor that is cut": (start(tensors=1) + tensor(shape=(64,)) + bytes(64), "'t' in bytes 64"),
    "a tensor off the alignment": (start(tensors=1) + tensor(place=4) + bytes(99), "not a multiple of 32"),
    "one tensor over another": (
        start(tensors=2) + tensor("a", (16,)) + tensor("b", (16,), place=32) + bytes(200),
        "'b' in bytes",
    ),
    "a tensor twice": (start(tensors=2) + 2 * tensor() + bytes(64), "the tensor 't' twice"),
    "an alignment of 0": (
        start(settings=1) + text("general.alignment") + struct.pack("<II", 4, 0),
        "an alignment of 0",
    ),
    "an alignment of text": (
        start(settings=1) + text("general.alignment") + struct.pack("<I", 8) + text("32"),
        "an alignment of 32",
    ),
}


@pytest.mark.parametrize("content, message", HOSTILE.values(), ids=HOSTILE.keys())
def test_absurd_counts_are_refused(content: bytes, message: str, tmp_path: Path) -> None:
    path = tmp_path / "x.gguf"
    path.write_bytes(content)
    with pytest.raises(CheckpointError) as error:
        GGUFHeader(path)
    assert message in str(error.value)
    assert "x.gguf" in str(error.value)


def test_counts_that_a_sparse_file_could_hold_are_refused_too(tmp_path: Path) -> None:
    """A file may claim terabytes without having them, so its size alone is no measure."""
    for content in (
        start(tensors=1 << 40),
        start(settings=1 << 40),
        start(settings=1) + text("k", 1 << 30),
        start(settings=1) + array(0, 1 << 36),
        start(settings=1) + array(8, ITEMS_LIMIT + 1),
        start(settings=3) + 3 * array(0, ITEMS_LIMIT, bytes(ITEMS_LIMIT)),
        start(settings=200) + b"".join(text(f"k{i}") + struct.pack("<I", 8) + text("x" * 10**6) for i in range(200)),
    ):
        path = tmp_path / "sparse.gguf"
        with path.open("wb") as file:
            file.write(content)
            file.truncate(1 << 40)
        began = time.process_time()
        with pytest.raises(CheckpointError, match="is damaged"):
            GGUFHeader(path)
        assert time.process_time() - began < 5
        path.unlink()


def test_a_pipe_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "x.gguf")
    with pytest.raises(CheckpointError, match="is not a file"):
        GGUFHeader(tmp_path / "x.gguf")


@given(cut=st.integers(0, 1 << 20), place=st.integers(0, 1 << 20), bits=st.binary(min_size=1, max_size=8))
def test_damage_is_refused_or_harmless(
    cut: int, place: int, bits: bytes, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """A cut file is always refused; changed bytes give an error of ours, or a header inside of the file."""
    path = tmp_path_factory.mktemp("damage") / "x.gguf"
    whole = WHOLE.get("bytes") or WHOLE.setdefault("bytes", _small(path))
    path.write_bytes(whole[: cut % len(whole)])
    with pytest.raises(CheckpointError):
        GGUFHeader(path)
    at = place % len(whole)
    path.write_bytes(whole[:at] + bits[: len(whole) - at] + whole[at + len(bits) :])
    try:
        header = GGUFHeader(path)
        for key in list(header._settings):
            header.get(key)
    except CheckpointError:
        return
    assert all(t.start + t.size <= len(whole) for t in header.tensors.values())


WHOLE: dict[str, bytes] = {}


def _small(path: Path) -> bytes:
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_array("a.texts", ["x", "yz"])
    writer.add_array("a.numbers", [1, 2, 3])
    writer.add_float32("a.float", 0.5)
    writer.add_tensor("t", np.arange(8, dtype=np.float32).reshape(2, 4))
    writer.add_tensor("u", np.arange(8, dtype=np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path.read_bytes()
