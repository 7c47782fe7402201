"""Numbers of a sight as numpy has them: it knows no GPU, and no bfloat16."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor


def array(x: Tensor) -> np.ndarray:
    """A tensor of any device and precision as float32.

    >>> array(torch.tensor([0.5, 2.0], dtype=torch.bfloat16))
    array([0.5, 2. ], dtype=float32)
    """
    found: np.ndarray = x.to("cpu", torch.float32).numpy()
    return found
