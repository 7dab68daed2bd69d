"""The output of git about a folder: nothing where there is no git, or no history."""

import os
import subprocess
from pathlib import Path


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
