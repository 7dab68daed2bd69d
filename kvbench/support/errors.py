"""Errors that a user can fix. Each message is one line: what is wrong, the value, what is allowed, and the fix."""


class UserError(ValueError):
    """Input that is not allowed: a setting, a flag, a file's content. Commands end with exit code 2."""


class MissingFile(FileNotFoundError):
    """A file or folder that a command needs is missing. Commands end with exit code 3."""


def is_panic(error: BaseException) -> bool:
    """Whether a library in Rust has panicked; its exception is no `Exception`."""
    return type(error).__name__ == "PanicException"


class NothingSelected(Exception):
    """No row of a folder matches the selection, or none has a value. Commands end with exit code 4."""


class CannotTell(NothingSelected):
    """What was measured cannot tell methods apart: all are at one end of the scale. Commands end with exit code 5."""
