"""`sl.monitor`: the training monitor for any torch model, which hears attention as `sl.watch` does."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import ExitStack
from types import CodeType, SimpleNamespace
from typing import Any

import torch
from torch import Tensor, nn
from torch._C._dynamo import eval_frame
from torch.nn import Parameter
from torch.optim import Optimizer

from sightline.backends.streaming import transformed
from sightline.lens import Sight
from sightline.masks import Band, Mask, causal
from sightline.nn.observe.alarms import Alarm, Bounds
from sightline.nn.observe.listener import OF_OTHERS, is_trained, put_beneath, take_away
from sightline.nn.observe.monitor import Monitor
from sightline.nn.observe.record import Record
from sightline.nn.observe.select import Layers, attending, names_chosen
from sightline.nn.observe.tap import STATS, Counted, counted
from sightline.watching.intercept import active, traced, tracer, verify
from sightline.watching.intercept import transformers as hf
from sightline.watching.intercept.caller import inner, names_of
from sightline.watching.intercept.function_mode import Audience, Handler, WatchMode
from sightline.watching.intercept.looked import Looked
from sightline.watching.intercept.marks import mark_buffers
from sightline.watching.intercept.mask_tables import Tables
from sightline.watching.intercept.torch_calls import look, one_head

IN_SLICES = "its attention is written by hand, a few maps at a time"
LOST = "attends in compiled code that no module was found for"
# Modules of torch that do not attend; those of others may.
_PLAIN = ("torch.nn.modules.", "torch.ao.nn.", "sightline.")
_ATTENDING = (nn.MultiheadAttention, nn.TransformerEncoderLayer, nn.TransformerDecoderLayer)


def monitor(
    model: nn.Module,
    every: int = 100,
    *,
    first: int = 4,
    layers: Layers = None,
    optimizer: Optimizer | None = None,
    on: Callable[[Record], object] | None = None,
    on_alarm: Callable[[Alarm], object] | None = None,
    bounds: Bounds | None = None,
) -> Monitor:
    """What every head of a model does while it is trained: entropy, largest score and the share of the first keys.

    Any torch model will do; `sl.nn.Monitor`, which this makes, says what is recorded, and how it is read. Every
    `every` steps it is measured beside the model's own kernels, and in between nothing is; the trained weights are the
    same to the bit. A compiled model has one more graph, for the steps that are recorded.

    >>> import sightline as sl
    >>> model = torch.nn.TransformerEncoder(torch.nn.TransformerEncoderLayer(16, 2, 32, batch_first=True), 2)
    >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    >>> with sl.monitor(model, every=2, optimizer=optimizer) as monitor:
    ...     for _ in range(3):
    ...         model(torch.randn(3, 7, 16)).square().mean().backward()
    ...         optimizer.step()
    >>> monitor.steps, list(monitor.latest)
    ([0, 2], ['layers.0.self_attn', 'layers.1.self_attn'])
    >>> "attention/layers.1.self_attn/entropy/head1" in monitor.scalars()
    True
    """
    return Monitor(
        model, every, first=first, layers=layers, optimizer=optimizer, on=on, on_alarm=on_alarm, bounds=bounds
    )


class Hearing:
    """What a monitor hears of modules that are not Sightline's; among the watches of its thread while it listens."""

    compact = False
    lenient = True  # rather no account than an error
    writer = None

    def __init__(self, model: nn.Module, layers: Layers) -> None:
        traced.connect(_attended, _unheard)
        self.model, self.choice = model, layers
        self.names = names_of(model)
        self.modules = {id(module): module for module in model.modules()}
        own = {id(part) for part in attending(model).values()}
        self.own = {name for key, name in self.names.items() if key in own}  # these have taps
        self._chosen: dict[str, bool] = {}
        self.unseen: dict[str, str] = {}
        self.seen = SimpleNamespace(_unseen={}, _layers={})
        self.listening = SimpleNamespace(always=True)
        self.tables, self.order = Tables(), dict[str, int]()
        self.heard: dict[str, Counted] = {}
        self.on = False
        self._stack = ExitStack()
        self._thread = 0

    # What a source does.

    def listen(self, on: bool) -> None:
        self.heard.clear()
        self.seen._unseen.clear()
        self.tables.forget_numbered()
        if on == self.on:
            return
        self.on = on
        if on:
            self._thread = threading.get_ident()
            with ExitStack() as stack:
                stack.enter_context(hf.INTERFACE)
                if any(isinstance(module, _ATTENDING) for module in self.modules.values()):
                    stack.enter_context(active.BLIND)
                active.push(self)  # type: ignore[arg-type]
                stack.callback(self._drop)
                mark_buffers(_MODE.begin().trace, self.model.buffers())
                stack.callback(self._end)
                self._stack = stack.pop_all()
        else:
            self._stack.close()
            self.tables.clear()

    def collect(self) -> dict[str, Counted]:
        for name, why in self.seen._unseen.items():
            if name not in self.heard and self._is_chosen(name):
                self.unseen[name] = why
        for name in self.heard:
            self.unseen.pop(name, None)
        return dict(self.heard)

    def _drop(self) -> None:
        if threading.get_ident() == self._thread:
            active.drop(self)  # type: ignore[arg-type]

    def _end(self) -> None:
        if threading.get_ident() == self._thread:
            _MODE.end()

    # What is asked of a watch.

    def name_of(self, module: nn.Module) -> str | None:
        return self.names.get(id(module)) if self.on else None

    def wants(self, name: str) -> bool:
        """Whether a call that is made now is to be counted."""
        if not self._is_chosen(name) or transformed():
            return False
        return any(self.names[key] == name and is_trained(self.modules[key]) for key in self.names)

    def layers(self, name: str, index: int, count: int) -> bool:
        return self._is_chosen(name)

    def goes_on(self, *_: object) -> bool:
        """A step of a generation is as any other call."""
        return False

    def note(self, name: str, first_query: int, end_key: int) -> None:
        """Calls are not joined: nothing is to be known of one that is not counted."""

    def module_of(self, name: str) -> nn.Module | None:
        """The module of this path."""
        return next((self.modules[key] for key, path in self.names.items() if path == name), None)

    def mark_by_hand(self, name: str) -> None:
        """What was heard of a module is attention that no function was called for: all is heard in the same way."""

    def record(self, module: nn.Module, name: str, looked: Looked) -> None:
        if looked.piece is not None:
            self.seen._unseen.setdefault(name, IN_SLICES)
            return
        with active.quiet(compiled=looked.call.q.is_cuda), torch.inference_mode(False), torch.no_grad():
            self.heard[name] = counted(Sight(looked.call, looked.row).prepare(*STATS))

    def hook(self, *_: Any) -> None: ...

    enters = leaves = hook

    def _is_chosen(self, name: str) -> bool:
        if name not in self._chosen:
            chosen = name not in self.own and names_chosen(self.choice, name, list(self.names.values()))
            self._chosen[name] = chosen
        return self._chosen[name]


