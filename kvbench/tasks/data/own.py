"""The record of one folder: what was pulled into `data.root`, from where, and the SHA-256 it had then.

    pulled.json   {"files": {"infinitebench/passkey.jsonl": {"sha256": "...", "bytes": 277..., "origin": "https://...",
                   "revision": "90f03943...", "pinned": false, "fetched": "...", "when": "2026-01-31T12:00:00+00:00"}}}

It travels with the folder: where the lock holds no SHA-256, this one says whether a file is still what it was.
"""

import fcntl
import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from kvbench.support.errors import UserError

FILE = "pulled.json"
WORK = ".pull"
"""Where partial downloads and lock files lie under `data.root`: on the same disk, so that a rename is atomic."""


@dataclass(frozen=True)
class Recorded:
    """What a file was when it was pulled.

    `pinned`: whether the lock knew its bytes, or those it was made of; `fetched`: the SHA-256 of what it was made of.
    """

    sha256: str
    bytes: int
    origin: str
    revision: str | None
    pinned: bool
    fetched: str
    when: str


def read_own(root: Path) -> dict[str, Recorded]:
    """The record by names of files, empty where there is none. Raises ValueError for a file that is none."""
    path = root / FILE
    try:
        content: Mapping[str, Any] = json.loads(path.read_text("utf-8"))["files"]
        return {name: Recorded(**one) for name, one in content.items()}
    except FileNotFoundError:
        return {}
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        raise UserError(
            f"{path} is no record of kvbench data ({type(error).__name__}): restore it, or remove it, "
            "after which files without a pin count as unpinned"
        ) from None


def record(root: Path, files: Mapping[str, Recorded]) -> None:
    """Add to the record; another process may do the same. Raises OSError where it cannot be written."""
    with held(root, "record"):
        whole = read_own(root) | dict(files)
        content = {"files": {name: asdict(one) for name, one in sorted(whole.items())}}
        temporary = root / WORK / f"{FILE}.{os.getpid()}"
        try:
            with temporary.open("w", encoding="utf-8") as file:
                json.dump(content, file, indent=1)
                file.flush()
                os.fsync(file.fileno())
            os.replace(temporary, root / FILE)
        finally:
            temporary.unlink(missing_ok=True)


@contextmanager
def held(root: Path, name: str) -> Iterator[None]:
    """Be the only process of this name in the folder; waits for the other one. The file stays: it is the lock."""
    path = root / WORK / f"{name}.lock"
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def is_held(root: Path, name: str) -> bool:
    """Whether another process holds this name now."""
    path = root / WORK / f"{name}.lock"
    if not path.is_file():
        return False
    with path.open("a") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    return False
