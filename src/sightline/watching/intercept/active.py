"""Which watches are on, thread by thread, and how a handler does its work unseen by them."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, overrides

from sightline.nn.observe.listener import put_back, set_aside

if TYPE_CHECKING:
    from torch import nn
    from torch.overrides import TorchFunctionMode

    from sightline.watching.intercept.function_mode import Audience
    from sightline.watching.intercept.transformers_masks import Span
    from sightline.watching.watcher import Watcher


class _Local(threading.local):
    def __init__(self) -> None:
        self.watches: list[Watcher] = []
        self.busy = False
        self.module: nn.Module | None = None
        self.key: Tensor | None = None
        self.span: Span | None = None
        self.who: Audience | None = None
        self.asleep: AbstractContextManager[Any] | None = None


_local = _Local()
_ASKING = ("torch.nn.modules.transformer", "torch.nn.modules.activation")
_ADVICE = "flex_attention_performance"


def watches() -> list[Watcher]:
    """The watches of this thread, outermost first; none while a handler is at work."""
    return [] if _local.busy else _local.watches


def push(watcher: Watcher) -> None:
    _local.watches.append(watcher)


def drop(watcher: Watcher) -> None:
    _local.watches = [other for other in _local.watches if other is not watcher]


class named:
    """Attention in here is this module's, and these watches hear of it: it need not be found on the stack.

    It may repeat the key for its groups, and make another table of a mask that was for this span.
    """

    def __init__(
        self, module: nn.Module, key: Tensor | None = None, span: Span | None = None, who: Audience | None = None
    ) -> None:
        self.now = module, key, span, who

    def __enter__(self) -> None:
        self.before = _local.module, _local.key, _local.span, _local.who
        _local.module, _local.key, _local.span, _local.who = self.now

    def __exit__(self, *_: object) -> None:
        _local.module, _local.key, _local.span, _local.who = self.before


def known_module() -> nn.Module | None:
    """The module that `named` said."""
    return _local.module


def known_audience() -> Audience | None:
    """Who hears of what the module does that `named` said."""
    return None if _local.busy else _local.who


def known_span() -> Span | None:
    """The span that `named` said."""
    return _local.span


def one_for_all_groups(key: Tensor) -> Tensor:
    """The keys of a call as they were before they were repeated for every head of a group."""
    own = _local.key
    if own is None or own.dim() != 4 or key.dim() != 4 or own.shape[1] == key.shape[1]:
        return key
    return own if (own.shape[0], *own.shape[2:]) == (key.shape[0], *key.shape[2:]) else key


class quiet:
    """No watch hears what happens in here; with `compiled`, compiled code may run as such."""

    def __init__(self, compiled: bool = False) -> None:
        self.compiled = _as_compiled() if compiled else None

    def __enter__(self) -> None:
        self.before, _local.busy = _local.busy, True
        if self.compiled is not None:
            try:
                self.compiled.__enter__()
            except BaseException:
                _local.busy = self.before
                raise

    def __exit__(self, *error: Any) -> None:
        try:
            if self.compiled is not None:
                self.compiled.__exit__(*error)
        finally:
            _local.busy = self.before


def unheard(function: Callable, *args: Any, **kwargs: Any) -> Any:
    """What a function gives, of which no watch hears."""
    before, _local.busy = _local.busy, True
    try:
        return function(*args, **kwargs)
    finally:
        _local.busy = before


@contextmanager
def _as_compiled() -> Iterator[None]:
    with without_modes(), BLIND.lifted(), stance(UNCOMPILED.before):
        yield


@contextmanager
def without_modes() -> Iterator[None]:
    """Take the watches' function modes off the stack: a compiler would trace them into its graph."""
    taken = [overrides._pop_mode() for _ in range(torch._C._len_torch_function_stack())][::-1]
    left = [mode for mode in taken if not getattr(mode, "is_watch", False)]
    for mode in left:
        overrides._push_mode(mode)
    try:
        yield
    finally:
        for _ in left:
            overrides._pop_mode()
        for mode in taken:
            overrides._push_mode(mode)