class MonitorMode(WatchMode):
    """The function mode of all monitors of a thread: eager calls go to their handlers, traced ones get operators."""

    is_monitor = True

    def __torch_function__(self, func: Any, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
        if torch.compiler.is_compiling():
            return traced.traced(self, func, args, {} if kwargs is None else kwargs)
        if kwargs and isinstance(kwargs.get("out"), Tensor):
            # What is written into a tensor has no gradient, and is no attention that is trained: most is compiled code.
            self.trace.forget(kwargs["out"])
            return func(*args, **kwargs)
        # Where a compiled function runs a part of itself uncompiled, the compiler would look at every frame in here.
        before = eval_frame.set_eval_frame(None)
        try:
            return super().__torch_function__(func, types, args, kwargs)
        finally:
            eval_frame.set_eval_frame(before)

    def hear(self, handler: Handler, func: Any, args: tuple, kwargs: dict, who: Audience) -> Any:
        """A call whose account fails has run all the same, once."""
        if not who.lenient:
            return handler(func, args, kwargs, who)
        odd = [type(x).__name__ for x in args if isinstance(x, Tensor) and type(x) not in (Tensor, Parameter)]
        if odd and who.wanting:
            who.miss(f"given tensors of the kind {odd[0]}", -1, 0)
            with active.quiet():
                return func(*args, **kwargs)
        once = _Once(func)
        try:
            return handler(once, args, kwargs, who)
        except Exception as error:
            if not once.done:
                raise
            who.miss(f"no account of it: {error}".splitlines()[0], -1, 0)
            return once.result


def _never_alone(code: CodeType) -> None:
    """Have the compiler leave a function's frames alone; it may still be traced as a part of others."""
    if hasattr(eval_frame, "set_code_exec_strategy"):
        skip, usual = eval_frame._FrameAction.SKIP, eval_frame._FrameAction.DEFAULT
        eval_frame.set_code_exec_strategy(code, eval_frame._FrameExecStrategy(skip, usual))
    else:  # older versions of torch
        eval_frame.skip_code(code)  # type: ignore[attr-defined]


_never_alone(MonitorMode.__torch_function__.__code__)


class _Once:
    """A function that remembers what it gave first."""

    def __init__(self, function: Callable) -> None:
        self.__wrapped__ = function
        self.done, self.result = False, None

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        found = self.__wrapped__(*args, **kwargs)
        if not self.done:
            self.done, self.result = True, found
        return found


class _OneMode(threading.local):
    """One mode for all monitors of a thread, so that a compiled model has two graphs however many there are."""

    def __init__(self) -> None:
        self.count = 0
        self.mode: MonitorMode | None = None

    def begin(self) -> MonitorMode:
        self.count += 1
        if self.mode is None:
            self.mode = MonitorMode()
            put_beneath(self.mode)
        return self.mode

    def end(self) -> None:
        self.count -= 1
        if not self.count and self.mode is not None:
            take_away(self.mode)
            self.mode = None


_MODE = _OneMode()


# What operators of a compiled graph tell.


def _hearing(where: str) -> Audience | None:
    """Who hears of a call in a graph that is running; not of one that runs again for its gradients."""
    hearers = _hearers()
    if not hearers or torch._C._current_graph_task_id() != -1:
        return None
    modules, names = hearers[0].modules, hearers[0].names
    for one in hearers[1:]:
        modules, names = modules | one.modules, names | one.names
    found = tracer.caller(where, names)
    module = modules.get(found) if isinstance(found, int) else found
    if module is None:
        for one in hearers:
            one.seen._unseen.setdefault(names[id(one.model)], LOST)
        return None
    hearing: Any = [(one, name) for one in hearers if (name := one.name_of(module)) is not None]
    who = Audience(module, hearing)
    who.wanting = [(one, name) for one, name in hearing if one.layers(name, 0, 0)]  # gradients are no longer asked for
    return who


def _hearers() -> list[Hearing]:
    watches: list[Any] = list(active.watches())
    return [one for one in watches if isinstance(one, Hearing)]


def _attended(
    q: Tensor,
    k: Tensor,
    table: Tensor | None,
    sinks: Tensor | None,
    v: Tensor | None,
    out: Tensor | None,
    scale: float | None,
    softcap: float | None,
    direction: str,
    window: int,
    grouped: bool,
    hides: bool,
    trained: bool,
    known: bool,
    number: int,
    where: str,
) -> None:
    for one in _hearers() if number < 0 else ():
        one.tables.forget_numbered(-number)
    who = _hearing(where)
    if who is None or not (trained or is_trained(who.module)) or not who.wanting:
        return
    try:
        with active.quiet(), torch.no_grad():
            q, k, _, table, _ = one_head(q, k, k, table, None, grouped)
            mask: Mask | None = None
            more: dict[str, Any] = {name: x for name, x in (("softcap", softcap), ("sinks", sinks)) if x is not None}
            if table is not None:
                shape = (*q.shape[:-1], k.shape[-2])
                mask, more["bias"], _ = who.tables.read_numbered(number, table, shape, who.module, hides)
            if direction:
                band: Mask = Band(window - 1, 0) if 0 < window <= k.shape[-2] else causal("end")
                if direction == "start" and q.shape[-2] != k.shape[-2]:
                    band = causal("start")
                mask = band if mask is None else band & mask
            looked = look(q, k, k, mask, more.pop("bias", None), scale, -1, **more)
            why = None
            if v is not None and out is not None:
                why = verify.doubt(looked, v, lambda **_: None, out, 0.0, known)
        verify.record(who, looked, why)
    except Exception as error:  # a graph is no place for errors of an account
        who.miss(f"no account of it: {error}".splitlines()[0], -1, 0)


def _unheard(where: str, why: str) -> None:
    who = _hearing(where)
    for watcher, name in who.hearing if who is not None else ():
        watcher.seen._unseen.setdefault(name, why)


def _of_others(model: nn.Module, layers: Layers) -> Hearing | None:
    """A source for a model in which other modules than Sightline's may attend."""
    plain = {id(part) for own in attending(model).values() for part in own.modules()}
    for module in inner(model).modules():
        kind = type(module)
        if id(module) not in plain and (isinstance(module, _ATTENDING) or not f"{kind.__module__}.".startswith(_PLAIN)):
            return Hearing(model, layers)
    return None


OF_OTHERS.append(_of_others)
