"""Running a model on a text, watched: what `sightline serve` does with a request and `sightline look` with a text."""

from __future__ import annotations

import hashlib
import json
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from itertools import chain, islice
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from sightline.devices import find_device
from sightline.editing import edit
from sightline.errors import InputError
from sightline.explore.aims import Aim
from sightline.explore.changes import edits_of
from sightline.explore.once_more import Report, attention_layers, each_layer
from sightline.explore.reasons import left_out
from sightline.explore.writing import NEXT, Pace, Writing, likeliest
from sightline.models import load as load_model
from sightline.models.build import family_of
from sightline.models.checkpoints.builtin import BUILTINS
from sightline.models.checkpoints.opening import open_checkpoint
from sightline.models.families import FAMILIES
from sightline.models.text.generate import new_tokens
from sightline.models.text.stream import TextStream
from sightline.nn import MultiHeadAttention
from sightline.watching import Seen, watch
from sightline.watching import load as load_run
from sightline.watching.choose import LayerChoice

# What the first view needs of every head; anything else is computed from q and k when it is asked for.
STATS = ("entropy", "received", "overview", "overview_max", "shares")
# Seconds between two looks at a run that is being made, each of which reads all of it; and of the time at most a share.
EVERY, SHARE = 1.0, 0.1
TITLES = {
    "minilm": "MiniLM-L6: encoder, 6 layers of 12 heads",
    "smollm2": "SmolLM2-135M-Instruct, 4-bit weights: causal, 30 layers of 9 heads",
}


@dataclass(frozen=True)
class RunRequest:
    """A text to run a model on.

    >>> RunRequest("the kids left", "minilm").id
    '3e469f20dec57af0'
    """

    text: str
    model: str
    layers: str | None = None
    generate: int = 0
    begun: tuple[int, ...] = ()  # ids that are written first, of those to generate
    edits: tuple[str, ...] = ()  # as `changes` reads them
    image: bytes = field(default=b"", repr=False)  # a picture in place of a text, which is then its name

    @property
    def id(self) -> str:
        """The name of the run that it leads to: a hash of model, text and options."""
        options: list[Any] = [list(self.begun), *self.edits] if self.begun or self.edits else []
        options += [hashlib.sha256(self.image).hexdigest()] if self.image else []
        content = json.dumps([self.model, self.text, self.layers, self.generate, *options])
        return hashlib.sha256(content.encode("utf-8", "surrogatepass")).hexdigest()[:16]


class Models:
    """The models that may be run: built-in names and folders, loaded when first used; two are kept in memory.

    A checkpoint that cannot be read is left out, and `skipped` has a line on why. A device that is not there is an
    error, before anything is read.

    >>> [model["name"] for model in Models(["minilm"]).listed()]
    ['minilm']
    """

    held = False  # whoever wants one loads it
    device = "cpu"  # where they run

    def __init__(self, names: Sequence[str] | None = None, kept: int = 2, device: str = "cpu") -> None:
        self.device = find_device(device)
        given = list(names) if names else [name for name, entry in BUILTINS.items() if entry.find() is not None]
        self._paths: dict[str, str] = {}
        self._kinds: dict[str, str] = {}
        self.skipped: list[str] = []
        for name in given:
            short = name if name in BUILTINS else Path(name).name
            if name not in BUILTINS and not Path(name).exists():
                raise InputError(
                    f"there is no model {name!r}",
                    expected=f"one of {', '.join(BUILTINS)}, or a folder with a checkpoint",
                    got=name,
                    hint="--model minilm",
                )
            try:
                self._kinds[short] = _kind(name)
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
        return [
            {"name": name, "title": TITLES.get(name, name), "causal": kind == "causal", "image": kind == "image"}
            for name, kind in self._kinds.items()
        ]

    def first(self) -> str:
        """The name of the first model, or an error that says why there is none.

        >>> Models(["minilm"]).first()
        'minilm'
        """
        if not self._paths:
            raise InputError(
                "there is no model to run",
                expected=f"one of {', '.join(BUILTINS)}, or a folder with a checkpoint",
                got="; ".join(self.skipped) or "none that is installed",
                hint="--model minilm",
            )
        return next(iter(self._paths))

    def get(self, name: str) -> tuple[Any, Any]:
        """A model and its tokenizer."""
        with self._lock:
            if name not in self._loaded:
                model, tokenizer = load_model(self._paths[name], device=self.device)
                self._loaded[name] = (model.eval(), tokenizer)
                while len(self._loaded) > self._kept:
                    self._loaded.popitem(last=False)
            self._loaded.move_to_end(name)
            return self._loaded[name]


