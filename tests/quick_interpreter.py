"""Triton's interpreter, told once which functions of its language are built in.

At every call of a function, the inner ones too, it looks through all of the language for what it has to replace, and
inside of a kernel that is replaced already: a third of the time of the tests of the kernels.
"""

from __future__ import annotations

import functools
import inspect
import sys
from typing import Any


def quicken() -> None:
    """Where the interpreter has been imported."""
    interpreter: Any = sys.modules.get("triton.runtime.interpreter")
    if interpreter is None or not hasattr(interpreter, "_patch_attr"):
        return
    is_builtin = interpreter.tl.core.is_builtin

    @functools.cache
    def names(package: Any) -> list[str]:
        return [name for name, member in inspect.getmembers(package) if is_builtin(member)]

    def patch(package: Any, *how: Any) -> None:
        for name in names(package):
            member = getattr(package, name)
            if not is_builtin(member):
                return  # all are replaced, or none
            interpreter._patch_attr(package, name, member, *how)

    interpreter._patch_builtin = patch