@contextmanager
def asleep(mode: TorchFunctionMode) -> Iterator[None]:
    """The mode of the only watch hears nothing in here, except in `awake`.

    Others may begin or end meanwhile: it comes back to its own place among them.
    """
    at = set_aside(mode)
    _local.asleep = mode
    try:
        yield
    finally:
        _local.asleep = None
        put_back(mode, at)


def sleeper() -> Watcher | None:
    """The only watch of this thread, while its mode sleeps."""
    return None if _local.asleep is None or _local.busy else _local.watches[0]


def awake() -> AbstractContextManager[Any]:
    """The mode hears what happens in here, if it sleeps."""
    return nullcontext() if _local.asleep is None else _local.asleep


def stance(name: str) -> AbstractContextManager[Any]:
    """torch.compile's stance, for a while; nothing where no compiler has been loaded."""
    if "torch._dynamo" not in sys.modules and "torch.nn.attention.flex_attention" not in sys.modules:
        return nullcontext()
    return torch.compiler.set_stance(name)


class Shared:
    """Something that is put in place for the first of several watches, in any thread, and taken away after the last."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._count = 0
        self._stack = ExitStack()

    @property
    def on(self) -> bool:
        return bool(self._count)

    def install(self, stack: ExitStack) -> None:
        """Put it in place; what undoes it goes onto the stack."""
        raise NotImplementedError

    def __enter__(self) -> None:
        with self._lock:
            if not self._count:
                with ExitStack() as stack:
                    self.install(stack)
                    self._stack = stack.pop_all()
            self._count += 1

    def __exit__(self, *_: object) -> None:
        with self._lock:
            self._count -= 1
            if not self._count:
                self._stack.close()


class Uncompiled(Shared):
    """Compiled code runs uncompiled while somebody watches, unless it is told otherwise: nobody sees into its graph."""

    before = "default"  # the stance outside the block

    def install(self, stack: ExitStack) -> None:
        dynamo = sys.modules.get("torch._dynamo.eval_frame")
        self.before = "default" if dynamo is None else dynamo._stance.stance
        stack.enter_context(stance("force_eager"))
        # Torch would advise to compile FlexAttention, which the model may well do: it is only not compiled in here.
        said = getattr(sys.modules.get("torch.nn.attention.flex_attention"), "_WARNINGS_SHOWN", None)
        if isinstance(said, set) and _ADVICE not in said:
            said.add(_ADVICE)
            stack.callback(said.discard, _ADVICE)


class Blind(Shared):
    """Torch's own layers take their fast path although somebody watches: where they ask for modes, watches are none."""

    ask = overrides.has_torch_function

    def install(self, stack: ExitStack) -> None:
        Blind.ask = overrides.has_torch_function
        stack.callback(setattr, overrides, "has_torch_function", Blind.ask)
        overrides.has_torch_function = _has_torch_function

    @contextmanager
    def lifted(self) -> Iterator[None]:
        """Compiled code that asks finds what it was compiled with."""
        with self._lock:
            overrides.has_torch_function = Blind.ask
        try:
            yield
        finally:
            with self._lock:
                if self._count:
                    overrides.has_torch_function = _has_torch_function


def _has_torch_function(args: Any) -> bool:
    if torch.compiler.is_compiling():
        return bool(Blind.ask(args))
    found = bool(Blind.ask(args))
    frame = sys._getframe(1)
    if not found or frame.f_globals.get("__name__") not in _ASKING:
        return found
    if any(getattr(watcher, "influence", None) is not None for watcher in watches()):
        return True  # gradients are wanted, which the operator of the fast path does not have
    asking = frame.f_locals.get("self")
    editors: list[Any] = [watcher for watcher in watches() if getattr(watcher, "edits", False)]
    if any(editor.changes(asking) for editor in editors):
        return True  # nobody can reach into the operator of the fast path
    with without_modes():
        return bool(Blind.ask(args))


BLIND = Blind()
UNCOMPILED = Uncompiled()
