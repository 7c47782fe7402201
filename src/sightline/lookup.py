"""Attention as a soft dictionary: look-up by an equal key, and its relaxed form.

`exact` is what a dictionary does: z = sum_j 1(q = k_j) v_j. `soft` lets every key answer, as much as it resembles the
query: z = sum_j softmax_j(q . k_j / sqrt(d_k)) v_j. Between them stands only a temperature: at 0, soft is exact.
"""

from __future__ import annotations

import difflib
import math
from collections.abc import Hashable, Iterable
from typing import TYPE_CHECKING, Any, Literal

import torch

from sightline.errors import InputError, InputTypeError
from sightline.shapes import as_number

if TYPE_CHECKING:
    from jaxtyping import Float, Shaped
    from torch import Tensor

__all__ = ["KeyNotFoundError", "exact", "soft"]


class KeyNotFoundError(InputError, KeyError):
    """A query that equals none of the keys; a KeyError too, as a dictionary would raise.

    >>> try:
    ...     exact("Date of brith", ["Name", "Date of birth"], ["Ada", "May 5th 2000"])
    ... except KeyError as error:
    ...     print(error)
    no key equals the query
      expected: one of the 2 keys, e.g. 'Name', 'Date of birth'
      got: 'Date of brith'
      try: 'Date of birth', the nearest key
    """

    def __str__(self) -> str:  # KeyError would show the repr, with \n written out
        return str(self.args[0])


def exact(
    query: Hashable | Shaped[Tensor, "*batch queries dim"],
    keys: Iterable[Hashable] | Shaped[Tensor, "keys dim"],
    values: Iterable[Any] | Shaped[Tensor, "keys value_dim"],
    missing: Literal["error", "zero"] = "error",
) -> Any:
    """Look the query up among the keys: z = sum_j 1(q = k_j) v_j.

    Keys are any hashables, or the rows of a tensor [keys, dim], looked up by queries [*batch, queries, dim] or [dim].
    Values are anything, and the one that matches comes back; of a tensor [keys, value_dim], equal keys give their sum.
    A query without a key is a `KeyNotFoundError`, or with `missing="zero"` the zero vector.

    >>> record = {"Name": "Ada", "Address": "1 Elm Road", "Date of birth": "May 5th 2000", "Place of birth": "Bern"}
    >>> exact("Date of birth", record.keys(), record.values())
    'May 5th 2000'
    >>> exact(torch.tensor([[0.0, 1.0]]), keys=torch.eye(2), values=torch.tensor([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]]))
    tensor([[4., 5., 6.]])
    """
    if missing not in ("error", "zero"):
        raise InputError(
            "missing says what to do without a key",
            expected="'error' or 'zero'",
            got=repr(missing),
            hint="missing='error'",
        )
    if missing == "zero" and not isinstance(values, torch.Tensor):
        raise InputError(
            "only tensors have a zero vector",
            expected="values as a tensor [keys, value_dim]",
            got=type(values).__name__,
            hint="missing='error', and catch KeyError",
        )
    if isinstance(keys, torch.Tensor):
        return _exact_vectors(*_vectors(query, keys, values), missing)
    return _exact_hashable(query, keys, values, missing)


def _exact_vectors(query: Tensor, keys: Tensor, values: Tensor, missing: str) -> Tensor:
    match = (query[..., None, :] == keys).all(dim=-1)  # [*batch, queries, keys]
    lost = ~match.any(dim=-1)
    if missing == "error" and bool(lost.any()):
        first = tuple(lost.nonzero()[0].tolist()) if lost.dim() else ()
        raise KeyNotFoundError(
            "no key equals the query"
            if lost.numel() == 1
            else f"{int(lost.sum())} of {lost.numel()} queries equal no key",
            expected=f"one of the {len(keys)} rows of keys, exactly",
            got=f"query{list(first) if first else ''} = {query[first].tolist()}",
            hint="missing='zero' for the zero vector, or soft() for the nearest key",
        )
    # Values are picked, not multiplied by 0 and 1: a NaN or infinity beside the match stays out.
    rows, columns = match.reshape(lost.numel(), len(keys)).nonzero(as_tuple=True)
    z = values.new_zeros(lost.numel(), values.shape[-1]).index_add(0, rows, values[columns])
    return z.reshape(*lost.shape, values.shape[-1])