def _kind(name: str) -> str:
    """Whether a model goes on writing, or reads images, as far as that can be told without loading it."""
    if name in BUILTINS:
        return "causal" if name == "smollm2" else ""
    checkpoint = open_checkpoint(name)
    kinds = checkpoint.config.get("architectures") or ()
    if Path(name).suffix == ".gguf" or any("CausalLM" in kind or "LMHead" in kind for kind in kinds):
        return "causal"
    return "image" if family_of(checkpoint) is FAMILIES["vit"] else ""


def watched(
    model: Any,
    tokenizer: Any,
    request: RunRequest,
    folder: Path,
    report: Report,
    growing: Callable[[Seen], None] | None = None,
    pace: Pace | None = None,
    target: Callable[[Any], Tensor] | None = None,
    aim: Aim | None = None,
) -> float | None:
    """Run a model on a text and write what it attended to into a folder; `growing` is given what is there meanwhile.

    `pace` is told of every token that is written, and may hold the next one back. With a target, also what mattered
    for it, kept under the words of its aim; gives its number.
    """
    encoding = _encoded(tokenizer, request)
    ids, context = list(encoding.ids), getattr(model, "context", None)
    if not ids:
        raise InputError("this text has no tokens", expected="some text", got=repr(request.text[:40]), hint="a word")
    if context is not None and len(ids) + request.generate > context:
        raise InputError(
            f"this text is too long for {request.model}",
            expected=f"at most {context:,} tokens",
            got=f"{len(ids):,} tokens" + (f" and {request.generate} to generate" if request.generate else ""),
            hint="a part of it, or a model with a longer context",
        )
    if request.generate and not hasattr(model, "stream"):
        raise InputError(
            f"{request.model} cannot generate", expected="a causal model", got=request.model, hint="generate=0"
        )
    top = getattr(getattr(model, "embedding", None), "num_embeddings", 0)
    if len(request.begun) > request.generate or any(not 0 <= id < top for id in request.begun):
        raise InputError(
            "these tokens cannot begin what is to be written",
            expected=f"at most {request.generate} ids below {top}",
            got=f"{len(request.begun)} ids",
            hint="ids of the tokens that were written, and of the alternative",
        )
    layers, is_language = layers_of(model, request), hasattr(model, "stream")
    meta: dict[str, Any] = {"asked": request.text} if request.generate else {}
    meta |= {"name": request.model, "text": request.text, "spans": [list(pair) for pair in encoding.offsets]}
    changes = edits_of(request.edits, len(attention_layers(model)) or None)
    if changes:
        meta["edits"] = list(request.edits)
    with (
        torch.set_grad_enabled(target is not None),
        edit(model, changes) if changes else nullcontext(),
        watch(model, layers, folder, stats=STATS, tokenizer=tokenizer, influence=target is not None) as seen,
    ):
        seen.meta.update(meta)
        y = None
        if not request.generate:
            with progress(model, report, "running", Peek(folder, growing)):
                last = {"last": 1} if is_language and target is None else {}
                out = model(torch.tensor([ids], device=model.device), **last)
            if is_language:
                seen.meta["next"] = likeliest(out[0, -1], NEXT, tokenizer, ids)
            if target is not None:
                report(stage="what mattered")
                y = target(out)
                seen.backward(y)
                if aim is not None:
                    seen.meta["mattered_for"] = {**vars(aim), "value": float(y.detach())}
        else:
            writing = Writing(tokenizer, ids, request.begun)
            _generate(model, request, writing, seen, report, Peek(folder, _telling(growing, writing), wait=0.0), pace)
    report(stage="finishing")
    return None if y is None else float(y.detach())


def _encoded(tokenizer: Any, request: RunRequest) -> Any:
    if tokenizer is None:
        raise InputError(
            f"{request.model} cannot read texts",
            expected="a model with a tokenizer",
            got="a checkpoint without tokenizer.json",
            hint="put tokenizer.json beside the weights",
        )
    try:
        return tokenizer.encode(request.text)
    # The library raises plain exceptions, and panics that are not even that.
    except BaseException as error:
        if isinstance(error, KeyboardInterrupt | SystemExit | MemoryError):
            raise
        raise InputError(
            f"the tokenizer of {request.model} breaks on this text",
            expected="a tokenizer that can cut any text",
            got=" ".join(str(error).split())[:200],
            hint="another text",
        ) from error


