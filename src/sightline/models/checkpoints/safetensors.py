"""Tensors in safetensors files: the header is checked against the file, then tensors are read one at a time.

A file is eight bytes (the length of the header), the header (JSON: of each tensor its dtype, shape, and where its bytes
begin and end), and the bytes. The header must hold in all of this before anything else is read:

- it is no longer than the file, and than any honest header;
- every dtype is known, and shape times item size is as long as the bytes;
- the tensors lie one after the other, without holes, and end where the file ends.

So whatever a header promises is there: nobody can make us reserve more memory than the file is long. Tensors are then
read, not mapped: the pages of a map would count as memory a second time, and a file that shrinks would end the process.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from sightline.memory import readable
from sightline.models.checkpoints.base import CheckpointError, refused
from sightline.models.checkpoints.strict_json import check_regular, parse_json

# Some 70,000 tensors. The format itself allows 100 MB, which takes gigabytes once it is parsed.
HEADER_LIMIT = 8 << 20
AXES_LIMIT = 8

DTYPES = {
    "BOOL": torch.bool,
    "U8": torch.uint8,
    "I8": torch.int8,
    "I16": torch.int16,
    "I32": torch.int32,
    "I64": torch.int64,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "F32": torch.float32,
    "F64": torch.float64,
}


class Entry(NamedTuple):
    """What the header says of one tensor, and where in the file its bytes begin and end."""

    dtype: torch.dtype
    shape: tuple[int, ...]
    start: int
    stop: int


class TensorFile:
    """One safetensors file, opened and checked; its tensors are read when asked for."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.entries = read_header(path)

    def read(self, name: str, dtype: torch.dtype | None = None) -> Tensor:
        """One tensor in memory of its own."""
        entry = self.entries[name]
        content = torch.empty(entry.stop - entry.start, dtype=torch.uint8)
        left = content.numpy().data
        with self.path.open("rb", buffering=0) as file:
            file.seek(entry.start)
            # One call reads at most 2 GiB.
            while len(left) and (n := file.readinto(left)):
                left = left[n:]
        if len(left):
            raise _damaged(self.path.name, f"{name!r} without its last {len(left)} bytes")
        return content.view(entry.dtype).view(entry.shape).to(dtype or entry.dtype)


def read_header(path: Path) -> dict[str, Entry]:
    """The tensors of a file, by name, after every check that needs only the header."""
    check_regular(path, path.name)
    size = path.stat().st_size
    with path.open("rb") as file:
        first = file.read(8)
        length = int.from_bytes(first, "little")
        if len(first) < 8 or length > size - 8:
            raise _damaged(path.name, f"a header of {length} bytes in a file of {size}")
        if length > HEADER_LIMIT:
            raise refused(
                f"{path.name} has a header that is too large",
                expected=f"at most {readable(HEADER_LIMIT)}",
                got=readable(length),
                hint="fetch the file again; honest headers have about 100 bytes per tensor",
            )
        header = parse_json(file.read(length), f"the header of {path.name}")
    header.pop("__metadata__", None)
    entries = {name: _entry(path.name, name, said) for name, said in header.items()}
    _check_layout(path.name, entries, size - 8 - length)
    skip = 8 + length
    return {name: e._replace(start=skip + e.start, stop=skip + e.stop) for name, e in entries.items()}


def _entry(file: str, name: str, said: Any) -> Entry:
    try:
        kind, shape, (start, stop) = said["dtype"], said["shape"], said["data_offsets"]
    except (KeyError, TypeError, ValueError):
        raise _damaged(file, f"{name!r} without dtype, shape and data_offsets") from None
    if not isinstance(kind, str) or kind not in DTYPES:
        raise refused(
            f"{file}: {name!r} has a dtype that Sightline does not read",
            expected=f"one of {', '.join(DTYPES)}",
            got=repr(kind)[:80],
            hint="save the checkpoint as float32, bfloat16 or float16",
        )
    numbers = [*shape, start, stop] if isinstance(shape, list) else [None]
    if len(numbers) > AXES_LIMIT + 2 or not all(type(n) is int and 0 <= n < 1 << 62 for n in numbers):
        raise _damaged(file, f"{name!r} with shape {str(shape)[:80]} and bytes {str([start, stop])[:80]}")
    needed = math.prod(shape) * DTYPES[kind].itemsize
    if stop - start != needed:
        raise _damaged(file, f"{name!r} with {stop - start} bytes, where {shape} of {kind} takes {needed}")
    return Entry(DTYPES[kind], tuple(shape), start, stop)


def _check_layout(file: str, entries: dict[str, Entry], size: int) -> None:
    end = 0
    for name, entry in sorted(entries.items(), key=lambda item: (item[1].start, item[1].stop)):
        if entry.start != end:
            raise _damaged(file, f"{name!r} from byte {entry.start}, where byte {end} was next")
        end = entry.stop
    if end != size:
        raise _damaged(file, f"{size} bytes of tensors, where the header counts {end}")


def _damaged(file: str, got: str) -> CheckpointError:
    return refused(
        f"{file} is damaged",
        expected="a whole safetensors file, its header in agreement with its bytes",
        got=got,
        hint="fetch the file again; a copy may have been cut short",
    )
