"""Layers below an edit, which give what they gave before: they are not computed again.

Most models run a list of blocks one after the other. What each of them gave in the unedited run is kept, and a run
whose first edit is in block 20 takes blocks 0 to 19 from there. Whoever uses it compares an unedited run with the
first one, and does without where they differ.

The logits of all positions are a good part of a run; where a target reads the last ones alone, only these are computed.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves, tree_map


class Blocks:
    """The blocks of a model that hold its attention, in the order in which they ran, and what each gave."""

    def __init__(self, model: nn.Module, names: dict[int, str], layers: list[str]) -> None:
        lists = [(path, part) for path, part in model.named_modules() if isinstance(part, nn.ModuleList)]
        paths = [path for path, _ in lists]
        self.of: dict[str, nn.Module] = {}  # the block that a layer is in
        for path, part in lists:
            if any(path.startswith(f"{other}.") for other in paths if other != path):
                continue
            for block in part:
                inside = {names[id(module)] for module in block.modules() if id(module) in names}
                self.of |= {layer: block for layer in layers if layer in inside}
        self.blocks = {id(block): block for block in self.of.values()}
        self.ran: list[int] = []
        self.gave: dict[int, Any] = {}

    @contextmanager
    def recording(self) -> Iterator[None]:
        """Remember what blocks give in here, to this thread."""
        mine = threading.get_ident()

        def remember(module: nn.Module, _: Any, output: Any) -> None:
            if threading.get_ident() != mine:
                return
            self.ran.append(id(module))
            self.gave[id(module)] = tree_map(lambda x: x.detach() if isinstance(x, Tensor) else x, output)

        with ExitStack() as stack:
            for block in self.blocks.values():
                stack.callback(block.register_forward_hook(remember).remove)
            yield

    def forget(self) -> None:
        """Do without: every run is a whole one."""
        self.of.clear()

    @contextmanager
    def below(self, layer: str, batch: int, times: int) -> Iterator[bool]:
        """Blocks that ran before the one of a layer give what they gave, `times` over; says whether any does."""
        block = self.of.get(layer)
        if block is None or len(set(self.ran)) != len(self.ran) or id(block) not in self.gave:
            yield False
            return
        thread = threading.get_ident()
        skipped = [self.blocks[number] for number in self.ran[: self.ran.index(id(block))]]
        with ExitStack() as stack:
            for one in skipped:
                own = vars(one).get("forward")
                vars(one)["forward"] = _stand_in(one.forward, _repeated(self.gave[id(one)], batch, times), thread)
                stack.callback(_put_back, one, own)
            yield bool(skipped)


class LastLinear:
    """The linear layer that gives the logits of every position: a target may read those of the last alone."""

    def __init__(self, reads_last: bool) -> None:
        self.reads_last = reads_last
        self.layer: nn.Module | None = None
        self._gave: list[tuple[nn.Module, weakref.ref[Tensor]]] = []

    @contextmanager
    def recording(self, model: nn.Module) -> Iterator[None]:
        """Remember what linear layers give in here to this thread, while it is there."""
        mine = threading.get_ident()

        def remember(module: nn.Module, _: Any, output: Tensor) -> None:
            if threading.get_ident() != mine:
                return
            self._gave.append((module, weakref.ref(output)))

        with ExitStack() as stack:
            for layer in model.modules() if self.reads_last else ():
                if isinstance(layer, nn.Linear):
                    stack.callback(layer.register_forward_hook(remember).remove)
            yield

    def find(self, output: Any) -> None:
        """Which of them gave what the model gives, and ran once."""
        ends = [x for x in tree_leaves(_fields(output)) if isinstance(x, Tensor) and x.dim() == 3]
        found = [layer for layer, gave in self._gave if any(gave() is x for x in ends)]
        ran = [layer for layer, _ in self._gave]
        self.layer = found[0] if len(found) == 1 and ran.count(found[0]) == 1 else None
        self._gave.clear()

    @contextmanager
    def alone(self) -> Iterator[bool]:
        """In here it is done for the last position alone; says whether it is."""
        if self.layer is None:
            yield False
            return
        mine = threading.get_ident()

        def last(_: nn.Module, args: tuple) -> tuple:
            return (args[0][:, -1:], *args[1:]) if threading.get_ident() == mine else args

        handle = self.layer.register_forward_pre_hook(last)
        try:
            yield True
        finally:
            handle.remove()


def _fields(output: Any) -> Any:
    return dict(output) if isinstance(output, Mapping) else output


def _stand_in(forward: Callable[..., Any], output: Any, thread: int) -> Callable[..., Any]:
    """Gives a known output in this thread; others run what they always ran."""
    return lambda *args, **kwargs: output if threading.get_ident() == thread else forward(*args, **kwargs)


def _put_back(module: nn.Module, own: Any) -> None:
    if own is None:
        del vars(module)["forward"]
    else:
        vars(module)["forward"] = own


def repeated(given: Any, batch: int, times: int) -> Any:
    """Tensors of a batch so many times, one after the other; everything else as it is."""
    return tree_map(lambda x: _repeat(x, batch, times), given)


_repeated = repeated


def _repeat(x: Any, batch: int, times: int) -> Any:
    if not isinstance(x, Tensor) or x.dim() < 1 or x.shape[0] != batch:
        return x
    return torch.cat([x] * times) if times > 1 else x
