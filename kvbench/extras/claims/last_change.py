"""The newest commit that changed a file.

The repository may be of somebody else: no command is asked that runs a program which its settings name.
"""

from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from kvbench.support.git import git

_DIGITS = 8
"""Of the hash of a commit."""


@dataclass(frozen=True)
class Change:
    """The newest commit that changed a file, and its moment. is_last: whether the file is still as it is there."""

    commit: str
    moment: datetime
    is_last: bool


def last_change(file: Path) -> Change | None:
    """Return the newest commit that changed a file. None without a history, or with one that was cut off and may hide
    it.
    """
    folder, name = file.resolve().parent, file.resolve().name
    newest = git(folder, "rev-list", "-1", "--timestamp", f"--abbrev={_DIGITS}", "--abbrev-commit", "HEAD", "--", name)
    if not newest or git(folder, "rev-parse", "--is-shallow-repository") != "false":
        return None
    seconds, commit = newest.split()
    is_last = git(folder, "hash-object", "--no-filters", "--", name) == git(folder, "rev-parse", f"HEAD:./{name}")
    return Change(commit, datetime.fromtimestamp(int(seconds), UTC), is_last)
