"""Where a model runs without numbers that could be looked at: there it runs as it is, and that is said.

Under torch.func (`grad`, `vmap`, gradients of each example), while a graph is written down (`torch.export`, `make_fx`,
`torch.jit.trace`), and on fake tensors and the meta device. To look all the same would end the model's run in an error.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor

TRANSFORMED = "ran under a transformation of torch.func, where numbers cannot be looked at"
WRITTEN_DOWN = "ran while torch wrote its graph down, where numbers cannot be looked at"
NO_NUMBERS = "ran on tensors that have no numbers"

_PROXY, _FAKE = torch._C._TorchDispatchModeKey.PROXY, torch._C._TorchDispatchModeKey.FAKE


def why_not(x: Any = None) -> str | None:
    """Why there is nothing to look at, here or in a tensor; None if there is.

    >>> why_not(torch.zeros(2)), why_not(torch.zeros(2, device="meta"))
    (None, 'ran on tensors that have no numbers')
    """
    if torch._C._functorch.peek_interpreter_stack() is not None:
        return TRANSFORMED
    if torch._C._get_tracing_state() is not None or torch._C._get_dispatch_mode(_PROXY) is not None:
        return WRITTEN_DOWN
    if torch._C._get_dispatch_mode(_FAKE) is not None:
        return NO_NUMBERS
    if isinstance(x, Tensor) and (x.is_meta or isinstance(x, FakeTensor)):
        return NO_NUMBERS
    return None
