"""Training one rung after another on the same text with the same budget."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from sightline.errors import InputError
from sightline.lessons.ladder import checkpoint
from sightline.lessons.ladder.checkpoint import Checkpoint
from sightline.lessons.ladder.rungs import RUNGS, Rung
from sightline.lessons.ladder.sample import sample
from sightline.lessons.ladder.settings import Settings
from sightline.lessons.ladder.text import Text
from sightline.lessons.ladder.threads import threads

# Called as `listen(rung, step, loss)`: which rung, after how many steps, and its training loss.
Listener = Callable[[int, int, float | None], None]
WINDOWS = 64  # of the held-out part, at a time
EVERY = 10  # steps between two calls of the listener: asking a GPU for a number makes it wait


class Training:
    """One rung on its way: model, optimizer, and the random numbers that choose its batches."""

    def __init__(self, rung: Rung, text: Text, settings: Settings) -> None:
        self.text, self.settings, self.step = text, settings, 0
        self.device = torch.device(settings.device)
        self.model = rung.model(len(text.alphabet), settings.sizes, settings.seed).to(self.device)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), betas=(0.9, 0.99), weight_decay=0.0)
        # Its own generator, seeded alike for every rung: all of them see the same batches in the same order.
        self.batches = torch.Generator().manual_seed(settings.seed)
        self.characters = text.training.to(self.device)
        self.held_out = _windows(text.held_out, settings.context).to(self.device)

    def advance(self) -> Tensor:
        """One step; returns the loss of its batch."""
        context = self.settings.context
        for group in self.optimizer.param_groups:
            group["lr"] = self.settings.rate(self.step)
        last = len(self.characters) - context
        starts = torch.randint(last, (self.settings.batch, 1), generator=self.batches)
        window = self.characters[(starts + torch.arange(context + 1)).to(self.device)]  # [batch, context + 1]
        loss = self._loss(window)
        self.optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimizer.step()
        self.step += 1
        return loss.detach()

    def evaluate(self) -> float:
        """The mean loss over the whole held-out part, in nats per character."""
        with torch.no_grad():
            parts = [self._loss(part, "sum") for part in self.held_out.split(WINDOWS)]
        return float(sum(part.double() for part in parts)) / self.held_out[:, 1:].numel()

    def _loss(self, windows: Tensor, reduction: str = "mean") -> Tensor:
        logits = self.model(windows[:, :-1])  # [batch, context, alphabet]
        return F.cross_entropy(logits.flatten(0, 1), windows[:, 1:].flatten(), reduction=reduction)

    def state(self) -> dict[str, Tensor]:
        """Everything the next step depends on."""
        state = {f"model.{name}": value for name, value in self.model.state_dict().items()}
        for name, parameter in self.model.named_parameters():
            for key, value in self.optimizer.state[parameter].items():
                state[f"optimizer.{key}.{name}"] = value
        state["batches"] = self.batches.get_state()
        return state

    def restore(self, state: dict[str, Tensor], step: int) -> None:
        """Go back to what `state` gave after so many steps."""
        names = {f"model.{name}": name for name in self.model.state_dict()}
        self.model.load_state_dict({name: state[key] for key, name in names.items()})
        for name, parameter in self.model.named_parameters():
            kept = {key: state[f"optimizer.{key}.{name}"] for key in ("step", "exp_avg", "exp_avg_sq")}
            # The count of steps stays on the CPU, as the optimizer has it.
            kept = {key: value if key == "step" else value.to(self.device) for key, value in kept.items()}
            self.optimizer.state[parameter] = kept
        self.batches.set_state(state["batches"])
        self.step = step


def _windows(characters: Tensor, context: int) -> Tensor:
    """A text cut into windows of `context` characters, each with the one that follows: `[windows, context + 1]`.

    >>> _windows(torch.arange(8), 3)
    tensor([[0, 1, 2, 3],
            [3, 4, 5, 6]])
    """
    return characters.unfold(0, context + 1, context)


def climb(
    text: Text, settings: Settings, folder: Path | None = None, listen: Listener | None = None
) -> list[dict[str, Any]]:
    """Train every rung, and say of each how well it predicts text it has not seen.

    On the CPU the same settings give the same numbers every time, for the same number of threads, torch and processor.
    On a GPU sums are done in any order, and the last digits may differ.

    Args:
        text: from `make_text`.
        settings: the budget, the same for every rung.
        folder: where to keep a checkpoint; with one in it, the ladder goes on from there.
        listen: called as `listen(rung, step, loss)` as training goes on.

    Returns:
        Of each rung: name, adds, parameters, loss (nats per character of the held-out part), curve of (step, loss),
        seconds on the clock and of the processor, sample.

    >>> from sightline.lessons.ladder import QUICK, Settings, climb, make_text
    >>> settings = Settings(**{**QUICK, "steps": 2, "sample": 1})
    >>> rungs = climb(make_text("abc", "abracadabra " * 40, settings.context), settings)
    >>> len(rungs), rungs[1]["name"], rungs[1]["loss"] < 3
    (9, 'average', True)
    """
    listen = listen or (lambda rung, step, loss: None)
    wanted = checkpoint.identity(text, settings)
    now = Checkpoint(wanted) if folder is None else checkpoint.load(folder, wanted)

    def keep() -> None:
        if folder is not None:
            now.save(folder)

    with threads(settings.threads):
        for number, rung in enumerate(RUNGS):
            if number < len(now.done):
                listen(number, settings.steps, now.done[number]["loss"])
                continue
            training = Training(rung, text, settings)
            if now.step:
                _restore(training, now)
            for _ in _stops(training, now, partial(listen, number)):
                now.tensors = training.state() if folder is not None else {}
                keep()
            parameters = sum(p.numel() for p in training.model.parameters())
            result = {
                "name": rung.name,
                "adds": rung.adds,
                "parameters": parameters,
                "loss": now.curve[-1][1],
                "curve": now.curve,
                "seconds": round(now.seconds, 2),
                "cpu_seconds": round(now.cpu_seconds, 2),
                "sample": sample(training.model, text, settings.context, seed=settings.seed, length=settings.sample),
            }
            now = Checkpoint(wanted, [*now.done, result])
            keep()
    return now.done


def _stops(training: Training, now: Checkpoint, listen: Callable[[int, float | None], None]) -> Iterator[None]:
    """Train, and pause at every stop with the checkpoint's step, curve and seconds up to date."""
    settings = training.settings
    clock, processor = time.perf_counter(), time.process_time()
    listen(training.step, now.curve[-1][1] if now.curve else None)
    for stop in settings.stops:
        if stop <= training.step:
            continue
        while training.step < stop:
            loss = training.advance()
            if training.step % EVERY == 0 or training.step == stop:
                listen(training.step, loss.item())
        if stop in settings.evaluations:
            now.curve.append((stop, training.evaluate()))
        now.step = stop
        now.seconds, clock = now.seconds + time.perf_counter() - clock, time.perf_counter()
        now.cpu_seconds, processor = now.cpu_seconds + time.process_time() - processor, time.process_time()
        yield


def _restore(training: Training, now: Checkpoint) -> None:
    try:
        looked = [step for step in training.settings.evaluations if step <= now.step]
        if now.step not in training.settings.stops or [step for step, _ in now.curve] != looked:
            raise ValueError(f"step {now.step} with {len(now.curve)} losses")
        training.restore(now.tensors, now.step)
    except (KeyError, RuntimeError, TypeError, ValueError) as error:
        raise InputError(
            "the checkpoint does not fit this ladder",
            expected="the weights and the optimizer of the rung it stopped at",
            got=f"{type(error).__name__}: {str(error).splitlines()[0]}",
            hint="--fresh, to start from the first rung",
        ) from None
