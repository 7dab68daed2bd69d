"""Errors that a user can fix. Each message is one line: what is wrong, the value, what is allowed, and the fix."""

import inspect
import os
import re
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any

JSON_KINDS: dict[type, str] = {dict: "an object", list: "a list", str: "a text", bool: "true or false", int: "a number"}
JSON_KINDS |= {float: "a number", type(None): "null"}
"""A value that JSON gives, in words, by its type."""
EXHAUSTED = re.compile(r"out of memory|ALLOC(ATION)?_FAILED|DefaultCPUAllocator: (can't allocate|not enough) memory")
"""What torch's allocators, CUDA, Triton, cuBLAS and cuDNN say when memory has run out, in several RuntimeErrors."""


class UserError(ValueError):
    """Input that is not allowed: a setting, a flag, a file's content. Commands end with exit code 2."""


class Several(UserError):
    """Faults that are told together, a line each."""

    def __init__(self, lines: Sequence[str]) -> None:
        super().__init__("; ".join(lines))
        self.lines = lines


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


def out_of_memory(error: Exception) -> bool:
    """Return whether an exception says that memory has run out."""
    says_so = isinstance(error, RuntimeError) and EXHAUSTED.search(str(error)) is not None
    return says_so or type(error).__name__ == "OutOfMemoryError"


def of_machine(error: Exception) -> bool:
    """Return whether an exception says that memory has run out or that a device has failed, whoever used them."""
    return out_of_memory(error) or isinstance(error, MemoryError) or type(error).__name__ == "AcceleratorError"


class Fault(UserError):
    """An exception of a part that others may write, such as a score. spoils: whether it wrote into what the model has
    read: torch refuses that once it is done. Its cause is None if the part wrote the message for the user.
    """

    def __init__(self, message: str, part: Any) -> None:
        super().__init__(message)
        self.part, self.spoils = part, "Inplace update to inference tensor" in message


@contextmanager
def blaming(kind: str, part: Any, none: str = "") -> Iterator[None]:
    """Raise Fault for an exception of the block, unless it is of the machine, a limit or a stop. The message of a
    UserError stays as it is; others get the part and the line of its code.

    none: what to do about None, where the exception is about it.
    """
    try:
        yield
    except Exception as error:
        if isinstance(error, Fault | OverLimit | StopRequested) or of_machine(error):
            raise
        if isinstance(error, UserError):
            raise Fault(str(error), part) from None
        text = f"{type(error).__name__}: {' '.join(str(error).split())}{none if 'NoneType' in str(error) else ''}"
        raise Fault(f"{named_part(kind, part, error)}: {text}", part) from error


def named_part(kind: str, part: Any, error: Exception | None = None) -> str:
    """Return the kind and name of a part; of one that is not kvbench's also the file and line of its class, or of the
    innermost call that led to the error.
    """
    name = getattr(part, "name", None) or getattr(part, "kind", type(part).__name__)
    kind_and_name, package = f"{kind} {name}", type(part).__module__.partition(".")[0]
    if package == __name__.partition(".")[0]:
        return kind_and_name
    file, line = "", 0
    with suppress(OSError, TypeError):  # a class that was typed in may have no file
        file, line = str(inspect.getsourcefile(type(part))), inspect.getsourcelines(type(part))[1]
    for frame, number in traceback.walk_tb(error.__traceback__ if error else None):
        if str(frame.f_globals.get("__name__")).partition(".")[0] == package:
            file, line = frame.f_code.co_filename, number
    here = os.getcwd() + os.sep
    return f"{kind_and_name} ({file.removeprefix(here)}, line {line})" if file else kind_and_name


class StopRequested(Exception):
    """A run was stopped by the signal that this names, between two prefill jobs or before its table."""


class NothingSelected(Exception):
    """No row of a folder matches the selection, or none has a value. Commands end with exit code 4."""


class CannotTell(NothingSelected):
    """Measurements that cannot tell methods apart: all are at one end of the scale. Commands end with exit code 5."""
