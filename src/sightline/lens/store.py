"""A sight as a safetensors file: tensors, and a description in the metadata. Never pickle.

The description (JSON under the key `sightline`) holds the format's number, the sizes, scale, soft-cap, normaliser, mask
and bias, and what the sizes of keys are of; the tensors are the row numbers and what edits took from their sums, what
was computed, g.o and the sizes of what keys carry, and q and k, with a gradient v and g too, if they were kept.

Whoever changes what is written gives `FORMAT` the next number, says in `LACKS` what a file of the number before does
not hold, and keeps a few of those files as test data: every version reads what all earlier ones wrote.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor

from sightline import normalizers
from sightline.backends.call import Call, check_bias, check_number, check_sinks, check_softcap
from sightline.errors import SightFileError
from sightline.files import write_whole
from sightline.lens.described import (
    LARGEST,
    bias_from_json,
    bias_to_json,
    flag,
    items,
    mask_from_json,
    mask_to_json,
    one_of,
    record,
    request_from_json,
    request_to_json,
    whole,
)
from sightline.lens.levels import without_sink
from sightline.lens.readings import Extra
from sightline.lens.requests import Top
from sightline.lens.tensor_file import FLOATS, TensorFile, short, write_tensors
from sightline.shapes import Sizes

if TYPE_CHECKING:
    from sightline.biases import Bias
    from sightline.lens.sight import Sight

FORMAT = 3
# What files of an older format do not hold, in words: an error over something that is missing says it.
LACKS: dict[int, str] = {
    1: "the lse of the keys apart from a sink's",
    2: "what keys carry and how cells mattered",
}

_KEY = "sightline"
_FIELDS = ("format", "flat", "sizes", "scale", "softcap", "normalizer", "mask", "bias", "kept")
_FIELDS_OF_3 = (*_FIELDS, "norms_of")
# Heads of a map without a single row: there is no tensor to count them by.
_MOST_EMPTY_HEADS = 1 << 16
_LONGEST_WORDS = 400


class Loaded(NamedTuple):
    """What a file holds."""

    call: Call
    row: Tensor
    flat: bool
    kept: dict[Any, Any]
    extra: Extra
    lacks: str | None  # what newer files hold and this one does not


def save(sight: Sight, path: Path, keep_qk: bool, durable: bool = True) -> None:
    """Write a sight: to a temporary file beside the target first, so that the target is never half-written."""
    call, extra = sight.call, sight._to_save()
    tensors: dict[str, Tensor] = {"row": sight.row}
    about: dict[str, Any] = {
        "format": FORMAT,
        "flat": sight._flat,
        "sizes": list(call.sizes._replace(batch=list(call.sizes.batch))),  # type: ignore[arg-type]
        "scale": call.scale,
        "softcap": call.softcap,
        "normalizer": call.normalizer.name,
        "mask": None if call.mask is None else mask_to_json(call.mask, tensors),
        "bias": None if call.bias is None or isinstance(call.bias, Tensor) else bias_to_json(call.bias, tensors),
        "kept": [],
        "norms_of": extra.norms_of,
    }
    for name in ("along", "sizes"):
        if (x := getattr(extra, name)) is not None:
            tensors[name] = x
    if keep_qk and call.q is not None:
        tensors.update(q=call.q, k=call.k)
        if extra.v is not None and extra.grad is not None:
            tensors.update(v=extra.v, grad=extra.grad)
    if call.sinks is not None:
        tensors["sinks"] = call.sinks
    if call.lost is not None:
        tensors["lost"] = call.lost
    if isinstance(call.bias, Tensor):
        tensors["bias"] = call.bias
    for i, (request, value) in enumerate(sight.kept.items()):
        about["kept"].append(request_to_json(request))
        for j, part in enumerate(value if isinstance(value, tuple) else (value,)):
            tensors[f"kept.{i}.{j}"] = part
    write_whole(path, lambda temporary: write_tensors(temporary, tensors, _KEY, about), durable)


def load(path: Path, device: torch.device) -> Loaded:
    """Read what `save` wrote, in this version or an earlier one; anything else is a SightFileError."""
    try:
        with TensorFile(path) as file:
            found = _read(file, path)
    except FileNotFoundError:
        raise
    except SightFileError:
        raise
    except (ValueError, TypeError, OSError) as error:
        raise _bad(path, short(str(error), 500)) from error
    return found if device.type == "cpu" else _moved(found, device)


def check_format(name: str, said: Any, newest: int) -> int:
    """The number of a format that this version can read; a newer one is refused by its number."""
    if type(said) is not int or said < 1:
        raise ValueError(f"format: {short(said)} instead of a number from 1 to {newest}")
    if said > newest:
        raise SightFileError(
            f"{name} was written by a newer version of Sightline",
            expected=f"format {newest} or older, which this version reads",
            got=f"format {short(said)}",
            hint="a newer Sightline: pip install --upgrade sightline",
        )
    return said


def lacking(format: int) -> str | None:
    """What a file of this format does not hold, in words; None if nothing."""
    said = [LACKS[older] for older in range(format, FORMAT) if older in LACKS]
    return f"format {format}, without {' and '.join(said)}" if said else None


def _bad(path: Path, got: str) -> SightFileError:
    return SightFileError(
        f"{path.name} is not a sight",
        expected="a whole file written by Sight.save",
        got=got,
        hint="save it again; a copy may have been cut short",
    )


def _read(file: TensorFile, path: Path) -> Loaded:
    about = file.about(_KEY)
    format = check_format(path.name, about.get("format") if isinstance(about, dict) else None, FORMAT)
    about = record("description", about, _FIELDS if format < 3 else _FIELDS_OF_3)
    sizes = _sizes(about["sizes"], file)
    flat = flag("flat", about["flat"])
    if flat and (sizes.batch or sizes.heads != 1):
        raise ValueError(f"flat: {sizes.heads} heads and batch {sizes.batch}")
    row = file.take("row", (*sizes.batch, sizes.heads, sizes.queries), (torch.float32, torch.float64))
    q, k = _qk(file, sizes, row.dtype)
    mask = None if about["mask"] is None else mask_from_json("mask", about["mask"], sizes, file)
    rule = normalizers.get(one_of("normalizer", about["normalizer"], tuple(normalizers.NORMALIZERS)))
    sinks = file.take("sinks", None, FLOATS) if "sinks" in file.names else None
    if sinks is not None:
        check_sinks(sinks, sizes, rule, row.device)
    lost = file.take("lost", tuple(row.shape), (row.dtype,)) if format > 2 and "lost" in file.names else None
    if lost is not None and (not rule.is_softmax or not bool((lost >= 0).all())):
        raise ValueError("lost: of rows of a softmax that have lost something, 0 or more")
    softcap = about["softcap"]
    call = Call(
        q,  # type: ignore[arg-type]
        k,  # type: ignore[arg-type]
        k,  # type: ignore[arg-type]
        sizes,
        mask,
        _bias(about["bias"], file, sizes),
        check_number("scale", _float("scale", about["scale"])),
        None if softcap is None else check_softcap(_float("softcap", softcap)),
        sinks,
        rule,
        0.0,
        lost,
    )
    if format == 1 and sinks is not None:
        row = without_sink(sinks, row)
    kept = _kept(about["kept"], file, sizes, row.dtype)
    extra = Extra() if format < 3 else _extra(about["norms_of"], file, sizes, q, row.dtype)
    file.check_all_taken()
    return Loaded(call, row, flat, kept, extra, lacking(format))


def _sizes(said: Any, file: TensorFile) -> Sizes:
    """The sizes of the call, held to the tensors of the file."""
    batch, *rest = items("sizes", said, 7)
    sizes = Sizes(
        tuple(whole("sizes.batch", n) for n in items("sizes.batch", batch)),
        *(whole(f"sizes.{name}", n) for name, n in zip(Sizes._fields[1:], rest, strict=True)),
    )
    wanted, found = (*sizes.batch, sizes.heads, sizes.queries), file.shape("row")
    if found != wanted:
        raise ValueError(f"row: the shape {found} instead of {wanted}")
    if sizes.heads != sizes.kv_heads and (not sizes.kv_heads or sizes.heads % sizes.kv_heads):
        raise ValueError(f"sizes: {sizes.heads} heads over {sizes.kv_heads} key heads")
    if not math.prod(wanted) and sizes.heads > _MOST_EMPTY_HEADS:
        raise ValueError(f"sizes: {sizes.heads} heads of an empty map")
    return sizes


def _qk(file: TensorFile, sizes: Sizes, dtype: torch.dtype) -> tuple[Tensor | None, Tensor | None]:
    if not {"q", "k"} & file.names:
        return None, None
    # The numbers of a row are in float64 for float64, and in float32 for everything narrower.
    dtypes = [d for d in FLOATS if (d == torch.float64) == (dtype == torch.float64)]
    q = file.take("q", (*sizes.batch, sizes.heads, sizes.queries, sizes.dim), dtypes)
    k = file.take("k", (*sizes.batch, sizes.kv_heads, sizes.keys, sizes.dim), (q.dtype,))
    return q, k


def _extra(said: Any, file: TensorFile, sizes: Sizes, q: Tensor | None, dtype: torch.dtype) -> Extra:
    """What is known beside the weights. v and g come together, and only beside q and k."""
    if said is not None and (not isinstance(said, str) or not said.isprintable() or len(said) > _LONGEST_WORDS):
        raise ValueError(f"norms_of: {short(said)} instead of a few words")
    maps = (*sizes.batch, sizes.heads)
    along = file.take("along", (*maps, sizes.queries), (dtype,)) if "along" in file.names else None
    carried = file.take("sizes", (*maps, sizes.keys), (dtype,)) if "sizes" in file.names else None
    if (said is None) != (carried is None):
        raise ValueError("norms_of: without sizes" if carried is None else "sizes: of something that is not said")
    if not {"v", "grad"} & file.names:
        return Extra(None, None, along, carried, said)
    if q is None:
        raise ValueError("v: without q and k")
    value_dim = (file.shape("v") or (0,))[-1]
    v = file.take("v", (*sizes.batch, sizes.kv_heads, sizes.keys, value_dim), FLOATS)
    grad = file.take("grad", (*maps, sizes.queries, value_dim), FLOATS)
    return Extra(v, grad, along, carried, said)


def _bias(said: Any, file: TensorFile, sizes: Sizes) -> Bias | Tensor | None:
    if said is not None:
        if "bias" in file.names:
            raise ValueError("bias: one that is described, and a tensor beside it")
        return bias_from_json("bias", said, sizes, file)
    if "bias" not in file.names:
        return None
    bias = file.take("bias", None, FLOATS)
    check_bias(bias, sizes, bias.device)
    return bias


def _kept(said: Any, file: TensorFile, sizes: Sizes, dtype: torch.dtype) -> dict[Any, Any]:
    kept: dict[Any, Any] = {}
    for i, written in enumerate(items("kept", said)):
        request, shape = request_from_json(f"kept.{i}", written, sizes)
        if request in kept:
            raise ValueError(f"kept.{i}: {short(request)} twice")
        if isinstance(request, Top):
            keys = file.take(f"kept.{i}.0", shape, (torch.int64,))
            if keys.numel() and not -1 <= int(keys.min()) <= int(keys.max()) < sizes.keys:
                raise ValueError(f"kept.{i}.0: keys from {int(keys.min())} to {int(keys.max())} of {sizes.keys}")
            kept[request] = (keys, file.take(f"kept.{i}.1", shape, (dtype,)))
        else:
            kept[request] = file.take(f"kept.{i}.0", shape, (dtype,))
    return kept


def _float(field: str, value: Any) -> Any:
    """A whole number may be larger than any float."""
    if type(value) is int and abs(value) > LARGEST:
        raise ValueError(f"{field}: {short(value)}")
    return value


def _moved(found: Loaded, device: torch.device) -> Loaded:
    """The same on another device."""
    call = found.call
    named = {name: getattr(call, name) for name in ("q", "k", "mask", "bias", "sinks", "lost")}
    changes: dict[str, Any] = {name: x.to(device) for name, x in named.items() if x is not None}
    if "k" in changes:
        changes["v"] = changes["k"]
    kept = {
        request: tuple(t.to(device) for t in value) if isinstance(value, tuple) else value.to(device)
        for request, value in found.kept.items()
    }
    row, extra = found.row.to(device), found.extra.to(device)
    return found._replace(call=call.replace(**changes), row=row, kept=kept, extra=extra)
