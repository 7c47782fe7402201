"""The header of a GGUF file, read with every count held against what the file can hold.

The library's own reader believes the counts it finds, and makes two numpy views for each of 50,000 tokens (4 s for
SmolLM2). Here nothing is read that is not asked for: arrays are passed over, and read when somebody wants them. The
library's tables say how large a block of each quantisation is.

A file is: "GGUF", version, number of tensors, number of settings; the settings (key, type, value); for each tensor its
name, axes (fastest first), type and place; then, aligned, the tensors.
"""

from __future__ import annotations

import math
import struct
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

from sightline.errors import MissingExtraError
from sightline.models.checkpoints.base import CheckpointError, refused
from sightline.models.checkpoints.strict_json import check_regular

# Far above what honest files have: some 200 settings, 3,000 tensors, 300,000 tokens and 600,000 merges of a few bytes.
SETTINGS_LIMIT = 1 << 12
TENSORS_LIMIT = 1 << 16
ITEMS_LIMIT = 1 << 22
TEXT_LIMIT = 1 << 20
HEADER_LIMIT = 128 << 20
AXES_LIMIT = 4

_STRING, _ARRAY = 8, 9
_NUMBERS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}


class GGUFTensor(NamedTuple):
    """One tensor: its shape (slowest axis first, as torch counts), the number of its type, and where its bytes are."""

    shape: tuple[int, ...]
    kind: int
    start: int
    size: int


class _Array(NamedTuple):
    kind: int
    length: int
    start: int


class GGUFHeader:
    """The settings and tensors of a GGUF file."""

    def __init__(self, path: Path) -> None:
        self.path = path
        check_regular(path, path.name)
        with path.open("rb") as file:
            reader = _Reader(file, path.name, path.stat().st_size)
            tensors, settings = _begin(reader)
            self._settings: dict[str, Any] = {}
            for _ in range(settings):
                key = reader.text(TEXT_LIMIT)
                if key in self._settings:
                    raise reader.damaged(f"the setting {key[:80]!r} twice")
                self._settings[key] = reader.value()
            self.tensors = _tensors(reader, tensors, self._settings.get("general.alignment", 32))

    def __contains__(self, key: str) -> bool:
        return key in self._settings

    def get(self, key: str, default: Any = None) -> Any:
        """A setting: a number, a text, or a list of either."""
        value = self._settings.get(key, default)
        if isinstance(value, _Array):
            with self.path.open("rb") as file:
                reader = _Reader(file, self.path.name, self.path.stat().st_size)
                reader.go(value.start)
                return reader.items(value)
        return value


def gguf_library() -> Any:
    """The `gguf` package, or an error that names the extra it is in."""
    try:
        import gguf
    except ModuleNotFoundError as error:
        raise MissingExtraError(
            "GGUF files need the package `gguf`",
            expected="the extra `models`",
            got="no module named gguf",
            hint="pip install 'sightline[models]'",
        ) from error
    return gguf