def _exact_hashable(query: Any, keys: Any, values: Any, missing: str) -> Any:
    if isinstance(query, torch.Tensor) or not isinstance(keys, Iterable):
        raise InputTypeError(
            "keys and query are not of one kind",
            expected="a tensor query with a tensor of keys, or a hashable query with a list of hashables",
            got=f"query {type(query).__name__}, keys {type(keys).__name__}",
            hint="torch.stack(keys), or a list of keys",
        )
    keys = list(keys)
    if not isinstance(values, torch.Tensor):
        if not isinstance(values, Iterable):
            raise InputTypeError(
                "values must be many",
                expected="a sequence or a tensor, one value for each key",
                got=type(values).__name__,
                hint="[value, ...]",
            )
        values = list(values)
    if isinstance(values, torch.Tensor) and not values.dim():
        raise InputError(
            "values must be many",
            expected="a tensor [keys, value_dim]",
            got="a tensor without axes",
            hint="values[None]",
        )
    if len(keys) != len(values):
        raise InputError(
            "every key needs one value",
            expected=f"{len(keys)} values, as many as keys",
            got=f"{len(values)} values",
            hint="check both lists",
        )
    for thing in (query, *keys):
        if isinstance(thing, torch.Tensor) or not _hashable(thing):
            raise InputTypeError(
                "keys are compared as in a dictionary",
                expected="hashable keys and query, such as str, int or tuple",
                got=type(thing).__name__,
                hint="tuple(key), or torch.stack(keys) for tensors",
            )
    found = [j for j, key in enumerate(keys) if key == query]
    if not found and missing == "error":
        near = (
            difflib.get_close_matches(query, [key for key in keys if isinstance(key, str)], n=1)
            if isinstance(query, str)
            else []
        )
        shown = ", ".join(map(repr, keys[:4]))
        raise KeyNotFoundError(
            "no key equals the query",
            expected=f"one of the {len(keys)} keys" + (f", e.g. {shown}" if keys else ""),
            got=repr(query),
            hint=f"{near[0]!r}, the nearest key"
            if near
            else "a key that is there, or missing='zero' with tensor values",
        )
    if isinstance(values, torch.Tensor):
        return values[found].sum(dim=0, dtype=values.dtype)
    if len(found) > 1:
        raise InputError(
            "the key stands more than once, and these values have no sum",
            expected="one key that equals the query, or values as a tensor",
            got=f"{query!r} at {', '.join(map(str, found))}",
            hint="remove the double keys, or torch.stack(values)",
        )
    return values[found[0]]


def soft(
    query: Float[Tensor, "*batch queries dim"],
    keys: Float[Tensor, "keys dim"],
    values: Float[Tensor, "keys value_dim"],
    temperature: float = 1.0,
) -> Float[Tensor, "*batch queries value_dim"]:
    """The relaxed look-up: z = sum_j softmax_j(q . k_j / (sqrt(d_k) * temperature)) v_j.

    Towards temperature 0 the strongest key takes all; 0 is that limit itself, where equally strong keys share equally.
    With keys of length 1 that is the exact look-up. Towards infinity every key answers alike: the plain average.

    >>> keys, values = torch.eye(2), torch.tensor([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]])
    >>> soft(torch.tensor([[0.0, 1.0]]), keys, values)
    tensor([[3.0093, 4.0093, 5.0093]])
    >>> soft(torch.tensor([[0.0, 1.0]]), keys, values, temperature=1e-30)
    tensor([[4., 5., 6.]])
    """
    query, keys, values = _vectors(query, keys, values)
    for name, t in (("query", query), ("keys", keys), ("values", values)):
        if not t.dtype.is_floating_point:
            raise InputTypeError(
                f"{name} must be floating point",
                expected="float64, float32, float16 or bfloat16",
                got=t.dtype,
                hint=f"{name}.float()",
            )
    heat = as_number(temperature)
    if heat is None:
        raise InputTypeError(
            "temperature must be a number", expected="float", got=repr(temperature), hint="temperature=1.0"
        )
    if not heat >= 0:
        raise InputError(
            "temperature cannot be negative", expected="0 or more", got=temperature, hint="temperature=1.0"
        )
    if not len(keys):
        return query.new_zeros(*query.shape[:-1], values.shape[-1])  # nothing to attend to gives 0
    dtype = torch.promote_types(torch.promote_types(query.dtype, values.dtype), torch.float32)
    scores = query.to(dtype) @ keys.to(dtype).T / math.sqrt(max(1, keys.shape[-1]))  # [*batch, queries, keys]
    # How far behind the strongest key, before the temperature: dividing by it then can only underflow to weight 0.
    behind = scores - scores.amax(dim=-1, keepdim=True)
    if heat < torch.finfo(dtype).tiny:
        weights = (behind == 0).to(dtype)
        weights = weights / weights.sum(dim=-1, keepdim=True)
    else:
        weights = (behind / heat).softmax(dim=-1)
    return (weights @ values.to(dtype)).to(values.dtype)


def _hashable(thing: object) -> bool:
    try:
        hash(thing)
    except TypeError:
        return False
    return True


def _vectors(query: Any, keys: Any, values: Any) -> tuple[Tensor, Tensor, Tensor]:
    """The three tensors, once they are known to fit together."""
    for name, t in (("query", query), ("keys", keys), ("values", values)):
        if not isinstance(t, torch.Tensor):
            raise InputTypeError(
                f"{name} must be a tensor, as keys are",
                expected="torch.Tensor",
                got=type(t).__name__,
                hint=f"torch.as_tensor({name})",
            )
    shapes = f"query {tuple(query.shape)}, keys {tuple(keys.shape)}, values {tuple(values.shape)}"
    if not (
        keys.dim() == values.dim() == 2
        and query.dim()
        and query.shape[-1] == keys.shape[-1]
        and len(keys) == len(values)
    ):
        raise InputError(
            "query, keys and values do not fit together",
            expected="query [*batch, queries, dim] or [dim], keys [keys, dim], values [keys, value_dim]",
            got=shapes,
            hint="one row of values for each row of keys, and one dim for query and keys",
        )
    if query.dtype != keys.dtype:
        raise InputTypeError(
            "query and keys must have the same dtype",
            expected=f"query as {keys.dtype}, as in keys",
            got=query.dtype,
            hint="query.to(keys.dtype)",
        )
    if not query.device == keys.device == values.device:
        raise InputError(
            "query, keys and values must be on the same device",
            expected=f"all on {keys.device}",
            got=f"query {query.device}, keys {keys.device}, values {values.device}",
            hint="query.to(keys.device)",
        )
    return query, keys, values
