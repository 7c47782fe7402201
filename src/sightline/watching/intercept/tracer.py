"""Where torch.compile is while it traces a model for a monitor: asked once for each place, and then a constant.

The state of the compiler is read from its own objects. Where a version of torch has none such, nothing is said of it.
"""

from __future__ import annotations

import functools
import operator
import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

from torch import nn

# Methods of tensors that are not called as the operators they stand for.
_OPERATORS = {"div": "truediv", "true_divide": "truediv", "floor_divide": "floordiv", "remainder": "mod"}


def _constant(function: Callable) -> Callable:
    function._dynamo_marked_constant = True  # type: ignore[attr-defined]
    return function


@_constant
def site() -> str:
    """Where attention is called: the path from the module whose code is compiled to the one that is traced."""
    modules = _traced_modules()
    if modules[0] is None:
        return ""
    for path, part in modules[-1].named_modules() if modules[-1] is not None else ():
        if part is modules[0]:
            return path
    return f"/{id(modules[0])}"


@_constant
def of_ours() -> bool:
    """Whether the module that is traced has a tap of its own."""
    modules = _traced_modules()
    return modules[0] is not None and "_tap" in vars(modules[0])


@_constant
def enter() -> bool:
    """Switch the mode on again that is being traced; False where the compiler has no such state."""
    state = getattr(_tracer(), "symbolic_torch_function_state", None)
    if getattr(state, "cur_mode", None) is None:
        return False
    state.push_torch_function_mode(state.cur_mode)  # type: ignore[union-attr]
    return True


@_constant
def leave() -> bool:
    _tracer().symbolic_torch_function_state.pop_torch_function_mode()
    return True


def operator_of(function: Callable) -> tuple[str, bool]:
    """The operator of Python that a method of tensors was made of, and whether its operands were swapped."""
    return operator_name(function), operator_name(function, True) != ""


@_constant
def operator_name(function: Callable, swapped: bool = False) -> str:
    from torch._dynamo.variables import builtin

    usual, other = (
        {method: operator.__name__ for operator, method in getattr(builtin, name, {}).items()}
        for name in ("BUILTIN_TO_TENSOR_FN_MAP", "BUILTIN_TO_TENSOR_RFN_MAP")
    )
    if not usual:  # torch 2.8: the method has the name of its operator, or nearly
        name = getattr(function, "__name__", "").strip("_")
        reverse = name[:1] == "r" and not hasattr(operator, name)
        name = _OPERATORS.get(name[reverse:], name[reverse:])
        return name if hasattr(operator, name) and (reverse or not swapped) else ""
    only = {method: name for method, name in other.items() if method not in usual}
    return only.get(function, "") if swapped else usual.get(function, only.get(function, ""))


@_constant
def kind_of(function: Callable, name: str) -> str:
    """What is known of a function of transformers; nothing to do if no monitor listens, or its parts are heard."""
    if not _listens():
        return ""
    while isinstance(function, functools.partial):
        function = function.func
    known = str(getattr(function, "__globals__", {}).get("__name__", "")).startswith("transformers.")
    called = getattr(function, "__name__", "")
    if known and called == "sdpa_attention_forward":
        return ""
    return "unknown" if not known else "flex" if "flex" in called else "eager" if name == "eager" else "flash"


def _listens() -> bool:
    """Whether a monitor's mode is on where the compiler is."""
    state = getattr(_tracer(), "symbolic_torch_function_state", None)
    modes = list(getattr(state, "mode_stack", ()))
    return any(getattr(_value(mode), "is_monitor", False) for mode in modes)


def _tracer() -> Any:
    from torch._dynamo.symbolic_convert import InstructionTranslator

    return InstructionTranslator.current_tx()


def _traced_modules() -> list[nn.Module | None]:
    """The modules whose methods are being traced, innermost first; None for a function at the outermost place."""
    tracer = getattr(_tracer().output, "current_tx", None) or _tracer()
    found: list[nn.Module | None] = []
    while tracer is not None:
        code = tracer.f_code
        names = [*code.co_varnames[: min(code.co_argcount, 1)], "self"]
        values = (_value(tracer.symbolic_locals.get(name), tracer) for name in names)
        module = next((value for value in values if isinstance(value, nn.Module)), None)
        tracer = getattr(tracer, "parent", None)
        if module is not None or tracer is None:
            found.append(module)
    return found


def _value(variable: Any, tracer: Any = None) -> Any:
    """What stands behind a variable of the compiler, if it is a thing that exists."""
    if hasattr(variable, "realize"):
        variable = variable.realize()
    if tracer is not None and type(variable).__name__ == "CellVariable":
        variable = tracer.output.side_effects.load_cell(variable)
        variable = variable.realize() if hasattr(variable, "realize") else variable
    key = getattr(variable, "module_key", None)
    if key is not None and tracer is not None:
        return tracer.output.get_submodule(key)
    return getattr(variable, "value", None)


def caller(where: str, names: dict[int, str]) -> nn.Module | int | None:
    """The module that a place in a graph belongs to: the graph's own is found on the stack, and its part by the path.

    A graph may be shared by layers that are alike, so that the path alone would not say. Of what a function has called
    that is compiled without a module around it, the identity is known.
    """
    if where.startswith("/"):
        return int(where[1:])
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        code = frame.f_code
        first = frame.f_locals.get(code.co_varnames[0]) if code.co_argcount else None
        if id(first) in names and isinstance(first, nn.Module):
            try:
                return first.get_submodule(where)
            except AttributeError:
                return None
        frame = frame.f_back
    return None