def chosen(layers: str | None) -> list[int | str] | None:
    """Layers as people write them: `0-3,5`, or names; None for all.

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
                raise InputError("no such layers", expected="e.g. 0-3,5", got=part[:40], hint="0-3")
            found.extend(range(int(first), int(last) + 1))
        elif part:
            found.append(part)
    if not found:
        raise InputError("no such layers", expected="e.g. 0-3,5", got=layers[:40], hint="0-3")
    return found


def layers_of(model: Any, request: RunRequest) -> list[int | str] | None:
    """The layers that are asked for, each of which is there: that need not wait until the model has run."""
    wanted = chosen(request.layers)
    names = [name for name, module in model.named_modules() if isinstance(module, MultiHeadAttention)]
    missing = LayerChoice(wanted, [name for name, _ in model.named_modules()]).idle(names)
    if missing and names:
        last = len(names) - 1
        raise InputError(
            f"{request.model} has no such layers",
            expected=f"0 to {last}, or a name such as {names[-1]}",
            got=", ".join(str(layer)[:40] for layer in missing[:8]) + (" …" if len(missing) > 8 else ""),
            hint=f"0-{last}" if last else "0",
        )
    return wanted


def _generate(
    model: Any,
    request: RunRequest,
    writing: Writing,
    seen: Seen,
    report: Report,
    peek: Peek,
    pace: Pace | None,
) -> None:
    """Token by token; what has been written so far is handed out whenever the folder has grown."""
    stream, text = TextStream(writing.tokenizer, writing.ids), []
    steps = iter(new_tokens(model, [list(writing.ids)], writing, request.generate))
    with progress(model, report, "reading the text", lambda: None):
        first = list(islice(steps, 1))  # the whole text is read before it
    for i, (token,) in enumerate(chain(first, steps), start=1):
        if token in model.special.eos and i > len(request.begun):
            writing.tokens.pop()
            break
        text.append(stream.add(token))
        seen.meta |= {"text": request.text + "".join(text), "written": writing.about()}
        report(stage="generating", done=i, total=request.generate)
        if i > 1:
            peek(at_once=pace is not None and pace.paused)
        if pace is not None:
            pace.wait(writing.about())
            report(stage="generating", done=i, total=request.generate)  # taken back, or not
            if pace.stopped:
                break
    seen.meta |= {"text": request.text + "".join(text) + stream.end(), "written": writing.about()}


def _telling(growing: Callable[[Seen], None] | None, writing: Writing) -> Callable[[Seen], None] | None:
    """The same, and every run that is handed out says what is written: its folder may be older than that."""
    if growing is None:
        return None

    def told(there: Seen) -> None:
        there.meta.setdefault("written", writing.about())
        growing(there)

    return told


class Peek:
    """Hands out what a folder holds, whenever that has grown and some time has passed."""

    def __init__(self, folder: Path, growing: Callable[[Seen], None] | None, wait: float | None = None) -> None:
        self.index, self.growing = folder / "index.json", growing
        self.known, self.next = 0, time.monotonic() + (EVERY if wait is None else wait)

    def __call__(self, at_once: bool = False) -> None:
        if self.growing is None or (time.monotonic() < self.next and not at_once):
            return
        stamp, start = self.index.stat().st_mtime_ns, time.monotonic()
        if stamp > self.known and (seen := load_run(self.index.parent)).layers:
            self.known = stamp
            self.growing(seen)
        end = time.monotonic()
        self.next = end + max(EVERY, (end - start) / SHARE)


@contextmanager
def progress(model: Any, report: Report, stage: str, peek: Callable[[], None]) -> Iterator[None]:
    """Report every attention layer that is done, and let those that are there be looked at."""
    done = 0

    def step() -> None:
        nonlocal done
        done = min(done + 1, len(layers))
        if done < len(layers):
            peek()  # first: whoever hears of a layer asks for it
        report(stage=stage, done=done, total=len(layers))

    with each_layer(model, step) as layers:
        report(stage=stage, done=0, total=len(layers))
        yield
