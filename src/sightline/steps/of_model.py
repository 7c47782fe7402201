"""The attention of a model that runs: `sl.attention` takes part in torch's function modes, so its calls can be seen.

The model is any module made of `sl.nn` parts. Which module makes a call is known from hooks on all of them, and so
are its input and its output. What is kept is the one call that was asked for, and the model stops behind it.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from sightline.backends import attention
from sightline.errors import InputError, InputTypeError
from sightline.steps.compute import Attended
from sightline.steps.labels import read_labels
from sightline.steps.steps import Steps


@dataclass
class Kept:
    """The call that was asked for, and the module that made it."""

    path: str
    module: nn.Module
    tensors: tuple[Tensor, Tensor, Tensor]
    options: dict[str, Any]
    output: Tensor  # of the attention
    x: Tensor | None  # what the module was given
    result: Tensor | None = None  # what the module gave


class _Seen(Exception):
    """The layer asked for has done its work: what comes after it need not be computed."""


class _Eye(TorchFunctionMode):
    """Sees every call of `sl.attention` inside a model, and keeps the one asked for."""

    def __init__(self, layer: int | str | None) -> None:
        super().__init__()
        self.layer, self.thread = layer, threading.get_ident()
        self.paths: list[str] = []
        self.open: list[tuple[str, nn.Module, Tensor | None]] = []  # the modules that are running, inside the last
        self.kept: Kept | None = None

    def __torch_function__(
        self, func: Callable, types: Any, args: tuple = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        out = func(*args, **(kwargs or {}))
        if func is attention:
            path, module, x = self.open[-1]
            wanted = len(self.paths) if isinstance(self.layer, int) else path
            if self.kept is None and (self.layer is None or wanted == self.layer):
                options = {name: value for name, value in (kwargs or {}).items() if name != "backend"}
                self.kept = Kept(path, module, args, options, out, x)
            self.paths.append(path)
        return out

    def enter(self, path: str) -> Callable:
        def hook(module: nn.Module, args: tuple, kwargs: dict[str, Any] | None = None) -> None:
            if threading.get_ident() != self.thread or kwargs is None:
                return  # somebody else asks the same model something, perhaps while this is taken away
            given = [x for x in (*args, *kwargs.values()) if isinstance(x, Tensor)]
            self.open.append((path, module, given[0] if given and given[0].is_floating_point() else None))

        return hook

    def leave(self, module: nn.Module, args: tuple, result: Any) -> None:
        if threading.get_ident() != self.thread:
            return
        path, *_ = self.open.pop()
        kept = self.kept
        if kept is not None and kept.result is None and kept.path == path and isinstance(result, Tensor):
            kept.result = result
            if self.layer is not None:
                raise _Seen


@contextmanager
def _watching(model: nn.Module, eye: _Eye) -> Iterator[None]:
    handles = []
    try:
        for path, module in model.named_modules():
            handles.append(module.register_forward_pre_hook(eye.enter(path), with_kwargs=True))
            handles.append(module.register_forward_hook(eye.leave))
        with torch.no_grad(), eye:
            yield
    finally:
        for handle in handles:
            handle.remove()


def of_model(
    model: nn.Module,
    *inputs: Any,
    layer: int | str | None = None,
    head: int | None = None,
    tokenizer: Any = None,
    labels: str | Sequence[str] | None = None,
) -> Steps:
    """The steps of one attention call of a model."""
    if not inputs:
        raise InputError(
            "nothing to run the model on", expected="a text or a tensor", got="none", hint="explain(model, text)"
        )
    if isinstance(layer, bool) or not isinstance(layer, int | str | None):
        raise InputTypeError(
            "a layer is a number or a path", expected="int or str", got=type(layer).__name__, hint="layer=0"
        )
    tokens: list[str] | None = None
    if isinstance(inputs[0], str):
        ids, tokens = tokenized(model, inputs[0], tokenizer)
        inputs = (ids, *inputs[1:])
        longest = getattr(model, "context", None)
        if isinstance(longest, int) and len(tokens) > longest:
            raise InputError(
                "this text is too long for the model",
                expected=f"at most {longest:,} tokens",
                got=f"{len(tokens):,}",
                hint="a shorter text",
            )
    eye = _Eye(layer)
    with suppress(_Seen), _watching(model, eye):
        model(*inputs)
    kept = _checked(eye, layer)
    q, k, v = kept.tensors
    done = Attended(q, k, v, {n: o for n, o in kept.options.items() if n != "dropout"}, kept.output)
    queries, keys = done.q.shape[1], done.k.shape[1]
    names = read_labels("labels", tokens if labels is None else labels, queries)
    number = layer if isinstance(layer, int) else eye.paths.index(kept.path)
    what = f"layer {number}" + (f", {kept.path}" if kept.path else "")
    before = {} if kept.x is None else {"embeddings": _one(kept.x)}
    notes = []
    positions = getattr(kept.module, "positions", None)
    if getattr(positions, "acts_on", None) == "query_key":
        notes.append(f"q and k are shown as turned by their positions: {type(positions).__name__}.")
    return Steps(
        done,
        labels=names,
        key_labels=names if queries == keys else read_labels("key_labels", None, keys),
        before=before,
        after=_after(kept, done),
        head=head,
        title=f"{type(model).__name__}: {what}" + ("" if head is None else f", head {head}"),
        notes=notes,
    )


def tokenized(model: nn.Module, text: str, tokenizer: Any) -> tuple[Tensor, list[str]]:
    """The ids `[1, time]` of a text and its tokens, by the tokenizer given or as the model itself does it."""
    if tokenizer is None and callable(getattr(model, "batch", None)):  # sl.models
        batch = model.batch(text)  # type: ignore[operator]
        return batch.ids[None], list(batch.tokens)
    tokenizer = getattr(model, "tokenizer", None) if tokenizer is None else tokenizer
    if tokenizer is None:
        raise InputError(
            "this model has no tokenizer",
            expected="a tokenizer for a text, or the tensor the model is called with",
            got=f"{type(model).__name__} and a text",
            hint="explain(model, text, tokenizer=…)",
        )
    encoded = tokenizer.encode(text)
    where = next((p.device for p in model.parameters()), torch.device("cpu"))
    if hasattr(encoded, "ids"):  # the tokenizers library
        return torch.tensor([encoded.ids], device=where), list(encoded.tokens)
    return torch.tensor([list(encoded)], device=where), list(tokenizer.convert_ids_to_tokens(encoded))


def _checked(eye: _Eye, layer: int | str | None) -> Kept:
    if not eye.paths:
        raise InputError(
            "no attention was seen",
            expected="a model made of sl.nn parts, which call sl.attention",
            got="none of its modules did",
            hint="sl.watch(model) for models of other libraries",
        )
    if eye.kept is None or (layer is None and len(eye.paths) > 1):
        some = ", ".join(eye.paths[:6]) + (", …" if len(eye.paths) > 6 else "")
        raise InputError(
            "which layer?" if layer is None else "there is no such layer",
            expected=f"0 to {len(eye.paths) - 1}, or one of {some}",
            got=repr(layer),
            hint="layer=0",
        )
    if eye.kept.options.get("dropout"):
        raise InputError(
            "this model is training, and drops weights at random",
            expected="a model in evaluation mode",
            got=f"dropout={eye.kept.options['dropout']}",
            hint="model.eval()",
        )
    return eye.kept


def _after(kept: Kept, done: Attended) -> dict[str, Tensor]:
    """The heads side by side and, where the module has one, its output projection, as the module gave it."""
    if len(done.q) == 1 and not hasattr(kept.module, "output"):
        return {}
    after = {"concatenation": done.output.transpose(0, 1).flatten(1)}
    projection = getattr(kept.module, "output", None)
    if isinstance(projection, nn.Linear) and kept.result is not None:
        after["w_o"] = projection.weight.detach().T
        if projection.bias is not None:
            after["b_o"] = projection.bias.detach()
        after["projection"] = _one(kept.result)
    return after


def _one(x: Tensor) -> Tensor:
    """The only sequence of a batch of one."""
    return x.detach().reshape(x.shape[-2:]) if x.shape[:-2].numel() == 1 else x.detach()
