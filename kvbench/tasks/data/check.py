"""Is a file under `data.root` what it should be?"""

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Literal

from kvbench.tasks.data.lock import Output
from kvbench.tasks.data.own import Recorded

State = Literal["ok", "recorded", "unpinned", "missing", "differs"]
"""ok: as the lock says; recorded: without a pin, as on the day it was pulled; unpinned: nobody knows what it should be;
differs: not as the lock or the record says."""


def state_of(output: Output, root: Path, own: Mapping[str, Recorded]) -> State:
    """The state of a file; reads it whole where there is something to compare with."""
    path = root / output.path
    if not path.is_file():
        return "missing"
    recorded = own.get(output.path)
    wanted = output.sha256 or (recorded.sha256 if recorded else None)
    if wanted is None:
        return "unpinned"
    if sha256_of(path) != wanted:
        return "differs"
    if output.sha256:
        return "ok"
    if output.made_of is None or recorded is None:
        return "recorded"
    return "ok" if recorded.fetched == output.made_of else "differs"  # made of what an older lock named


def sha256_of(path: Path) -> str:
    """SHA-256 of a file's bytes."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
