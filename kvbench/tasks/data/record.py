"""The record of downloads, `pulled.json` under `data.root`, and whether files are what it and the lock say."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal

from kvbench.support.errors import UserError
from kvbench.support.whole_file import sha256_of
from kvbench.tasks.data.lock import Output, read_lock

RECORD = "pulled.json"

State = Literal["ok", "recorded", "unpinned", "missing", "differs"]
"""ok: as the lock says; recorded: not pinned, as on the day it was pulled; unpinned: neither lock nor record has its
SHA-256; differs: not as the lock or the record says."""


@dataclass(frozen=True)
class PullRecord:
    """A file as it was when it was pulled. pinned: whether the lock had the SHA-256 of its download, `fetched`."""

    sha256: str
    bytes: int
    origin: str
    revision: str | None
    pinned: bool
    fetched: str
    when: str


def state_of(output: Output, root: Path, records: Mapping[str, PullRecord]) -> State:
    """Return the state of a file; reads all of it if there is a SHA-256 to compare with."""
    path = root / output.path
    if not path.is_file():
        return "missing"
    record = records.get(output.path)
    expected = output.sha256 or (record.sha256 if record else None)
    if expected is None:
        return "unpinned"
    if sha256_of(path) != expected:
        return "differs"
    if output.sha256:
        return "ok"
    if output.made_of is None or record is None:
        return "recorded"
    return "ok" if record.fetched == output.made_of else "differs"  # made from the download of an older lock


def read_records(root: Path) -> dict[str, PullRecord]:
    """Return the record by names of files, empty if there is none. Raises UserError for another file of its name."""
    path = root / RECORD
    try:
        content: Mapping[str, Any] = json.loads(path.read_text("utf-8"))["files"]
        return {name: PullRecord(**fields) for name, fields in content.items()}
    except FileNotFoundError:
        return {}
    except (KeyError, TypeError, AttributeError, ValueError, RecursionError) as error:
        raise UserError(
            f"{path} is not a record of downloads by kvbench ({type(error).__name__}): restore it, or remove it: "
            "files without a pinned SHA-256 are then reported as unpinned"
        ) from None


@lru_cache
def altered(root: Path, names: tuple[str, ...], data_sha256: str) -> tuple[str, ...]:
    """Return those files of a task that are not what the lock or the record of downloads says.

    root: the folder of `data.root`. names, data_sha256: `files` and `data_sha256` of the task; when a file changes, the
    hash does. Skips files that neither knows, such as files of `task=jsonl`.
    """
    lock, records = read_lock(), read_records(root)
    families = dict.fromkeys(name.partition("/")[0] for name in names)
    outputs = {output.path: output for family in families if family in lock for output in lock[family].outputs(root)}
    listed = [outputs.get(name, Output(name)) for name in names if name in outputs or name in records]
    return tuple(output.path for output in listed if state_of(output, root, records) == "differs")
