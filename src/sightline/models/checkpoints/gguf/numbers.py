"""The numbers of a GGUF tensor: plain ones as they are, quantised blocks through the `gguf` library."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from sightline.models.checkpoints.base import refused
from sightline.models.checkpoints.gguf.header import GGUFTensor, gguf_library

# Types that are plain numbers, by the number GGUF gives them.
PLAIN = {0: torch.float32, 1: torch.float16, 28: torch.float64, 30: torch.bfloat16}
# How many numbers are made at a time.
CHUNK = 1 << 20


def unreadable(kind: int) -> str | None:
    """The name of a type that the library cannot turn into numbers; None if it can. Tried on one empty block."""
    if kind in PLAIN:
        return None
    gguf = gguf_library()
    known = gguf.GGMLQuantizationType(kind)
    try:
        gguf.quants.dequantize(np.zeros((1, gguf.constants.GGML_QUANT_SIZES[known][1]), dtype=np.uint8), known)
    except NotImplementedError:
        return str(known.name)
    return None


def read_numbers(path: Path, tensor: GGUFTensor, dtype: torch.dtype) -> Tensor:
    """The numbers in memory of their own, chunk by chunk, so that nothing else of their size is ever held."""
    result = torch.empty(tensor.shape, dtype=dtype)
    if not result.numel():
        return result
    gguf = gguf_library()
    kind = gguf.GGMLQuantizationType(tensor.kind)
    block, width = gguf.constants.GGML_QUANT_SIZES[kind]
    flat, step = result.view(-1), CHUNK // block
    with path.open("rb") as file:
        file.seek(tensor.start)
        for start in range(0, flat.numel(), step * block):
            goal = flat[start : start + step * block]
            part = np.fromfile(file, dtype=np.uint8, count=goal.numel() // block * width)
            if part.size * block < goal.numel() * width:
                raise refused(
                    f"{path.name} is damaged",
                    expected=f"{tensor.size} bytes of one tensor",
                    got="a file that ends before",
                    hint="fetch the file again; a copy may have been cut short",
                )
            if tensor.kind in PLAIN:
                goal.copy_(torch.from_numpy(part).view(PLAIN[tensor.kind]))
            else:
                # As one long row: the library takes 16 rows at a time, which as blocks would be little.
                goal.copy_(torch.from_numpy(gguf.quants.dequantize(part.reshape(1, -1), kind)).view(-1))
    return result
