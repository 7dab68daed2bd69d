"""Rows that other processes add to a folder while this one works on it."""

import json
import os
from collections.abc import Mapping
from pathlib import Path

from kvbench.records.folder import ResultsFolder, create_exclusive

Places = Mapping[str, int]
"""How far each rows file was read, in bytes, by its name."""


def places(folder: str | os.PathLike[str]) -> Places:
    """How long the rows files are. Taken before rows are read, it misses none that come later."""
    return {path.name: path.stat().st_size for path in ResultsFolder(folder).rows.glob("*.jsonl")}


class Arrivals:
    """What was recorded after `since`, by whomever. A line counts once its newline is there."""

    def __init__(self, folder: ResultsFolder, since: Places) -> None:
        self._rows, self._read = folder.rows, dict(since)
        self.recorded: set[tuple[str, int]] = set()

    def look(self, own: Path | None = None) -> None:
        """Read what was added, except to the file `own`.

        A network file system shows files of others late unless it must not: making a file in the folder makes it list
        anew, and opening a file makes it ask for the length.
        """
        if not self._rows.is_dir():
            return
        descriptor, probe = create_exclusive(self._rows, ".look")
        os.close(descriptor)
        probe.unlink(missing_ok=True)
        for path in sorted(self._rows.glob("*.jsonl")):
            if own is None or path.name != own.name:
                self._look(path)

    def _look(self, path: Path) -> None:
        with path.open("rb") as file:
            file.seek(self._read.get(path.name, 0))
            whole = file.read().rpartition(b"\n")[0]
        if not whole:
            return
        self._read[path.name] = self._read.get(path.name, 0) + len(whole) + 1
        for line in whole.split(b"\n"):
            try:
                data = json.loads(line)
                self.recorded.add((data["cell"], data["sample"]))
            except (ValueError, KeyError, TypeError):
                continue  # the reading end says so
