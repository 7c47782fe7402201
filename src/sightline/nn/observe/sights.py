"""Looking into modules: the sights of the attention inside them, without a change to what they give.

`observing` puts a torch function mode in place, which holds for one thread and for the length of a `with`, and nests.
A module that attends announces itself to the mode, which then takes the sight of the call that follows.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch import nn
from torch.overrides import _get_current_function_mode_stack

from sightline import lens
from sightline.backends import attention
from sightline.errors import InputError
from sightline.lens.requests import Request, parse
from sightline.nn.observe.listener import Listener
from sightline.nn.observe.select import Layers, select
from sightline.nn.observe.tap import for_later

if TYPE_CHECKING:
    from torch import Tensor

    from sightline.lens import Sight


@contextmanager
def observing(module: nn.Module, stats: Any = (), layers: Layers = None) -> Iterator[dict[str, Sight]]:
    """While this is on, every attention inside `module` leaves its sight in a dictionary, by its name in the module.

    Any module will do that is made of Sightline's; the outputs keep their bits. A module that is called again leaves
    its newest sight. Sights hold q and k, so that anything can be asked of them later; choose `layers` to hold fewer.
    With a cache they hold a copy of its keys so far, because its memory is written to again.
    What runs in other threads is not seen. A compiled model runs as it was written meanwhile: its graphs hold no calls
    to look at.

    Args:
        module: where to look.
        stats: computed in the same go, as in `sl.observe`.
        layers: which attention to look at; all if not given. A whole number, a list of them or a slice counts
            layers in the order in which the module defines them (-1 is the last; the self-attention and the
            cross-attention of one layer go together). A string is a name, a part of one from dot to dot (`"layers.1"`),
            or a pattern, such as `"*.cross_attention"`. A function is given each name, and says True or False.

    >>> import sightline as sl, torch
    >>> from sightline import nn as slnn
    >>> model = torch.nn.Sequential(torch.nn.Embedding(50, 32), slnn.Decoder(32, heads=4, layers=3))
    >>> with slnn.observing(model, stats="entropy", layers=slice(1, None)) as sights:
    ...     out = model(torch.randint(50, (1, 10)))
    >>> {name: sight.shape for name, sight in sights.items()}
    {'1.layers.1.attention': (1, 4, 10, 10), '1.layers.2.attention': (1, 4, 10, 10)}
    """
    mode = _Observing({id(part): name for name, part in select(module, layers).items()}, parse(stats))
    with _uncompiled, mode:
        yield mode.sights


class Observable(nn.Module):
    """A module with attention inside it, and with `observe`."""

    def observe(self, *args: Any, stats: Any = (), layers: Layers = None, **options: Any) -> tuple[Any, dict]:
        """The output of a call with these arguments, to the bit, and the sights of the attention inside.

        The sights are a dictionary by the attention's name in this module, as `named_modules` has it. `stats` and
        `layers` are those of `observing`.

        >>> import torch
        >>> from sightline import nn as slnn
        >>> decoder = slnn.Decoder(32, heads=4, layers=2, cross=True)
        >>> out, sights = decoder.observe(torch.randn(5, 32), torch.randn(7, 32), layers=-1)
        >>> {name: sight.shape for name, sight in sights.items()}
        {'layers.1.attention': (4, 5, 5), 'layers.1.cross_attention': (4, 5, 7)}
        """
        with observing(self, stats, layers) as sights:
            return self(*args, **options), sights


class _Observing(Listener):
    """Takes the sight of each attention call of the modules that were chosen."""

    def __init__(self, names: Mapping[int, str], requests: list[Request]) -> None:
        super().__init__()
        self.names, self.requests = names, requests
        self.sights: dict[str, Sight] = {}
        self.caller: int | None = None
        self.cached: int | None = None  # where the memory of the caller's cache is

    def take(self, func: Any, args: tuple, options: dict[str, Any]) -> Any:
        name = None if self.caller is None else self.names.get(self.caller)
        if name is None:
            return func(*args, **options)
        q, k, v = args
        rest = for_later(options)
        cached = self.cached is not None and _place(k) == self.cached
        if cached or torch.is_grad_enabled() or torch._C._len_torch_function_stack():
            # The call as it always is: for the backward pass, and for other modes that want to see it. Of a cache the
            # sight gets keys of its own, while the call reads the cache, so that the output keeps its bits.
            out = func(*args, **options)
            sight = lens.look(q.detach(), k.detach().clone() if cached else k.detach(), stats=self.requests, **rest)
        else:
            out, sight = lens.observe(q, k, v, stats=self.requests, dropout=options.get("dropout", 0.0), **rest)
        self.sights[name] = sight
        return out

    handlers: ClassVar = {attention: take}


def is_observed() -> bool:
    """Whether someone observes, in this thread."""
    if not torch._C._len_torch_function_stack():
        return False
    return any(isinstance(mode, _Observing) for mode in _get_current_function_mode_stack())


def reads_cache(k: Tensor) -> None:
    """Tell all who observe that the keys of the next call are a cache's, whose memory is written to again."""
    for mode in _observers():
        mode.cached = _place(k)


def _place(k: Tensor) -> int:
    return k.untyped_storage().data_ptr()


def _observers() -> list[_Observing]:
    return [mode for mode in _get_current_function_mode_stack() if isinstance(mode, _Observing)]


def announced(module: nn.Module, q: Tensor, k: Tensor, v: Tensor, options: dict[str, Any]) -> Tensor:
    """`sl.attention` for a module that tells all who observe who it is."""
    modes = _observers()
    before = [mode.caller for mode in modes]
    for mode in modes:
        mode.caller = id(module)
    try:
        return attention(q, k, v, **options)
    finally:
        for mode, caller in zip(modes, before, strict=True):
            mode.caller, mode.cached = caller, None


class _Uncompiled:
    """While anyone is inside, compiled functions run as they were written. What was compiled stays for afterwards.

    torch has one such switch for all threads: the first one in turns it, the last one out turns it back.
    """

    def __init__(self) -> None:
        self.lock, self.inside, self.switch = threading.Lock(), 0, None

    def __enter__(self) -> None:
        with self.lock:
            # Where nothing was ever compiled there is nothing to switch, and loading the compiler takes a second.
            if self.switch is None and "torch._dynamo" in sys.modules:
                try:
                    self.switch = torch.compiler.set_stance("force_eager")
                except RuntimeError as error:
                    raise InputError(
                        "compiled code cannot observe",
                        expected="observe and observing outside of what torch.compile compiles",
                        got="a call inside of it",
                        hint="with observing(model): compiled(x)",
                    ) from error
            self.inside += 1

    def __exit__(self, *error: object) -> None:
        with self.lock:
            self.inside -= 1
            if not self.inside and self.switch is not None:
                self.switch.__exit__(None, None, None)
                self.switch = None


_uncompiled = _Uncompiled()
