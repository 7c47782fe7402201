"""Training monitors: what every head does, every so many steps, and nothing in between."""

from __future__ import annotations

import warnings
import weakref
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

from sightline.errors import InputError, InputTypeError, explain
from sightline.nn.observe.alarms import Alarm, Alarms, Bounds
from sightline.nn.observe.listener import OF_OTHERS, Source
from sightline.nn.observe.record import Reading, Record, read, table
from sightline.nn.observe.select import Layers, attending, check_layers, chosen, select
from sightline.nn.observe.tap import Taps
from sightline.positions.base import whole


class Monitor:
    """Watches the attention inside a model while it is trained, every `every` steps; it changes nothing.

    Any torch model will do: attention is seen where it calls `F.scaled_dot_product_attention`, FlexAttention,
    `torch.nn.MultiheadAttention`, transformers' attention functions, or is Sightline's own. It runs on its own kernels,
    eager, compiled, checkpointed or sharded; weights and random numbers are the same to the bit.

    It records for every head, of the weights before dropout and without a gradient:

    - `entropy`: in nats, the mean over all queries that may see a key. It falls to 0 when a head collapses.
    - `max_score`: the largest score of all, after soft-cap, bias and mask. It explodes before training does.
    - `first_share`: how much of all weight that keys received went to the first `first` of them, between 0 and 1. It
      rises when the first tokens become sinks.

    Step 0 is recorded, then step `every`, and so on; in between nothing is computed. A compiled model has two graphs,
    one for the steps that are recorded; neither is broken, and switching compiles nothing anew. Modules of Sightline's
    make their numbers in `step()` when they are compiled, so q and k are held until then, and with
    `torch.utils.checkpoint` inside they need `torch._dynamo.config.skip_fwd_side_effects_in_bwd_under_checkpoint =
    True`: without it, or with a torch that has no such option, the numbers are right, but torch runs it uncompiled.

    Calls are recorded where gradients are enabled: validation under `torch.no_grad()` is not. What a checkpoint runs
    again is counted once. Of several calls of a module in one step (gradient accumulation, layers that share weights)
    the last one is recorded. What attended and could not be seen is named in `unseen`, and in a warning.

    Args:
        model: where to look.
        every: how many steps from one record to the next.
        first: how many keys count as the first.
        layers: which attention to look at, as in `observing`.
        optimizer: calls `step()` after each of its own steps; without it, call `monitor.step()` yourself.
        on: called with each `Record`, for a logger: `on=lambda record: log(record.scalars(), record.step)`.
        on_alarm: called with an `Alarm` when a head crosses a bound; once, until it is back.
        bounds: what is alarming: the lowest and the highest for any of the three numbers, None for none. By default an
            entropy below 0.01 and a score above 100.

    >>> from sightline import nn as slnn
    >>> model = slnn.Decoder(32, heads=4, layers=2)
    >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    >>> monitor = slnn.Monitor(model, every=2)
    >>> for _ in range(5):
    ...     model(torch.randn(8, 10, 32)).square().mean().backward()
    ...     optimizer.step()
    ...     monitor.step()
    >>> monitor.steps
    [0, 2, 4]
    >>> monitor.latest["layers.1.attention"].entropy.shape
    torch.Size([4])
    >>> monitor.series("layers.1.attention").max_score.shape  # steps, heads
    torch.Size([3, 4])
    >>> monitor.remove()
    """

    def __init__(
        self,
        model: nn.Module,
        every: int = 100,
        *,
        first: int = 4,
        layers: Layers = None,
        optimizer: Optimizer | None = None,
        on: Callable[[Record], object] | None = None,
        on_alarm: Callable[[Alarm], object] | None = None,
        bounds: Bounds | None = None,
    ) -> None:
        self.every, self.first, self.layers = whole("every", every), whole("first", first), layers
        if optimizer is not None and not isinstance(optimizer, Optimizer):
            raise InputTypeError(
                "this is not an optimizer",
                expected="a torch.optim.Optimizer",
                got=type(optimizer).__name__,
                hint="leave it out, and call monitor.step() after each step",
            )
        for name, function in (("on", on), ("on_alarm", on_alarm)):
            if function is not None and not callable(function):
                raise InputTypeError(
                    f"{name} is to be called",
                    expected="a function of one argument",
                    got=type(function).__name__,
                    hint=f"{name}=print",
                )
        self.history: list[Record] = []
        self._on, self._on_alarm, self._alarms = on, on_alarm, Alarms(bounds)
        self._sources = _sources(model, layers)
        self._order = _order(model)
        self._count, self._said = 0, set[str]()
        # A monitor that is dropped stops listening.
        self._off = weakref.finalize(self, _turn_off, self._sources)
        self._off.atexit = False
        self._hook = None if optimizer is None else optimizer.register_step_post_hook(self._after)
        self._listen()

    @property
    def due(self) -> bool:
        """Whether this step is recorded."""
        return self._off.alive and self._count % self.every == 0

    @property
    def latest(self) -> Record | None:
        """The newest record, None before the first."""
        return self.history[-1] if self.history else None

    @property
    def steps(self) -> list[int]:
        """The steps that were recorded."""
        return [record.step for record in self.history]

    @property
    def unseen(self) -> dict[str, str]:
        """What attended and was not recorded: the reason, by the name of the module."""
        return {name: why for source in self._sources for name, why in source.unseen.items()}

    @property
    def alarms(self) -> list[Alarm]:
        """The alarms that stand: of heads that are still beyond a bound."""
        return list(self._alarms.standing.values())

    def step(self) -> None:
        """Say that a step of training is done: beside `optimizer.step()`, once per step."""
        if not self._off.alive:
            return
        record = self._collect() if self.due else None
        self._count += 1
        self._listen()
        if record is None:
            return
        if record:
            self.history.append(record)
            alarms = self._alarms.of(record)
            if self._on is not None:
                self._on(record)
            for alarm in alarms if self._on_alarm is not None else ():
                self._on_alarm(alarm)  # type: ignore[misc]
        self._say(bool(record))

    def scalars(self, prefix: str = "attention") -> dict[str, float]:
        """The newest record flat, for any logger; empty before the first. `Record.scalars` says how names are made.

        >>> from sightline import nn as slnn
        >>> head = slnn.AttentionHead(8, head_size=4)
        >>> with slnn.Monitor(head) as monitor:
        ...     _ = head(torch.randn(3, 8))
        ...     monitor.step()
        >>> sorted(monitor.scalars())
        ['attention/entropy/head0', 'attention/first_share/head0', 'attention/max_score/head0']
        """
        return {} if self.latest is None else self.latest.scalars(prefix)

    def series(self, name: str) -> Reading:
        """One module's readings over time, `[records, heads]`; NaN where it was not called. Rows are `steps`."""
        known = [record[name] for record in self.history if name in record]
        if not known:
            names = dict.fromkeys(name for record in self.history for name in record) or self._names()
            raise InputError(
                "nothing was recorded under this name",
                expected=f"one of {', '.join(names)}, after a step that was due",
                got=repr(name),
                hint="monitor.steps are the steps that were recorded",
            )
        nothing = Reading(*(torch.full_like(part, torch.nan) for part in known[-1]))
        return Reading(*map(torch.stack, zip(*(record.get(name, nothing) for record in self.history), strict=True)))

    def rows(self) -> list[dict[str, Any]]:
        """All that was recorded as a table, one row for each step, module and head: `pandas.DataFrame(monitor.rows())`.

        >>> from sightline import nn as slnn
        >>> head = slnn.AttentionHead(8, head_size=4)
        >>> with slnn.Monitor(head) as monitor:
        ...     _ = head(torch.randn(3, 8))
        ...     monitor.step()
        >>> [sorted(row) for row in monitor.rows()]
        [['entropy', 'first_share', 'head', 'max_score', 'module', 'step']]
        """
        return table(self.history)

    def remove(self) -> None:
        """Stop. The history stays."""
        self._off()
        if self._hook is not None:
            self._hook.remove()
            self._hook = None

    close = remove

    def __enter__(self) -> Monitor:
        return self

    def __exit__(self, *error: object) -> None:
        self.remove()

    def __repr__(self) -> str:
        modules = len(self._names() or (self.latest or ()))
        return f"Monitor(every={self.every}, first={self.first}, modules={modules}, records={len(self.history)})"

    def __str__(self) -> str:
        return repr(self) if self.latest is None else str(self.latest)

    def _names(self) -> list[str]:
        """The modules of Sightline's, which are known before they run."""
        return [name for source in self._sources if isinstance(source, Taps) for name in source.taps]

    def _collect(self) -> Record:
        """The record of this step, layers in the order in which the model defines them."""
        found = {name: counted for source in self._sources for name, counted in source.collect().items()}
        names = sorted(found, key=lambda name: self._order.get(name.split("#")[0], len(self._order)))
        try:
            wanted = chosen(names, self.layers)
        except InputError as error:  # a number of a layer is known to be wrong when all have run
            wanted = set()
            if names:
                self._warn("layers", str(error))
        record = Record(self._count)
        record.update(read({name: found[name] for name in names if name in wanted}, self.first))
        return record

    def _listen(self) -> None:
        for source in self._sources:
            source.listen(self.due)

    def _say(self, some: bool) -> None:
        """Each module that attended unseen is named once; so it is said if nothing was seen of others' modules."""
        new = {name: why for name, why in self.unseen.items() if name not in self._said}
        self._said.update(new)
        if new:
            self._warn(
                "",
                explain(
                    f"the monitor does not see {len(new)} {'module' if len(new) == 1 else 'modules'} that attend",
                    expected="attention by torch's, transformers' or Sightline's functions",
                    got="; ".join(f"{name} ({why})" for name, why in list(new.items())[:8]),
                    hint="monitor.unseen says which and why",
                ),
            )
        elif not some and not self._said and len(self._sources) > int(bool(self._names())):
            self._warn(
                "nothing",
                explain(
                    "the monitor saw no attention in a step that was due",
                    expected="the model to run with gradients enabled, in this thread, before monitor.step()",
                    got="no call of an attention function",
                    hint="make the monitor in the thread that trains; attention written by hand cannot be seen",
                ),
            )

    def _warn(self, key: str, text: str) -> None:
        if not key or key not in self._said:
            self._said.add(key)
            warnings.warn(text, UserWarning, stacklevel=4)

    def _after(self, *_: Any) -> None:
        self.step()


def _sources(model: nn.Module, layers: Layers) -> list[Source]:
    """Sightline's modules by their taps; those of others, if there may be any, by whoever knows them."""
    if not isinstance(model, nn.Module):
        select(model)  # says so
    others = [source for make in OF_OTHERS if (source := make(model, layers)) is not None]
    own = attending(model)
    if not others:
        return [Taps(select(model, layers))]
    check_layers([name for name, _ in model.named_modules()], layers)
    return [*([Taps(own)] if own else []), *others]


def _order(model: nn.Module) -> dict[str, int]:
    """The place of each module by its name, in the order in which the model defines them."""
    names = (".".join(step for step in name.split(".") if step != "_orig_mod") for name, _ in model.named_modules())
    return {name: place for place, name in enumerate(dict.fromkeys(names))}


def _turn_off(sources: list[Source]) -> None:
    for source in sources:
        source.listen(False)
