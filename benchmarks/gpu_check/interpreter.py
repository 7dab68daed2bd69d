"""Triton's interpreter without its search for built-in functions in every call of a kernel.

The interpreter replaces the functions of `triton.language` anew whenever one kernel calls another, and looks through
all members of its modules each time, which takes a third of the time. What a module has does not change.
"""

import inspect
from functools import cache
from typing import Any

from triton import language
from triton.runtime import interpreter


@cache
def _names(package: Any) -> tuple[str, ...]:
    """The built-in functions of a module or class, as it is before anything is replaced."""
    return tuple(name for name, member in inspect.getmembers(package) if language.core.is_builtin(member))


def _patch_builtin(package: Any, *arguments: Any) -> None:
    """`interpreter._patch_builtin` over the members that can be built in."""
    for name in _names(package):
        member = getattr(package, name)
        if language.core.is_builtin(member):
            interpreter._patch_attr(package, name, member, *arguments)


def remember_builtins() -> None:
    """Look for built-in functions once; of a Triton whose interpreter has other parts nothing is changed."""
    if hasattr(interpreter, "_patch_builtin") and hasattr(interpreter, "_patch_attr"):
        interpreter._patch_builtin = _patch_builtin
