"""Training monitors: what every head does, every so many steps, and nothing in between."""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from sightline.errors import InputError, InputTypeError
from sightline.nn.observe.select import Layers, select
from sightline.positions.base import whole

if TYPE_CHECKING:
    from jaxtyping import Float

    from sightline.nn.observe.tap import Counted, Tap


class Reading(NamedTuple):
    """What the heads of one module did in one step: float32 on the CPU, one number per head.

    As `Monitor.series` gives it, there is one row per record: `[records, heads]`.

    >>> reading = Reading(torch.tensor([1.5]), torch.tensor([4.0]), torch.tensor([0.25]))
    >>> reading.first_share
    tensor([0.2500])
    """

    entropy: Float[Tensor, "*records heads"]
    max_score: Float[Tensor, "*records heads"]
    first_share: Float[Tensor, "*records heads"]


class Record(dict[str, Reading]):
    """The readings of one step, by the name of the module; `step` counts from 0.

    >>> record = Record(200)
    >>> record.step, len(record)
    (200, 0)
    """

    def __init__(self, step: int) -> None:
        super().__init__()
        self.step = step

    def __repr__(self) -> str:
        return f"Record(step={self.step}, {', '.join(self) or 'empty'})"


class Monitor:
    """Watches the attention inside a model while it is trained, every `every` steps; it changes nothing.

    It records for every head, of the weights before dropout and without a gradient:

    - `entropy`: in nats, the mean over all queries that may see a key. It falls to 0 when a head collapses.
    - `max_score`: the largest score of all, after soft-cap, bias and mask. It explodes before training does.
    - `first_share`: how much of all weight that keys received went to the first `first` of them, between 0 and 1. It
      rises when the first tokens become sinks.

    Step 0 is recorded, then step `every`, and so on. In between, a module asks one boolean, and computes nothing. A
    compiled model has two graphs, one for the steps that are recorded; neither is broken, and switching compiles
    nothing anew. In the compiled one the numbers are made in `step()`, so q and k are held until then. A compiled model
    with `torch.utils.checkpoint` inside needs `torch._dynamo.config.skip_fwd_side_effects_in_bwd_under_checkpoint =
    True`: without it, or with a torch that has no such option, the numbers are right, but torch runs it uncompiled.

    Calls are recorded where gradients are enabled: validation under `torch.no_grad()` is not. Of several calls of a
    module in one step (gradient accumulation, layers that share weights) the last one is recorded.

    Args:
        model: where to look.
        every: how many steps from one record to the next.
        first: how many keys count as the first.
        layers: which attention to look at, as in `observing`.
        optimizer: calls `step()` after each of its own steps; without it, call `monitor.step()` yourself.

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
    ) -> None:
        self.every, self.first = whole("every", every), whole("first", first)
        if optimizer is not None and not isinstance(optimizer, Optimizer):
            raise InputTypeError(
                "this is not an optimizer",
                expected="a torch.optim.Optimizer",
                got=type(optimizer).__name__,
                hint="leave it out, and call monitor.step() after each step",
            )
        self.history: list[Record] = []
        self._taps = {name: part._tap for name, part in select(model, layers).items()}
        self._count, self._key = 0, object()
        self._box: dict[Tap, Counted] = {}
        # A monitor that is dropped turns its switches off.
        self._off = weakref.finalize(self, _turn_off, list(self._taps.values()), self._key)
        self._off.atexit = False
        self._hook = None if optimizer is None else optimizer.register_step_post_hook(self._after)
        self._listen()

    @property
    def due(self) -> bool:
        """Whether the step that comes, or is under way, will be recorded."""
        return self._off.alive and self._count % self.every == 0

    @property
    def latest(self) -> Record | None:
        """The newest record, None before the first."""
        return self.history[-1] if self.history else None

    @property
    def steps(self) -> list[int]:
        """The steps that were recorded."""
        return [record.step for record in self.history]

    def step(self) -> None:
        """Say that a step of training is done: beside `optimizer.step()`, once per step."""
        if not self._off.alive:
            return
        if self.due:
            for tap in self._taps.values():
                tap.hand_over()
            record = Record(self._count)
            for name, tap in self._taps.items():
                if tap in self._box:
                    record[name] = _read(self._box[tap], self.first)
            self._box.clear()
            if record:
                self.history.append(record)
        self._count += 1
        self._listen()

    def series(self, name: str) -> Reading:
        """One module's readings over time, `[records, heads]`; NaN where it was not called. Rows are `steps`."""
        known = [record[name] for record in self.history if name in record]
        if not known:
            raise InputError(
                "nothing was recorded under this name",
                expected=f"one of {', '.join(self._taps)}, after a step that was due",
                got=repr(name),
                hint="monitor.steps are the steps that were recorded",
            )
        nothing = Reading(*(torch.full_like(part, torch.nan) for part in known[0]))
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
        return [
            {"step": record.step, "module": name, "head": head, **dict(zip(Reading._fields, numbers, strict=True))}
            for record in self.history
            for name, reading in record.items()
            for head, numbers in enumerate(zip(*(part.tolist() for part in reading), strict=True))
        ]

    def remove(self) -> None:
        """Stop. The history stays."""
        self._off()
        if self._hook is not None:
            self._hook.remove()
            self._hook = None

    def __enter__(self) -> Monitor:
        return self

    def __exit__(self, *error: object) -> None:
        self.remove()

    def __repr__(self) -> str:
        return (
            f"Monitor(every={self.every}, first={self.first}, modules={len(self._taps)}, records={len(self.history)})"
        )

    def _listen(self) -> None:
        for tap in self._taps.values():
            tap.listen(self._key, self._box if self.due else None)

    def _after(self, *_: Any) -> None:
        self.step()


def _turn_off(taps: list[Tap], key: object) -> None:
    for tap in taps:
        tap.listen(key, None)


def _read(counted: Counted, first: int) -> Reading:
    """The numbers of a record, of what was counted on any device."""
    part, total = counted.received[:, :first].sum(1), counted.received.sum(1)
    share = torch.where(total != 0, part / total, 0.0)
    return Reading(*(x.to("cpu", torch.float32) for x in (counted.entropy, counted.max_score, share)))