class _Reader:
    """A file from front to back, never beyond its end."""

    def __init__(self, file: BinaryIO, name: str, size: int) -> None:
        self.file, self.name, self.size, self.place = file, name, size, 0
        self.items_seen = 0

    def damaged(self, got: str) -> CheckpointError:
        return refused(
            f"{self.name} is damaged",
            expected="a whole GGUF file, its counts in agreement with its size",
            got=got,
            hint="fetch the file again; a copy may have been cut short",
        )

    def go(self, place: int) -> None:
        if place > min(self.size, HEADER_LIMIT):
            raise self.damaged(f"a header of {place} bytes or more in a file of {self.size}")
        self.file.seek(place)
        self.place = place

    def bytes(self, n: int) -> bytes:
        content = self.file.read(n) if self.place + n <= min(self.size, HEADER_LIMIT) else b""
        if len(content) < n:
            raise self.damaged(f"a header that wants {n} bytes at {self.place} of {self.size}")
        self.place += n
        return content

    def number(self, kind: int) -> Any:
        form = _NUMBERS[kind]
        return struct.unpack(f"<{form}", self.bytes(struct.calcsize(form)))[0]

    def count(self, what: str, limit: int, least: int) -> int:
        """How many there are of something that takes at least so many bytes each."""
        n = self.number(10)
        if n > limit or n * least > self.size - self.place:
            raise self.damaged(f"{n} {what} in a file of {self.size} bytes")
        return int(n)

    def text(self, limit: int) -> str:
        content = self.bytes(self.count("bytes in one text", limit, 1))
        try:
            return content.decode("utf-8")
        except UnicodeDecodeError as error:
            raise self.damaged(f"a text that is not UTF-8: {error}") from error

    def value(self) -> Any:
        """A number or a text; of an array only where it is."""
        kind = self.number(4)
        if kind == _STRING:
            return self.text(TEXT_LIMIT)
        if kind in _NUMBERS:
            return self.number(kind)
        if kind != _ARRAY:
            raise self.damaged(f"a setting of the unknown type {kind}")
        kind = self.number(4)
        if kind != _STRING and kind not in _NUMBERS:
            raise self.damaged(f"an array of the unknown type {kind}")
        width = 8 if kind == _STRING else struct.calcsize(_NUMBERS[kind])
        count = self.count("items in one array", ITEMS_LIMIT, width)
        array = _Array(kind, count, self.place)
        self.items_seen += array.length
        if self.items_seen > ITEMS_LIMIT:
            raise self.damaged(f"more than {ITEMS_LIMIT} items in its arrays")
        if kind == _STRING:
            for _ in range(array.length):
                length = self.count("bytes in one text", TEXT_LIMIT, 1)
                self.go(self.place + length)
        else:
            self.go(self.place + width * array.length)
        return array

    def items(self, array: _Array) -> list[Any]:
        if array.kind == _STRING:
            return [self.text(TEXT_LIMIT) for _ in range(array.length)]
        form = f"<{array.length}{_NUMBERS[array.kind]}"
        return list(struct.unpack(form, self.bytes(struct.calcsize(form))))


def _begin(reader: _Reader) -> tuple[int, int]:
    if reader.size < 24 or reader.bytes(4) != b"GGUF":
        raise reader.damaged("a file that does not begin with GGUF")
    version = reader.number(4)
    if version not in (2, 3):
        raise refused(
            f"{reader.name} is a GGUF file of a version that Sightline does not read",
            expected="version 2 or 3, little-endian",
            got=f"version {version}" if version < 1 << 16 else "a big-endian file",
            hint="convert the model again with a current llama.cpp",
        )
    # A tensor has at least a name's length, a number of axes, a type and a place; a setting a length, a type, a value.
    return reader.count("tensors", TENSORS_LIMIT, 24), reader.count("settings", SETTINGS_LIMIT, 13)


def _tensors(reader: _Reader, count: int, alignment: Any) -> dict[str, GGUFTensor]:
    sizes = gguf_library().constants.GGML_QUANT_SIZES
    if not isinstance(alignment, int) or not 1 <= alignment <= 1 << 16 or alignment & (alignment - 1):
        raise reader.damaged(f"an alignment of {str(alignment)[:80]}")
    tensors: dict[str, GGUFTensor] = {}
    for _ in range(count):
        name = reader.text(1 << 10)
        axes = reader.number(4)
        if axes > AXES_LIMIT:
            raise reader.damaged(f"{name[:80]!r} with {axes} axes")
        shape = tuple(reader.number(10) for _ in range(axes))
        kind, place = reader.number(4), reader.number(10)
        if name in tensors:
            raise reader.damaged(f"the tensor {name[:80]!r} twice")
        if kind not in sizes:
            raise reader.damaged(f"{name[:80]!r} of the unknown type {kind}")
        block, width = sizes[kind]
        elements = math.prod(shape)
        if elements % block or (shape and shape[0] % block):
            raise reader.damaged(f"{name[:80]!r} of shape {list(shape)} in blocks of {block}")
        if place % alignment:
            raise reader.damaged(f"{name[:80]!r} at byte {place}, not a multiple of {alignment}")
        tensors[name] = GGUFTensor(shape[::-1], kind, place, elements // block * width)
    first = reader.place + -reader.place % alignment
    return _placed(reader, tensors, first)


def _placed(reader: _Reader, tensors: dict[str, GGUFTensor], first: int) -> dict[str, GGUFTensor]:
    """The tensors with their places counted from the beginning of the file: inside of it, and none over another."""
    placed = {name: tensor._replace(start=first + tensor.start) for name, tensor in tensors.items()}
    end = first
    for name, tensor in sorted(placed.items(), key=lambda item: item[1].start):
        if tensor.start < end or tensor.start + tensor.size > reader.size:
            raise reader.damaged(
                f"{name[:80]!r} in bytes {tensor.start} to {tensor.start + tensor.size}, "
                f"where {end} to {reader.size} are left"
            )
        end = tensor.start + tensor.size
    return placed
