"""How commands fail: one clear line on stderr and a documented exit code, a traceback file for what nobody foresaw."""

import errno
import os
import sys
import tempfile
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from enum import IntEnum
from pathlib import Path

from kvbench.cli.terminal import silence, tell
from kvbench.records import ResultsFolder, Stopped
from kvbench.support.errors import MissingFile, NothingSelected, UserError

FULL = (errno.ENOSPC, errno.EDQUOT)
CLOSED = (errno.EACCES, errno.EPERM, errno.EROFS, errno.EISDIR, errno.ENOTDIR, errno.ENAMETOOLONG, errno.ELOOP)
"""What the system says of a file that was named and cannot be had."""


class Exit(IntEnum):
    """What a command's exit code says."""

    OK = 0
    UNEXPECTED = 1
    USAGE = 2
    DATA = 3
    INCOMPLETE = 4
    GATE = 5
    TEMPORARY = 75
    INTERRUPTED = 130


class Unforeseen(Exception):
    """An error nobody foresaw, with its traceback kept at `path`, None where no file can be written."""

    def __init__(self, error: Exception, path: Path | None) -> None:
        super().__init__(f"{type(error).__name__}: {error}")
        self.path = path


class Refused(Exception):
    """The system gives no room or no right to a file: nobody's bug. `code` is the command's exit code."""

    def __init__(self, error: OSError) -> None:
        named = error.filename if isinstance(error.filename, (str, bytes)) else None
        full = error.errno in FULL
        fix = "make room; the same command goes on" if full else "name another one, or mend it"
        where = "" if named is None else f"{os.fsdecode(named)}: "
        super().__init__(f"{where}{error.strerror}: {fix}")
        self.code = Exit.UNEXPECTED if full else Exit.USAGE


def guarded(command: Callable[[], int]) -> int:
    """Run a command and turn what it raises into a line on stderr and an exit code."""
    try:
        with tracebacks_in(None):
            return command()
    except UserError as error:
        return _say(error, Exit.USAGE)
    except MissingFile as error:
        return _say(error, Exit.DATA)
    except NothingSelected as error:
        return _say(f"nothing to report: {error}", Exit.INCOMPLETE)
    except Refused as refused:
        return _say(refused, refused.code)
    except Unforeseen as error:
        kept = f"traceback in {error.path}" if error.path else "its traceback could not be written anywhere"
        return _say(f"{error} (this is a bug, or a machine in trouble; {kept})", Exit.UNEXPECTED)
    except Stopped as stopped:
        return _say(f"stopped by {stopped} after a whole sample; the same command resumes", Exit.TEMPORARY)
    except KeyboardInterrupt:
        return _say("interrupted; the same command resumes", Exit.INTERRUPTED)
    except BrokenPipeError:
        silence(sys.stdout)
        return Exit.OK


@contextmanager
def tracebacks_in(results: ResultsFolder | None) -> Iterator[None]:
    """Keep the traceback of an unforeseen error under `results`, or in the system's temporary folder.

    `UserError`, `MissingFile` and `NothingSelected` are meant for the user and pass. A full disk and files of others
    are `Refused`.
    """
    try:
        yield
    except (UserError, MissingFile, NothingSelected, Unforeseen, Refused, Stopped, BrokenPipeError):
        raise
    except Exception as error:
        if isinstance(error, OSError) and (error.errno in FULL or (error.errno in CLOSED and error.filename)):
            raise Refused(error) from error
        raise Unforeseen(error, _keep(traceback.format_exc(), results)) from error


def _say(message: object, code: Exit) -> Exit:
    tell(message)
    return code


def _keep(text: str, results: ResultsFolder | None) -> Path | None:
    if results is not None:
        try:
            return results.write_error(text)
        except OSError:
            pass
    try:
        descriptor, path = tempfile.mkstemp(prefix="kvbench-", suffix=".txt")
        with os.fdopen(descriptor, "w", encoding="utf-8", errors="backslashreplace") as file:
            file.write(text)
    except OSError:
        return None
    return Path(path)
