"""What a run is asked about, as one number per example: the y of influence, of ablations and of patching.

A target is a function of a model's output: logits as a tensor, or an output of transformers that holds them. It keeps
its gradient: `seen.backward(target(model(ids)))`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from sightline.errors import InputError, InputTypeError
from sightline.shapes import as_whole

if TYPE_CHECKING:
    from jaxtyping import Float

__all__ = ["Target", "logit", "logprob", "loss", "similarity"]


@dataclass(frozen=True, eq=False, repr=False)
class Target:
    """One number per example of a model's output, `[batch]`; made by the functions of `sl.targets`.

    >>> logit(3, than=5)
    logit(3, than=5, at=-1)
    """

    kind: str
    token: Any
    than: Any
    at: Any

    def __call__(self, output: Any) -> Float[Tensor, " batch"]:
        if self.kind == "similarity":
            return _similarity(output, self.token, self.at)
        if self.kind == "loss":
            return _loss(output, self.token, self.at)
        logits = _logits(output)
        row = _row(logits, self.at)
        if self.kind == "logprob":
            row = row.log_softmax(-1)
        found = _pick(row, self.token, "token")
        return found if self.than is None else found - _pick(row, self.than, "than")

    @property
    def reads_last(self) -> bool:
        """Whether it reads the logits of the last position, and no others."""
        return self.kind in ("logit", "logprob") and isinstance(self.at, int) and self.at == -1

    def __repr__(self) -> str:
        def said(x: Any) -> str:
            return f"<{' x '.join(map(str, x.shape))}>" if isinstance(x, Tensor) and x.dim() else str(x)

        than = "" if self.than is None else f", than={said(self.than)}"
        at = "" if self.at is None else f", at={said(self.at)}"
        return f"{self.kind}({said(self.token)}{than}{at})"


def logit(token: Any, than: Any = None, at: Any = -1) -> Target:
    """The logit of a token, or how much larger it is than another's.

    Args:
        token: an id, or one for each example. A text is not taken: which ids it has is the tokenizer's to say.
        than: another id, whose logit is subtracted.
        at: the position whose logits are read, or one for each example; the last if not given. Of logits without an
            axis of time, `[batch, classes]`, there is only the last.

    >>> logits = torch.arange(12.0).reshape(1, 3, 4)
    >>> logit(3)(logits), logit(3, than=0, at=1)(logits)
    (tensor([11.]), tensor([3.]))
    """
    return Target("logit", _ids("token", token), None if than is None else _ids("than", than), _places(at))


def logprob(token: Any, than: Any = None, at: Any = -1) -> Target:
    """The logarithm of a token's probability, or how much larger it is than another's: arguments as in `logit`.

    >>> logprob(2)(torch.zeros(1, 3, 4))
    tensor([-1.3863])
    """
    return Target("logprob", _ids("token", token), None if than is None else _ids("than", than), _places(at))


def loss(span: Any, at: int | None = None) -> Target:
    """The mean loss of the tokens of a span, an answer say: -log of the probability that each had.

    Args:
        span: the ids of its tokens, `[tokens]`, or `[batch, tokens]` for each example its own.
        at: the position of its first token in the text that the model was given; if not given, it ends that text.

    >>> loss([1, 2])(torch.zeros(1, 3, 4))
    tensor([1.3863])
    """
    if isinstance(span, slice):
        raise InputTypeError(
            "a span is the ids of its tokens: an output does not say which they were",
            expected="[tokens], or [batch, tokens]",
            got=repr(span),
            hint="sl.targets.loss(ids[:, 5:9], at=5)",
        )
    ids = _ids("span", span)
    ids = ids if isinstance(ids, Tensor) and ids.dim() else torch.as_tensor(ids).reshape(1)
    if not ids.shape[-1] or ids.dim() > 2:
        raise InputError(
            "a span has one token or more",
            expected="[tokens], or [batch, tokens]",
            got=tuple(ids.shape),
            hint="sl.targets.loss(ids[:, -4:])",
        )
    where = None if at is None else as_whole(at)
    if at is not None and where is None:
        raise InputTypeError(
            "the place of a span is a whole number", expected="int", got=type(at).__name__, hint="at=5"
        )
    return Target("loss", ids, None, where)


def similarity(vector: Float[Tensor, "*batch dim"], at: int | None = None) -> Target:
    """The cosine of the angle between a vector and what the model makes of each example.

    Args:
        vector: `[dim]`, or `[batch, dim]` for each example its own.
        at: of an output with an axis of time, `[batch, time, dim]`, the position that is compared: 0 for a first
            token that stands for the text. Of `[batch, dim]` nothing need be said.

    >>> similarity(torch.tensor([0.0, 2.0]))(torch.tensor([[3.0, 4.0]]))
    tensor([0.8000])
    """
    if not isinstance(vector, Tensor) or not vector.is_floating_point() or not 1 <= vector.dim() <= 2:
        got = f"{vector.dtype} {tuple(vector.shape)}" if isinstance(vector, Tensor) else type(vector).__name__
        raise InputTypeError(
            "similarity is to a vector",
            expected="a float tensor, [dim] or [batch, dim]",
            got=got,
            hint="model.encode(text)[0]",
        )
    return Target("similarity", vector.detach().clone(), None, None if at is None else _places(at))


def _ids(name: str, value: Any) -> int | Tensor:
    """An id, or a tensor of them."""
    texts = isinstance(value, str) or (isinstance(value, Sequence) and any(isinstance(one, str) for one in value))
    whole = as_whole(value)
    if whole is not None and whole >= 0:
        return whole
    if isinstance(value, Tensor) and not value.is_floating_point() and value.dtype != torch.bool and value.numel():
        if bool((value >= 0).all()):
            return value.detach().clone()
    elif isinstance(value, Sequence) and not isinstance(value, str) and value:
        rows = [list(one) if isinstance(one, Sequence) and not isinstance(one, str) else one for one in value]
        flat = [n for row in rows for n in (row if isinstance(row, list) else [row])]
        even = len({len(row) if isinstance(row, list) else -1 for row in rows}) == 1
        if even and all((n := as_whole(one)) is not None and n >= 0 for one in flat):
            return torch.tensor(rows)
    raise InputTypeError(
        f"{name} is said by its id" + (": which ids a text has is the tokenizer's to say" if texts else ""),
        expected="a whole number from 0 on, or one for each example",
        got=repr(value)[:80],
        hint="tokenizer.encode(' Mary').ids[0]; of transformers tokenizer.encode(' Mary', add_special_tokens=False)[0]"
        if texts
        else f"{name}=42, or {name}=[42, 7] for two examples",
    )


def _places(at: Any) -> int | Tensor:
    whole = as_whole(at)
    if whole is not None:
        return whole
    if isinstance(at, Sequence) and not isinstance(at, str) and at and all(as_whole(one) is not None for one in at):
        return torch.tensor(list(at))
    if isinstance(at, Tensor) and not at.is_floating_point() and at.dtype != torch.bool and at.dim() <= 1:
        return at.detach().clone()
    raise InputTypeError(
        "at is a position", expected="a whole number, or one for each example", got=repr(at)[:80], hint="at=-1"
    )


def _named(output: Any, names: tuple[str, ...]) -> Any:
    for name in names:
        found = output.get(name) if isinstance(output, Mapping) else getattr(output, name, None)
        if isinstance(found, Tensor):
            return found
    return output


def _logits(output: Any) -> Tensor:
    found = _named(output, ("logits", "prediction_logits"))
    if isinstance(found, Tensor) and found.is_floating_point() and found.dim() in (2, 3):
        return found
    got = f"a tensor {tuple(found.shape)}" if isinstance(found, Tensor) else type(output).__name__
    raise InputTypeError(
        "this target reads logits",
        expected="[batch, time, vocabulary], [batch, classes], or an output with .logits",
        got=got,
        hint="a model with a head, or target(output[0]) if they are its first part",
    )


def _row(x: Tensor, at: int | Tensor) -> Tensor:
    """One position of each example, `[batch, …]`."""
    if x.dim() == 2:
        if isinstance(at, Tensor) or at != -1:
            raise InputError(
                "these logits have no axis of time", expected="at=-1", got=f"at={at}", hint="leave `at` out"
            )
        return x
    batch, time, _ = x.shape
    places = torch.as_tensor(at, device=x.device)
    _check_count("at", places, batch)
    if bool(((places < -time) | (places >= time)).any()):
        raise InputError(
            "there is no such position",
            expected=f"-{time} to {time - 1}",
            got=f"at={at}" if isinstance(at, int) else f"at={at.tolist()}",
            hint="at=-1, the last",
        )
    return x[torch.arange(batch, device=x.device), places]


def _check_count(name: str, value: Tensor, batch: int) -> None:
    if value.dim() > 1 or (value.dim() == 1 and value.shape[0] not in (1, batch)):
        raise InputError(
            f"{name} is one, or one for each example",
            expected=f"{batch} numbers",
            got=f"shape {tuple(value.shape)}",
            hint=f"{name}=… with as many as examples",
        )


def _pick(row: Tensor, token: int | Tensor, name: str) -> Tensor:
    ids = torch.as_tensor(token, device=row.device)
    _check_count(name, ids, row.shape[0])
    _check_ids(name, ids, row.shape[-1])
    return row.gather(-1, ids.expand(row.shape[0])[:, None])[:, 0]


def _check_ids(name: str, ids: Tensor, size: int) -> None:
    if bool((ids >= size).any()):
        raise InputError(
            f"there is no such {name}",
            expected=f"ids from 0 to {size - 1}",
            got=int(ids.max()),
            hint="an id of this model's tokenizer",
        )


def _loss(output: Any, span: Tensor, at: int | None) -> Tensor:
    logits = _logits(output)
    if logits.dim() != 3:
        raise InputError(
            "a span has its loss at several positions",
            expected="logits [batch, time, vocabulary]",
            got=tuple(logits.shape),
            hint="sl.targets.logprob(class) of a classifier",
        )
    batch, time, size = logits.shape
    ids = span.to(logits.device).expand(batch, -1) if span.dim() == 1 or span.shape[0] in (1, batch) else None
    if ids is None:
        raise InputError(
            "span is one, or one for each example",
            expected=f"[tokens], or [{batch}, tokens]",
            got=f"shape {tuple(span.shape)}",
            hint="ids[:, -4:]",
        )
    _check_ids("token", ids, size)
    count = ids.shape[-1]
    start = time - count if at is None else at + time if at < 0 else at
    if start < 1 or start + count > time:
        raise InputError(
            "the span does not fit the text",
            expected=f"from position 1 on, and to {time} at most: the first token is predicted by nothing",
            got=f"{count} tokens from {start} on",
            hint="sl.targets.loss(ids[:, -4:])",
        )
    told = logits[:, start - 1 : start + count - 1].log_softmax(-1)
    return -told.gather(-1, ids[..., None])[..., 0].mean(-1)


def _similarity(output: Any, vector: Tensor, at: Any) -> Tensor:
    names = ("text_embeds", "image_embeds", "sentence_embedding", "pooler_output", "last_hidden_state")
    found = _named(output, names if at is None else names[::-1])
    if not isinstance(found, Tensor) or not found.is_floating_point() or found.dim() not in (2, 3):
        got = f"a tensor {tuple(found.shape)}" if isinstance(found, Tensor) else type(output).__name__
        raise InputTypeError(
            "this target reads vectors",
            expected="[batch, dim], or [batch, time, dim] and at=",
            got=got,
            hint="sl.targets.similarity(vector)(pooled)",
        )
    if found.dim() == 3 and at is None:
        raise InputError(
            "which position stands for the text is not said",
            expected="[batch, dim], or at=",
            got=f"[batch, time, dim] of {tuple(found.shape)}",
            hint="similarity(vector, at=0), or target(output.mean(1)) for the mean over tokens",
        )
    row = _row(found, at) if found.dim() == 3 else found
    if vector.shape[-1] != row.shape[-1] or (vector.dim() == 2 and vector.shape[0] not in (1, row.shape[0])):
        raise InputError(
            "the vectors do not fit",
            expected=f"[{row.shape[-1]}], or [{row.shape[0]}, {row.shape[-1]}]",
            got=tuple(vector.shape),
            hint="a vector that this model made",
        )
    return torch.cosine_similarity(row, vector.to(row).expand_as(row), -1)
