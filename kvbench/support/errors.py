"""Errors that a user can fix. Each message is one line: what is wrong, the value, what is allowed, and the fix."""

import os
from collections.abc import Iterator
from contextlib import contextmanager

JSON_KINDS: dict[type, str] = {dict: "an object", list: "a list", str: "a text", bool: "true or false", int: "a number"}
JSON_KINDS |= {float: "a number", type(None): "null"}
"""A value that JSON gives, in words, by its type."""


class UserError(ValueError):
    """Input that is not allowed: a setting, a flag, a file's content. Commands end with exit code 2."""


class MissingFile(FileNotFoundError):
    """A file or folder that a command needs is missing. Commands end with exit code 3."""


def is_panic(error: BaseException) -> bool:
    """Return whether a library in Rust has panicked; its exception is no `Exception`."""
    return type(error).__name__ == "PanicException"


class OverLimit(Exception):
    """Foreign input takes more time, memory or characters than it may: a run ends. Commands end with exit code 2."""


@contextmanager
def naming(path: str | os.PathLike[str]) -> Iterator[None]:
    """Name this file in an OSError of the block that names none: errors of calls on an open file do not."""
    try:
        yield
    except OSError as error:
        if error.errno is not None and error.filename is None:
            error.filename = os.fspath(path)
        raise


@contextmanager
def refusing_panics(what: str) -> Iterator[None]:
    """Raise UserError, which begins with `what`, for a panic of a library in Rust within the block."""
    try:
        yield
    except BaseException as error:
        if not is_panic(error):
            raise
        raise UserError(f"{what}: {str(error).splitlines()[0][:200]}") from None


class StopRequested(Exception):
    """A run was asked to stop, by the signal that this names, and did so between two prefill jobs."""


class NothingSelected(Exception):
    """No row of a folder matches the selection, or none has a value. Commands end with exit code 4."""


class CannotTell(NothingSelected):
    """Measurements that cannot tell methods apart: all are at one end of the scale. Commands end with exit code 5."""
