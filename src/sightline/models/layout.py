"""How a matrix lies in memory: what makes a step of one token fast."""

from __future__ import annotations

import torch
from torch import Tensor


def lay_out(tensor: Tensor, device: torch.device) -> Tensor:
    """The tensor on its device, in memory of its own, in the layout that runs fastest there."""
    return tensor.to(device).contiguous()
