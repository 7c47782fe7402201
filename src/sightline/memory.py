"""Refusing what would not fit, before it is made."""

from __future__ import annotations

import os

import torch

from sightline.errors import TooLargeError

# The share of the free memory that one result may take.
_SHARE = 0.8
_SMALL = 64 << 20


def require(what: str, size: int, device: torch.device, hint: str) -> None:
    """Raise TooLargeError if a result of `size` bytes would not fit into the memory that is free."""
    if size < _SMALL:
        return  # asking how much is free takes longer than a small result
    free = available(device)
    if size > _SHARE * free:
        raise TooLargeError(
            f"{what} would need {readable(size)}",
            expected=f"at most {readable(int(_SHARE * free))}, most of what is free on {device}",
            got=readable(size),
            hint=hint,
        )


def available(device: torch.device) -> int:
    """Bytes of memory that are free on a device."""
    if device.type == "cuda":
        return (
            torch.cuda.mem_get_info(device)[0]
            + torch.cuda.memory_reserved(device)
            - torch.cuda.memory_allocated(device)
        )
    try:
        with open("/proc/meminfo") as lines:
            return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable"))
    except (OSError, StopIteration):
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def readable(size: float) -> str:
    """A number of bytes for people.

    >>> readable(3 << 30)
    '3.0 GiB'
    """
    for unit in ("bytes", "KiB", "MiB", "GiB"):
        if size < 1024:
            return f"{size:.0f} bytes" if unit == "bytes" else f"{size:.1f} {unit}"
        size /= 1024
    return f"{size:.1f} TiB"
