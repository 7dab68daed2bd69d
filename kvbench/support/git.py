"""Facts from git about a folder or a file: nothing where there is no git, or no history.

`last_change` may meet a repository of somebody else. It asks commands that run no program which its settings name.
"""

import os
import subprocess
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

_DIGITS = 8
"""Of the hash of a commit."""


def git(folder: Path, *arguments: str) -> str | None:
    """Return the output of a git command, or None if it fails or there is no git."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    clean["GIT_NO_LAZY_FETCH"] = "1"
    try:
        finished = subprocess.run(
            ["git", "-C", str(folder), *arguments], env=clean, capture_output=True, text=True, timeout=30, check=True
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return finished.stdout.strip()


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
