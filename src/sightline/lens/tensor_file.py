"""Tensors in a safetensors file, with a description in JSON: written one at a time, and read with suspicion.

Whoever reads says first which shape and dtype a tensor must have; only then is it read. Everything that does not hold
is a ValueError in one line, for the caller to put into words.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable
from pathlib import Path
from types import TracebackType
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from sightline.errors import InputError, InputTypeError
from sightline.files import parse_json, size_of_file

# The names of the dtypes in a file.
DTYPES = {
    "F64": torch.float64,
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "F8_E5M2": torch.float8_e5m2,
    "F8_E4M3": torch.float8_e4m3fn,
    "I64": torch.int64,
    "I32": torch.int32,
    "I16": torch.int16,
    "I8": torch.int8,
    "U64": torch.uint64,
    "U32": torch.uint32,
    "U16": torch.uint16,
    "U8": torch.uint8,
    "BOOL": torch.bool,
}
_NAMES = {dtype: name for name, dtype in DTYPES.items()}
FLOATS = tuple(dtype for dtype in _NAMES if dtype.is_floating_point)
WHOLE = tuple(dtype for dtype in _NAMES if not dtype.is_floating_point and dtype != torch.bool)
# Names, shapes and a description: a few hundred bytes for each tensor. More is not ours, and would take much memory.
LARGEST_HEADER = 8 << 20
LARGEST_TEXT = 1 << 20


def write_tensors(path: Path, tensors: dict[str, Tensor], key: str | None = None, about: object = None) -> None:
    """Write a safetensors file, one tensor on the CPU at a time; `about` goes into its metadata under `key`."""
    header: dict[str, Any] = {}
    if key is not None:
        text = json.dumps(about)
        if len(text) > LARGEST_TEXT:
            raise InputError(
                "too much for one file",
                expected=f"a description of at most {LARGEST_TEXT:,} bytes",
                got=f"{len(text):,} bytes for {len(tensors):,} tensors",
                hint="a simpler mask, or a sight with fewer pictures: sl.look(q, k, …)",
            )
        header["__metadata__"] = {key: text}
    # The widest first, so that every tensor is aligned.
    names = sorted(tensors, key=lambda name: (-tensors[name].dtype.itemsize, name))
    end = 0
    for name in names:
        tensor = tensors[name]
        if tensor.dtype not in _NAMES:
            raise InputTypeError(
                f"{name} cannot be saved", expected="a plain dtype", got=tensor.dtype, hint="q.float(), k.float()"
            )
        start, end = end, end + tensor.numel() * tensor.dtype.itemsize
        header[name] = {"dtype": _NAMES[tensor.dtype], "shape": list(tensor.shape), "data_offsets": [start, end]}
    content = json.dumps(header).encode()
    content += b" " * (-len(content) % 8)
    with path.open("wb") as file:
        file.write(len(content).to_bytes(8, "little"))
        file.write(content)
        for name in names:
            if tensors[name].numel():
                # Bytes of any dtype: numpy has no bfloat16.
                file.write(tensors[name].detach().cpu().contiguous().flatten().view(torch.uint8).numpy().data)


class TensorFile:
    """A safetensors file that is open for reading.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     write_tensors(Path(folder, "x"), {"row": torch.ones(2)}, "me", {"format": 1})
    ...     with TensorFile(Path(folder, "x")) as file:
    ...         file.about("me"), file.shape("row"), file.take("row", (2,), FLOATS)
    ({'format': 1}, (2,), tensor([1., 1.]))
    """

    def __init__(self, path: Path) -> None:
        size = size_of_file(path)
        with path.open("rb") as file:
            header = int.from_bytes(file.read(8), "little")
        if size < 8 or header > min(LARGEST_HEADER, size - 8):
            raise ValueError(f"a header of {header:,} bytes in a file of {size:,}")
        self._file = _said(lambda: safe_open(str(path), framework="pt", device="cpu").__enter__())
        self.names: frozenset[str] = frozenset(self._file.keys())
        self._taken: set[str] = set()

    def __enter__(self) -> TensorFile:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._file.__exit__(kind, error, trace)

    def about(self, key: str) -> Any:
        """The description in the metadata."""
        text = (self._file.metadata() or {}).get(key)
        if text is None:
            raise ValueError(f"no description {key!r} in it")
        if len(text) > LARGEST_TEXT:
            raise ValueError(f"a description of {len(text):,} bytes, more than {LARGEST_TEXT:,}")
        return parse_json(text)

    def shape(self, name: str) -> tuple[int, ...]:
        """The shape of a tensor, without reading it."""
        return tuple(self._slice(name).get_shape())

    def dtype(self, name: str) -> torch.dtype:
        """The dtype of a tensor, without reading it."""
        said = self._slice(name).get_dtype()
        if said not in DTYPES:
            raise ValueError(f"{name}: the dtype {said}")
        return DTYPES[said]

    def take(self, name: str, shape: tuple[int, ...] | None, dtypes: Iterable[torch.dtype]) -> Tensor:
        """Read a tensor that has this shape (None: any), and one of these dtypes."""
        dtypes = tuple(dtypes)
        if self.dtype(name) not in dtypes:
            wanted = ", ".join(str(dtype).removeprefix("torch.") for dtype in dtypes)
            raise ValueError(f"{name}: the dtype {self.dtype(name)} instead of {wanted}")
        if shape is not None and self.shape(name) != shape:
            raise ValueError(f"{name}: the shape {self.shape(name)} instead of {shape}")
        self._taken.add(name)
        found: Tensor = _said(lambda: self._file.get_tensor(name))
        return found

    def check_all_taken(self) -> None:
        """A file holds nothing that its description does not name."""
        if rest := sorted(self.names - self._taken):
            raise ValueError(f"{short(rest[0])}: a tensor that nothing names")

    def _slice(self, name: str) -> Any:
        if name not in self.names:
            raise ValueError(f"{short(name)}: no such tensor in it")
        return _said(lambda: self._file.get_slice(name))


def _said(read: Callable[[], Any]) -> Any:
    """What safetensors and torch say of a damaged file, as a ValueError."""
    try:
        return read()
    except (SafetensorError, RuntimeError, OverflowError, TypeError) as error:
        raise ValueError(short(f"{type(error).__name__}: {error}", 300)) from error


def short(value: object, length: int = 60) -> str:
    """A value for a message, in one short line whatever it is."""
    if isinstance(value, dict | list):
        return f"a {type(value).__name__} of {len(value):,}"
    if isinstance(value, int) and not isinstance(value, bool) and abs(value) >= 1 << 64:
        return f"a whole number of about {math.ceil(value.bit_length() * math.log10(2)):,} digits"
    text = value if isinstance(value, str) else repr(value)
    text = " ".join(text[: 2 * length].split())
    return text if len(text) <= length else f"{text[:length]}…"
