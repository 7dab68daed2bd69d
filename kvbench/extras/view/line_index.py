"""An index from (cell, sample) to the bytes where the lines of a sidecar file start: a page of few samples reads few.

A file is scanned once, and what is appended to it later is scanned then; lines are parsed when somebody asks for them.
"""

import json
import re
import sys
import threading
from collections.abc import Hashable
from pathlib import Path
from typing import Generic, TypeVar

from kvbench.records import KeptSets, PromptRecord
from kvbench.records.lines import LONGEST, listed
from kvbench.records.row import has_checksum
from kvbench.records.sidecars import Sidecar

SidecarLine = TypeVar("SidecarLine", bound=Sidecar)
_TEXT = rb'("(?:[^"\\]|\\.)*")'
_STARTS: dict[type, re.Pattern[bytes]] = {
    KeptSets: re.compile(rb'\{"cell": %b, "sample": (\d+), ' % _TEXT),
    PromptRecord: re.compile(rb'\{"prompt_sha256": %b, ' % _TEXT),
}
"""How lines begin, as their writers write them."""


class LineIndex(Generic[SidecarLine]):
    """The lines of one kind beside the rows of a folder, by (cell, sample) or (hash of the prompt,)."""

    def __init__(self, folder: Path, kind: type[SidecarLine]) -> None:
        self._folder, self._kind, self._lock = folder / kind.folder, kind, threading.Lock()
        self._scanned: dict[str, int] = {}
        self._places: dict[tuple[Hashable, ...], dict[str, int]] = {}

    def find(self, *key: Hashable) -> dict[str, SidecarLine]:
        """Return lines of a key by the names of their files, without damaged ones; of several in a file the first."""
        places = dict(self._places.get(key, {}))
        lines = {name: self._line(key, name, start) for name, start in places.items()}
        return {name: line for name, line in lines.items() if line is not None}

    def scan(self) -> None:
        """Scan what was written since."""
        with self._lock:
            for file in listed(self._folder, ".jsonl"):
                if file.is_file():
                    self._scan(file)

    def _scan(self, file: Path) -> None:
        start = self._scanned.get(file.stem, 0)
        if file.stat().st_size < start:  # another file of that name: nothing of the old one is there
            for places in self._places.values():
                places.pop(file.stem, None)
            start = 0
        with file.open("rb") as stream:
            stream.seek(start)
            while line := stream.readline(LONGEST):
                if not line.endswith(b"\n"):  # torn, not yet whole, or of more bytes than any that was recorded
                    break
                if key := self._key(line):
                    self._places.setdefault(key, {}).setdefault(file.stem, start)
                start += len(line)
        self._scanned[file.stem] = start

    def _key(self, line: bytes) -> tuple[Hashable, ...] | None:
        """Return the key that a line belongs to; None if it does not begin as lines of this kind do."""
        if (match := _STARTS[self._kind].match(line)) is None:
            return None
        name, *number = match.groups()
        return (json.loads(name), *map(int, number))

    def _line(self, key: tuple[Hashable, ...], name: str, start: int) -> SidecarLine | None:
        try:
            with (self._folder / f"{name}.jsonl").open("rb") as file:
                file.seek(start)
                line = file.readline(LONGEST).removesuffix(b"\n")
            if self._key(line) != key:  # the file was replaced: the next scan reads all of it
                self._scanned[name] = sys.maxsize
                return None
            return self._kind.from_json(line) if has_checksum(line) or b'"checksum":' not in line else None
        except (OSError, ValueError):  # a UserError is one
            return None
