"""The code of a class without a file: what was typed into a notebook or an interpreter."""

import hashlib
from types import CodeType
from typing import Any

OURS = "kvbench"


def class_sha256(kind: type) -> str:
    """SHA-256 over the class and its bases that are not kvbench's: byte code, names and constants of their functions,
    and their other attributes as text. Where its lines stand does not count, nor does a function that it calls.
    """
    digest = hashlib.sha256()
    for base in kind.__mro__:
        if base.__module__.partition(".")[0] in (OURS, "builtins", "typing", "abc"):
            continue
        for name, member in sorted(vars(base).items()):
            if not name.startswith("__") or name in ("__call__", "__post_init__"):
                digest.update(f"{base.__qualname__}.{name} {_described(member)}\n".encode())
    return digest.hexdigest()


def _described(member: Any) -> str:
    for wrapped in ("__func__", "fget", "func"):  # class methods, properties, cached properties
        member = getattr(member, wrapped, member)
    code = getattr(member, "__code__", None)
    if isinstance(code, CodeType):
        return _code(code)
    return "" if callable(member) or type(member).__repr__ is object.__repr__ else repr(member)


def _code(code: CodeType) -> str:
    constants = [_code(part) if isinstance(part, CodeType) else _constant(part) for part in code.co_consts]
    return f"{code.co_code.hex()} {code.co_names} {code.co_varnames} {constants}"


def _constant(constant: Any) -> str:
    """Return a constant as text; the order of a set differs between processes, so its items are sorted."""
    return repr(sorted(map(repr, constant))) if isinstance(constant, frozenset) else repr(constant)
