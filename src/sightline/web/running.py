"""Running a model on a text, watched: what `sightline serve` does with an order and `sightline look` with a text."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import tempfile
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from sightline.errors import InputError, explain
from sightline.models import load as load_model
from sightline.models.builtin import BUILTINS
from sightline.models.checkpoint import open_checkpoint
from sightline.nn import MultiHeadAttention
from sightline.watch import Seen, watch
from sightline.watch import load as load_run
from sightline.web.jobs import Order, Report, Ticket
from sightline.web.problems import left_out
from sightline.web.runs import Run

# What the first view needs of every head; anything else is computed from q and k when it is asked for.
STATS = ("entropy", "received", "overview", "overview_max", "shares")
# Seconds between two looks at a run that is being generated: each reads all of it.
EVERY = 1.0
TITLES = {
    "minilm": "MiniLM-L6: encoder, 6 layers of 12 heads",
    "smollm2": "SmolLM2-135M: causal, 30 layers of 9 heads",
}


class Models:
    """The models a server may run: built-in names and folders, loaded when first used; two are kept in memory.

    A checkpoint that cannot be read is left out, and `skipped` has a line on why.

    >>> [model["name"] for model in Models(["minilm"]).listed()]
    ['minilm']
    """

    def __init__(self, names: Sequence[str] | None = None, kept: int = 2) -> None:
        given = list(names) if names else [name for name, entry in BUILTINS.items() if entry.find() is not None]
        self._paths: dict[str, str] = {}
        self._causal: dict[str, bool] = {}
        self.skipped: list[str] = []
        for name in given:
            short = name if name in BUILTINS else Path(name).name
            if name not in BUILTINS and not Path(name).exists():
                raise InputError(
                    explain(
                        f"there is no model {name!r}",
                        expected=f"one of {', '.join(BUILTINS)}, or a folder with a checkpoint",
                        got=name,
                        hint="--model minilm",
                    )
                )
            try:
                self._causal[short] = _is_causal(name)
            except (KeyboardInterrupt, SystemExit):
                raise
            except BaseException as error:
                self.skipped.append(left_out(f"the model {short}", error))
                continue
            self._paths[short] = name
        self._loaded: OrderedDict[str, tuple[Any, Any]] = OrderedDict()
        self._kept, self._lock = kept, threading.Lock()

    def __contains__(self, name: object) -> bool:
        return name in self._paths

    def listed(self) -> list[dict[str, Any]]:
        """Every model by name, with a line about it."""
        return [{"name": name, "title": TITLES.get(name, name), "causal": self._causal[name]} for name in self._paths]

    def first(self) -> str:
        """The name of the first model, or an error that says why there is none.

        >>> Models(["minilm"]).first()
        'minilm'
        """
        if not self._paths:
            raise InputError(
                explain(
                    "there is no model to run",
                    expected=f"one of {', '.join(BUILTINS)}, or a folder with a checkpoint",
                    got="; ".join(self.skipped) or "none that is installed",
                    hint="--model minilm",
                )
            )
        return next(iter(self._paths))

    def get(self, name: str) -> tuple[Any, Any]:
        """A model and its tokenizer."""
        with self._lock:
            if name not in self._loaded:
                model, tokenizer = load_model(self._paths[name])
                self._loaded[name] = (model.eval(), tokenizer)
                while len(self._loaded) > self._kept:
                    self._loaded.popitem(last=False)
            self._loaded.move_to_end(name)
            return self._loaded[name]


def _is_causal(name: str) -> bool:
    """Whether a model goes on writing, as far as that can be told without loading it."""
    if name in BUILTINS:
        return name == "smollm2"
    checkpoint = open_checkpoint(name)
    kinds = checkpoint.config.get("architectures") or ()
    return Path(name).suffix == ".gguf" or any("CausalLM" in kind or "LMHead" in kind for kind in kinds)


def name_order(order: Order) -> str:
    """The id of the run that an order leads to: a hash of model, text and options."""
    content = json.dumps([order.model, order.text, order.layers, order.generate])
    return hashlib.sha256(content.encode("utf-8", "surrogatepass")).hexdigest()[:16]


def performer(models: Models, grown: Callable[[Run], None]) -> Callable[[Ticket, Report], Run]:
    """What a server does with an order: a watched run in a folder of its own, which is removed with the run."""

    def perform(ticket: Ticket, report: Report) -> Run:
        torch.set_num_threads(os.cpu_count() or 1)  # this thread's; those that make tiles have one each
        folder = Path(tempfile.mkdtemp(prefix="sightline-"))

        def cleanup() -> None:
            shutil.rmtree(folder, ignore_errors=True)

        def growing(seen: Seen) -> None:
            for name in seen.layers:
                seen.shares(name)  # read now, by the thread that also writes: later the files may be newer
            run = as_run(ticket.id, seen, cleanup=cleanup)
            run.growing, run.revision = True, len(run.tokens)
            grown(run)

        try:
            report(stage=f"loading {ticket.order.model}")
            model, tokenizer = models.get(ticket.order.model)
            watched(model, tokenizer, ticket.order, folder, report, growing)
            return as_run(ticket.id, load_run(folder), cleanup=cleanup)
        except BaseException:
            cleanup()
            raise

    return perform


def watched(
    model: Any,
    tokenizer: Any,
    order: Order,
    folder: Path,
    report: Report,
    growing: Callable[[Seen], None] | None = None,
) -> None:
    """Run a model on a text and write what it attended to into a folder."""
    encoding = _encoded(tokenizer, order)
    ids, context = list(encoding.ids), getattr(model, "context", None)
    if not ids:
        raise InputError(
            explain("this text has no tokens", expected="some text", got=repr(order.text[:40]), hint="a word")
        )
    if context is not None and len(ids) + order.generate > context:
        raise InputError(
            explain(
                f"this text is too long for {order.model}",
                expected=f"at most {context:,} tokens",
                got=f"{len(ids):,} tokens" + (f" and {order.generate} to generate" if order.generate else ""),
                hint="a part of it, or a model with a longer context",
            )
        )
    if order.generate and not hasattr(model, "stream"):
        raise InputError(
            explain(f"{order.model} cannot generate", expected="a causal model", got=order.model, hint="generate=0")
        )
    meta = {"name": order.model, "text": order.text, "spans": [list(pair) for pair in encoding.offsets]}
    with (
        torch.no_grad(),
        watch(model, chosen(order.layers), keep_qk=folder, stats=STATS, tokenizer=tokenizer) as seen,
    ):
        seen.meta.update(meta)
        if not order.generate:
            with _progress(model, report, "running"):
                model(torch.tensor([ids], device=model.device))
        else:
            _generate(model, order, folder, seen, report, growing)
    report(stage="finishing")


def _encoded(tokenizer: Any, order: Order) -> Any:
    if tokenizer is None:
        raise InputError(
            explain(
                f"{order.model} cannot read texts",
                expected="a model with a tokenizer",
                got="a checkpoint without tokenizer.json",
                hint="put tokenizer.json beside the weights",
            )
        )
    try:
        return tokenizer.encode(order.text)
    # The library raises plain exceptions, and panics that are not even that.
    except BaseException as error:
        if isinstance(error, KeyboardInterrupt | SystemExit | MemoryError):
            raise
        raise InputError(
            explain(
                f"the tokenizer of {order.model} breaks on this text",
                expected="a tokenizer that can cut any text",
                got=" ".join(str(error).split())[:200],
                hint="another text",
            )
        ) from error


def as_run(id: str, seen: Seen, **about: Any) -> Run:
    """A watched run as the explorer serves it."""
    tokens, memory = seen.tokens, seen.memory_tokens
    sight = seen[0]
    batch = about.get("batch", 0)
    names = tokens[batch] if tokens else [""] * sight.shape[-2]
    meta = seen.meta
    return Run(
        id,
        seen,
        names,
        memory=memory[batch] if memory else None,
        model=meta.get("name") or meta.get("model"),
        text=meta.get("text"),
        spans=meta.get("spans"),
        **about,
    )


def chosen(layers: str | None) -> list[int | str] | None:
    """Layers as people write them: `0-3,5`, or names.

    >>> chosen("0-2,5,encoder.layers.4")
    [0, 1, 2, 5, 'encoder.layers.4']
    """
    if layers is None or not layers.strip():
        return None
    found: list[int | str] = []
    for part in (part.strip() for part in layers.split(",")):
        first, dash, last = part.partition("-")
        if part.isdecimal():
            found.append(int(part))
        elif dash and first.isdecimal() and last.isdecimal():
            if int(last) - int(first) > 10_000 or int(last) < int(first):
                raise InputError(explain("no such layers", expected="e.g. 0-3,5", got=part[:40], hint="0-3"))
            found.extend(range(int(first), int(last) + 1))
        elif part:
            found.append(part)
    return found


def _generate(
    model: Any, order: Order, folder: Path, seen: Seen, report: Report, growing: Callable[[Seen], None] | None
) -> None:
    """Token by token; what has been written so far is handed out whenever the folder has grown."""
    known, told, text = 0.0, 0.0, []
    report(stage="reading the text", done=0, total=order.generate)
    for i, piece in enumerate(model.stream(order.text, max_new_tokens=order.generate), start=1):
        text.append(piece)
        seen.meta["text"] = order.text + "".join(text)
        report(stage="generating", done=i, total=order.generate)
        stamp = (folder / "index.json").stat().st_mtime
        if growing is not None and stamp > known and i > 1 and time.monotonic() > told + EVERY:
            known = stamp
            growing(load_run(folder))
            told = time.monotonic()


@contextmanager
def _progress(model: Any, report: Report, stage: str) -> Iterator[None]:
    """Report every attention layer that is done."""
    layers = [module for module in model.modules() if isinstance(module, MultiHeadAttention)]
    done = 0

    def hook(*_: object) -> None:
        nonlocal done
        done += 1
        report(stage=stage, done=min(done, len(layers)), total=len(layers))

    report(stage=stage, done=0, total=len(layers))
    handles = [layer.register_forward_hook(hook) for layer in layers]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()
