"""A sight as a safetensors file: tensors, and a description in the metadata. Never pickle.

The description (JSON under the key `sightline`) holds the sizes, scale, soft-cap, normaliser, mask and bias; the
tensors are the row numbers, what was computed, and q and k if they were kept.
"""

from __future__ import annotations

import json
import os
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from sightline import masks, normalizers
from sightline.attention.call import Call, check_bias, check_number, check_sinks, check_softcap
from sightline.errors import InputTypeError, SightFileError, explain
from sightline.lens import geometry
from sightline.lens.requests import ROW_STATS, Picture, Top
from sightline.masks.base import And, Not, Or
from sightline.positions import Alibi
from sightline.shapes import Sizes

if TYPE_CHECKING:
    from sightline.lens.sight import Sight
    from sightline.masks import Mask

FORMAT = 1


def save(sight: Sight, path: Path, keep_qk: bool) -> None:
    """Write a sight: to a temporary file beside the target first, so that the target is never half-written."""
    call = sight._call
    if call.bias is not None and not isinstance(call.bias, Tensor | Alibi):
        raise InputTypeError(
            explain(
                "this bias cannot be saved",
                expected="a tensor or sl.alibi(heads)",
                got=type(call.bias).__name__,
                hint="bias.to_dense(queries, keys) for a small one",
            )
        )
    tensors: dict[str, Tensor] = {"row": sight._row}
    about: dict[str, Any] = {
        "format": FORMAT,
        "flat": sight._flat,
        "sizes": list(call.sizes._replace(batch=list(call.sizes.batch))),  # type: ignore[arg-type]
        "scale": call.scale,
        "softcap": call.softcap,
        "normalizer": call.normalizer.name,
        "mask": None if call.mask is None else _describe(call.mask, tensors),
        "bias": {"alibi": call.bias.heads} if isinstance(call.bias, Alibi) else None,
        "kept": [],
    }
    if keep_qk and call.q is not None:
        tensors.update(q=call.q, k=call.k)
    if call.sinks is not None:
        tensors["sinks"] = call.sinks
    if isinstance(call.bias, Tensor):
        tensors["bias"] = call.bias
    for i, (request, value) in enumerate(sight._kept.items()):
        about["kept"].append(_request_to_json(request))
        for j, part in enumerate(value if isinstance(value, tuple) else (value,)):
            tensors[f"kept.{i}.{j}"] = part
    # Copies, because safetensors refuses tensors that share memory.
    tensors = {name: t.detach().to("cpu", copy=True).contiguous() for name, t in tensors.items()}
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.", suffix=".part")
    os.close(handle)
    try:
        save_file(tensors, temporary, metadata={"sightline": json.dumps(about)})
        # A temporary file is for its owner alone; the finished one is as readable as any other.
        umask = os.umask(0)
        os.umask(umask)
        os.chmod(temporary, 0o666 & ~umask)
        os.replace(temporary, path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise


def load(path: Path, device: torch.device) -> tuple[Call, Tensor, bool, dict[Any, Any]]:
    """Read what `save` wrote; anything else is a SightFileError."""
    try:
        with safe_open(str(path), framework="pt", device=str(device)) as file:
            about = json.loads((file.metadata() or {})["sightline"])
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except FileNotFoundError:
        raise
    except (SafetensorError, KeyError, ValueError, OSError, RecursionError) as error:
        raise _bad(path, f"{type(error).__name__}: {error}") from error
    try:
        if about["format"] != FORMAT:
            raise ValueError(f"format {about['format']}, this version reads {FORMAT}")
        return _rebuild(about, tensors)
    except (KeyError, ValueError, TypeError, AttributeError, IndexError, RuntimeError) as error:
        raise _bad(path, f"a description that does not hold: {error}") from error


def _bad(path: Path, got: str) -> SightFileError:
    return SightFileError(
        explain(
            f"{path.name} is not a sight",
            expected="a whole file written by Sight.save",
            got=got,
            hint="save it again; a copy may have been cut short",
        )
    )


def _rebuild(about: dict, tensors: dict[str, Tensor]) -> tuple[Call, Tensor, bool, dict[Any, Any]]:
    batch, *rest = about["sizes"]
    sizes = Sizes(tuple(int(n) for n in batch), *(int(n) for n in rest))
    row = tensors["row"]
    _must_be(row, (*sizes.batch, sizes.heads, sizes.queries), "row")
    if sizes.kv_heads and sizes.heads % sizes.kv_heads:
        raise ValueError(f"{sizes.heads} heads over {sizes.kv_heads} key heads")
    q, k = tensors.get("q"), tensors.get("k")
    if q is not None:
        if q.dtype != tensors["k"].dtype or not q.is_floating_point():
            raise ValueError(f"q of {q.dtype} and k of {tensors['k'].dtype}")
        _must_be(q, (*sizes.batch, sizes.heads, sizes.queries, sizes.dim), "q")
        _must_be(tensors["k"], (*sizes.batch, sizes.kv_heads, sizes.keys, sizes.dim), "k")
    mask = None if about["mask"] is None else _understand(about["mask"], tensors)
    if mask is not None:
        mask.check(sizes.batch, sizes.heads, sizes.queries, sizes.keys, row.device)
    bias: Any = tensors.get("bias")
    if about["bias"] is not None:
        bias = Alibi(int(about["bias"]["alibi"]))
    rule, sinks = normalizers.get(about["normalizer"]), tensors.get("sinks")
    if bias is not None:
        check_bias(bias, sizes, row.device)
    if sinks is not None:
        check_sinks(sinks, sizes, rule, row.device)
    call = Call(
        q,  # type: ignore[arg-type]
        k,  # type: ignore[arg-type]
        k,  # type: ignore[arg-type]
        sizes,
        mask,
        bias,
        check_number("scale", about["scale"]),
        None if about["softcap"] is None else check_softcap(about["softcap"]),
        sinks,
        rule,
        0.0,
    )
    kept: dict[Any, Any] = {}
    for i, written in enumerate(about["kept"]):
        request = _request_from_json(written)
        parts = tuple(tensors[f"kept.{i}.{j}"] for j in range(2 if isinstance(request, Top) else 1))
        for part in parts:
            _must_be(part, _shape_of(request, sizes), str(request))
        kept[request] = parts if isinstance(request, Top) else parts[0]
    return call, row, bool(about["flat"]), kept


def _shape_of(request: Any, sizes: Sizes) -> tuple[int, ...]:
    """The shape of a kept result."""
    maps = (*sizes.batch, sizes.heads)
    if isinstance(request, Top):
        return (*maps, sizes.queries, request.n)
    if isinstance(request, Picture):
        vertical, horizontal = geometry.axes(request, sizes.queries, sizes.keys)
        return (*maps, *(request.size or (vertical.bins, horizontal.bins)))
    if request not in (*ROW_STATS, "received"):
        raise ValueError(f"unknown statistic {request!r}")
    return (*maps, sizes.keys if request == "received" else sizes.queries)


def _must_be(tensor: Tensor, shape: tuple[int, ...], name: str) -> None:
    if tuple(tensor.shape) != shape:
        raise ValueError(f"{name} has shape {tuple(tensor.shape)} instead of {shape}")


def _request_to_json(request: Any) -> Any:
    if isinstance(request, Top):
        return {"top": request.n}
    if isinstance(request, Picture):
        return {
            "picture": [request.size, request.cell, request.rows, request.columns, request.reduce, request.visible_only]
        }
    return request


def _request_from_json(written: Any) -> Any:
    if isinstance(written, str):
        return written
    if "top" in written:
        return Top(int(written["top"]))
    size, cell, rows, columns, reduce, visible_only = written["picture"]
    return Picture(
        *(size or (512, 512)),
        cell=None if cell is None else (int(cell[0]), int(cell[1])),
        rows=_slice(rows),
        columns=_slice(columns),
        reduce=reduce,
        visible_only=visible_only,
    )


def _slice(pair: list | None) -> slice | None:
    return None if pair is None else slice(int(pair[0]), None if pair[1] is None else int(pair[1]))


def _describe(mask: Mask, tensors: dict[str, Tensor]) -> dict:
    """A mask as JSON; its tensors go beside the others."""

    def put(tensor: Tensor | None) -> str | None:
        if tensor is None:
            return None
        name = f"mask.{len(tensors)}"
        tensors[name] = tensor
        return name

    if isinstance(mask, masks.Band):
        return {"is": "band", "left": mask.left, "right": mask.right, "align": mask.align}
    if isinstance(mask, masks.Prefix):
        return {"is": "prefix", "n": mask.n}
    if isinstance(mask, masks.Documents):
        return {"is": "documents", "ids": put(mask.ids), "key_ids": put(mask.key_ids)}
    if isinstance(mask, masks.Padding):
        return {"is": "padding", "of": put(mask.lengths if mask.real is None else mask.real)}
    if isinstance(mask, masks.Dense):
        return {"is": "dense", "table": put(mask.table)}
    if isinstance(mask, And | Or):
        return {"is": mask.sign, "left": _describe(mask.left, tensors), "right": _describe(mask.right, tensors)}
    if isinstance(mask, Not):
        return {"is": "~", "of": _describe(mask.mask, tensors)}
    raise InputTypeError(
        explain(
            "this mask cannot be saved",
            expected="a mask of Sightline's own",
            got=type(mask).__name__,
            hint="sl.dense(mask.to_dense(queries, keys)) for a small one",
        )
    )


def _understand(about: dict, tensors: dict[str, Tensor]) -> Mask:
    kind = about["is"]
    if kind == "band":
        align = about["align"]
        if align not in ("end", "start"):
            raise ValueError(f"alignment {align!r}")
        sides = [None if n is None else int(n) for n in (about["left"], about["right"])]
        return masks.Band(sides[0], sides[1], align)
    if kind == "prefix":
        return masks.prefix(int(about["n"]))
    if kind == "documents":
        key_ids = about["key_ids"]
        return masks.documents(tensors[about["ids"]], None if key_ids is None else tensors[key_ids])
    if kind == "padding":
        return masks.padding(tensors[about["of"]])
    if kind == "dense":
        return masks.dense(tensors[about["table"]])
    if kind in ("&", "|"):
        left, right = _understand(about["left"], tensors), _understand(about["right"], tensors)
        return left & right if kind == "&" else left | right
    if kind == "~":
        return ~_understand(about["of"], tensors)
    raise ValueError(f"unknown mask {kind!r}")
