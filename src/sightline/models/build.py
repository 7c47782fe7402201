"""From an opened checkpoint to a model that runs: sizes first, then names and shapes, and only then the numbers."""

from __future__ import annotations

import re
from collections.abc import Mapping
from fnmatch import fnmatchcase
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from sightline.models.checkpoints.base import Checkpoint, refused
from sightline.models.families import FAMILIES
from sightline.models.families.base import Family, Source
from sightline.models.families.settings import Settings
from sightline.nn.fast.layout import memory_for


def build(
    checkpoint: Checkpoint, *, dtype: torch.dtype | None = None, device: torch.device | str | None = None
) -> nn.Module:
    """The model of a checkpoint, made of `sl.nn` parts and ready to run.

    The module is made without numbers first, and every shape is compared with the checkpoint's header; only then
    tensors are read, one at a time, and become the parameters.

    Args:
        checkpoint: from `open_checkpoint`.
        dtype: the precision of all parameters. By default float32 on the CPU, whatever the file holds, since halves
            are slow there; on other devices that of the file.
        device: where the model lives; the CPU if not given.
    """
    where = torch.device("cpu" if device is None else device)
    family, settings = family_of(checkpoint), Settings(checkpoint)
    names = family.names(settings)
    with torch.device("meta"), _NoInitialising():
        model = family.make(settings)
    plan = _plan(model, names, checkpoint)
    _refuse_leftovers(plan, family, checkpoint)
    _fill(model, plan, checkpoint, dtype or _usual_dtype(checkpoint, where), where)
    model.config, model.source = checkpoint.config, checkpoint.source  # type: ignore[assignment]
    model.special, model.tokenizer = checkpoint.special, checkpoint.tokenizer  # type: ignore[assignment]
    return model.eval()


class _NoInitialising(TorchFunctionMode):
    """Leave parameters as they are made: all of them are filled from the file.

    (On the meta device, where there are no numbers to draw, `normal_` still loads all of torch's compiler: two
    seconds.)
    """

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if getattr(function, "__module__", None) == "torch.nn.init":
            return kwargs["tensor"] if "tensor" in kwargs else args[0]
        return function(*args, **kwargs)


def family_of(checkpoint: Checkpoint) -> Family:
    """The family that `model_type` names."""
    kind = checkpoint.config.get("model_type")
    if not isinstance(kind, str) or kind not in FAMILIES:
        raise refused(
            f"the family of {checkpoint.source} is not known",
            expected=f"model_type as one of {', '.join(FAMILIES)}",
            got=f"model_type={kind!r}"[:120],
            hint="CONTRIBUTING.md shows how to add a family: one file with a name map",
        )
    return FAMILIES[kind]


class _Planned(NamedTuple):
    """One parameter: its name, the tensor that holds it, and which part of it."""

    parameter: str
    source: Source
    shape: tuple[int, ...]
    sizes: tuple[int, ...]  # outputs of all parameters that share the tensor
    place: int  # which of them this is


def _plan(model: nn.Module, names: Mapping[str, str | Source], checkpoint: Checkpoint) -> list[_Planned]:
    """Where every parameter comes from; all shapes compared."""
    shapes = {name: tuple(parameter.shape) for name, parameter in model.named_parameters()}
    plan, missing, unlike = [], [], []
    for name, shape in shapes.items():
        source = _source(name, names)
        sizes = tuple(shapes[other][0] for other in source.shares)
        expected = source.shape_there(shape, sizes)
        if source.name not in checkpoint:
            missing.append(source.name)
        elif tuple(checkpoint.shape(source.name)) != expected:
            unlike.append(f"{source.name} of shape {tuple(checkpoint.shape(source.name))}, not {expected}")
        plan.append(_Planned(name, source, shape, sizes, source.shares.index(name) if sizes else 0))
    if missing or unlike:
        raise refused(
            f"the tensors of {checkpoint.source} do not fit its config",
            expected="for every parameter one tensor of its shape",
            got="; ".join(([f"{_list(missing)} missing"] if missing else []) + ([_list(unlike)] if unlike else [])),
            hint="fetch config.json and all files of the weights again, from the same place",
        )
    return plan


def _source(name: str, names: Mapping[str, str | Source]) -> Source:
    """The entry of a name map for one parameter, with `#` and `*` filled in."""
    numbered = re.sub(r"\.\d+\.", ".#.", name, count=1)
    starred = re.sub(r"\.(weight|bias)$", ".*", numbered)
    entry = next((names[key] for key in (name, numbered, starred) if key in names), None)
    if entry is None:
        raise refused(
            f"the name map of this family has no entry for {name}",
            expected=f"{starred!r} in `names`",
            got=", ".join(map(repr, list(names)[:4])),
            hint="add it; `#` stands for the number of a layer, `*` for weight and bias",
        )
    entry = Source(entry) if isinstance(entry, str) else entry
    number, ending = re.search(r"\.(\d+)\.", name), name.rpartition(".")[2]

    def filled(template: str) -> str:
        return template.replace("#", number[1] if number else "#").replace("*", ending)

    return Source(filled(entry.name), entry.transposed, tuple(map(filled, entry.shares)), entry.shape)


def _refuse_leftovers(plan: list[_Planned], family: Family, checkpoint: Checkpoint) -> None:
    """A tensor that is neither used nor known is a part of the model that would be left out: refuse it."""
    used = {planned.source.name for planned in plan}
    left = [
        name
        for name in checkpoint.names
        if name not in used and not any(fnmatchcase(name, pattern) for pattern in family.unused)
    ]
    if left:
        raise refused(
            f"{checkpoint.source} holds tensors that its family does not use",
            expected="only tensors of the family; the model would compute something else without the others",
            got=_list(left),
            hint="the model may be a variant that is not built here",
        )


def _fill(
    model: nn.Module, plan: list[_Planned], checkpoint: Checkpoint, dtype: torch.dtype, device: torch.device
) -> None:
    """Read the tensors, one at a time, into the memory that becomes the parameters."""
    empty, places = dict(model.named_parameters()), memory_for(model, dtype, device)
    last: tuple[str, Tensor] | None = None  # q, k and v may lie in one tensor, which is read once
    for planned in sorted(plan, key=lambda planned: planned.source.name):
        name = planned.source.name
        if last is None or last[0] != name:
            last = None  # not two of them in memory
            last = name, checkpoint.read(name)
        part = planned.source.take(last[1], planned.shape, planned.sizes, planned.place)
        places[id(empty[planned.parameter])].copy_(part)
    filled = {place: nn.Parameter(tensor) for place, tensor in places.items()}
    for module in model.modules():
        for key, parameter in module._parameters.items():
            if parameter is not None:
                module._parameters[key] = filled[id(parameter)]  # tied ones stay tied


def _usual_dtype(checkpoint: Checkpoint, device: torch.device) -> torch.dtype:
    if device.type == "cpu":
        return torch.float32
    # Norms are sometimes kept finer than the rest: the widest tensor speaks for the model.
    largest = max(checkpoint.names, key=lambda name: torch.Size(checkpoint.shape(name)).numel())
    kept = checkpoint.dtype(largest)
    return kept if kept.is_floating_point else torch.float32


def _list(items: list[str]) -> str:
    return ", ".join(items[:3]) + (f" and {len(items) - 3} more" if len(items) > 3 else "")
