"""Triton's interpreter without what it does again and again.

The interpreter replaces the functions of `triton.language` anew whenever one kernel calls another, and looks through
all members of its modules each time; it makes a table of types for every array; and it computes every sum of int32
twice, to find those that do not fit. None of it changes a result. A GPU does not look for sums that do not fit.
"""

import inspect
from dataclasses import replace
from functools import cache
from types import SimpleNamespace
from typing import Any

from triton import language
from triton.runtime import interpreter

PARTS = (
    *("_patch_builtin", "_patch_attr", "_patch_lang", "_get_np_dtype"),
    *("InterpretedFunction", "InterpreterError", "interpreter_builder"),
)
"""What is replaced, or called by what replaces it."""


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


def _call(function: Any, *arguments: Any, **options: Any) -> Any:
    """`InterpretedFunction.__call__`, for which the launch has replaced all functions."""
    try:
        return function.rewrite()(*arguments, **options)
    except Exception as error:
        raise interpreter.InterpreterError(repr(error)) from error


def remember_parts() -> None:
    """Do once what does not change; of a Triton whose interpreter has other parts nothing is changed."""
    if not all(hasattr(interpreter, part) for part in PARTS):
        return
    patch, dtype_of, dtypes = interpreter._patch_lang, interpreter._get_np_dtype, {}
    both = SimpleNamespace(__globals__={"language": language, "core": language.core})

    def numpy_dtype(kind: Any) -> Any:
        name = kind.scalar.name
        if name not in dtypes:
            dtypes[name] = dtype_of(kind)
        return dtypes[name]

    interpreter._patch_builtin = _patch_builtin
    interpreter._patch_lang = lambda function: patch(both)
    interpreter._get_np_dtype = numpy_dtype
    interpreter.InterpretedFunction.__call__ = _call  # pyright: ignore[reportAttributeAccessIssue]
    builder = interpreter.interpreter_builder
    builder.options = replace(builder.options, sanitize_overflow=False)
