"""How work fails: exit codes, and internal errors that leave a traceback file."""

import errno
import os
import tempfile
import traceback
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from enum import IntEnum
from pathlib import Path

from kvbench.records import ResultsFolder, StopRequested
from kvbench.support.errors import MissingFile, NothingSelected, OverLimit, UserError, is_panic
from kvbench.support.plugins import LOOSE, plugin_packages

DISK_FULL = (errno.ENOSPC, errno.EDQUOT)
TOO_LARGE = (errno.EFBIG,)
DISK_FAILED = (errno.EIO, errno.ESTALE, errno.EREMOTEIO, errno.ENOTCONN, errno.EHOSTDOWN, errno.ETIMEDOUT)
"""What the system reports where a disk, or the server of a network disk, fails."""
NO_ACCESS = (errno.EACCES, errno.EPERM, errno.EROFS, errno.EISDIR, errno.ENOTDIR, errno.ENAMETOOLONG, errno.ELOOP)
"""What the system reports for a file that was named and cannot be read or written."""


class ExitCode(IntEnum):
    """The exit codes of commands."""

    OK = 0
    UNEXPECTED = 1
    USAGE = 2
    DATA = 3
    INCOMPLETE = 4
    GATE = 5
    TEMPORARY = 75
    INTERRUPTED = 130


class InternalError(Exception):
    """An error that is a bug, with its traceback kept at `path`, None where no file can be written."""

    def __init__(self, error: BaseException, path: Path | None) -> None:
        kept = f"traceback in {path}" if path else "its traceback could not be written to any file"
        brought = _line_of_plugin(error)
        cause = f"raised in {brought}" if brought else "internal error: a bug of kvbench, or a fault of the machine"
        super().__init__(f"{type(error).__name__}: {error} ({cause}; {kept})")


class FileRefused(Exception):
    """The system has no room for a file, grants no access to it or cannot read its disk: nobody's bug.

    `code` is the command's exit code.
    """

    def __init__(self, error: OSError) -> None:
        if error.errno in DISK_FULL:
            fix = "free some space, then run the same command to continue"
        elif error.errno in TOO_LARGE:
            fix = "raise the largest size of a file (ulimit -f), then run the same command to continue"
        elif error.errno in DISK_FAILED:
            fix = "the disk or its server failed; when it works again, run the same command to continue"
        else:
            fix = "name another file, or change its permissions"
        names = [os.fsdecode(name) for name in (error.filename, error.filename2) if isinstance(name, str | bytes)]
        file = " -> ".join(names) + ": " * bool(names)
        super().__init__(f"{file}{error.strerror}: {fix}")
        self.code = ExitCode.UNEXPECTED if error.errno in (*DISK_FULL, *TOO_LARGE, *DISK_FAILED) else ExitCode.USAGE


@contextmanager
def tracebacks_in(results: ResultsFolder | None) -> Iterator[None]:
    """Keep the traceback of an internal error under `results`, or in the system's temporary folder.

    Errors that are meant for the user pass. A full or failing disk and files without access become `FileRefused`.
    """
    try:
        yield
    except (
        UserError,
        OverLimit,
        MissingFile,
        NothingSelected,
        InternalError,
        FileRefused,
        StopRequested,
        BrokenPipeError,
    ):
        raise
    except BaseException as error:
        if not isinstance(error, Exception) and not is_panic(error):
            raise
        if isinstance(error, OSError) and (
            error.errno in (*DISK_FULL, *TOO_LARGE, *DISK_FAILED) or (error.errno in NO_ACCESS and error.filename)
        ):
            raise FileRefused(error) from error
        raise InternalError(error, _keep(traceback.format_exc(), results)) from error


def _line_of_plugin(error: BaseException) -> str | None:
    """Return file and line of the innermost frame of a plugin or of a user's own file; None if an error passed none."""
    packages = plugin_packages()
    for frame, line in reversed([*traceback.walk_tb(error.__traceback__)]):
        module = str(frame.f_globals.get("__name__"))
        if module.startswith(LOOSE) or module.partition(".")[0] in packages:
            return f"{frame.f_code.co_filename}:{line}"
    return None


def _keep(text: str, results: ResultsFolder | None) -> Path | None:
    with suppress(OSError):
        if results is not None:
            return results.write_error(text)
    with suppress(OSError):
        descriptor, path = tempfile.mkstemp(prefix="kvbench-", suffix=".txt")
        with os.fdopen(descriptor, "w", encoding="utf-8", errors="backslashreplace") as file:
            file.write(text)
        return Path(path)
    return None
