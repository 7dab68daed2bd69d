"""How commands fail: one line on stderr and a documented exit code."""

from collections.abc import Callable

from kvbench.cli.terminal import tell
from kvbench.records import StopRequested
from kvbench.support.errors import CannotTell, MissingFile, NothingSelected, OverLimit, Several, UserError
from kvbench.work.failures import ExitCode, FileRefused, InternalError, tracebacks_in

__all__ = ["ExitCode", "guarded"]


def guarded(command: Callable[[], int]) -> int:
    """Run a command and turn what it raises into a line on stderr and an exit code."""
    try:
        with tracebacks_in(None):
            return command()
    except (UserError, OverLimit) as error:
        *first, message = error.lines if isinstance(error, Several) else [str(error)]
        for line in first:
            tell(line)
        code = ExitCode.USAGE
    except MissingFile as error:
        message, code = str(error), ExitCode.DATA
    except CannotTell as error:
        message, code = str(error), ExitCode.GATE
    except NothingSelected as error:
        message, code = f"nothing to report: {error}", ExitCode.INCOMPLETE
    except FileRefused as error:
        message, code = str(error), error.code
    except InternalError as error:
        message, code = str(error), ExitCode.UNEXPECTED
    except StopRequested as stopped:
        message = f"stopped by {stopped}; rows that are made are kept: run the same command to continue"
        code = ExitCode.TEMPORARY
    except KeyboardInterrupt:
        message, code = "interrupted; run the same command to continue", ExitCode.INTERRUPTED
    tell(message)
    return code
