"""The lines of rows files: every line is checked; a damaged row is named and left out, so that a run makes it again."""

import json
import zlib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from kvbench.records.folder import FILE_NAME, Finished, ResultsFolder
from kvbench.records.labels import policy_of
from kvbench.records.lines import LineBlock, Warn, crc32_of, torn
from kvbench.records.row import CHECKSUM, END, NewerSchema, Row, has_checksum
from kvbench.support.errors import UserError
from kvbench.support.quantity import count_noun, numbered

_SETTINGS: Mapping[str, tuple[str, ...]] = {
    "task": ("task", "name"),
    "task_version": ("task", "version"),
    "context_length": ("task", "context_length"),
    "policy": ("policy", "name"),
    "variant": ("policy", "variant"),
    "layout": ("policy", "layout"),
    "score": ("score", "name"),
    "budget": ("budget",),
    "seed": ("seed",),
}
"""Where the description of a cell has what a column names."""
WORDS = ("cell", *_SETTINGS)


class Damage:
    """Rows of a folder that are left out, by file and reason."""

    def __init__(self) -> None:
        self._lines: dict[tuple[str, str], list[int]] = {}

    def add(self, path: Path | str, line: int, reason: str) -> None:
        """Note that a line (counted from 1) is not read."""
        self._lines.setdefault((str(path), reason[:300]), []).append(line)

    def tell(self, warn: Warn) -> None:
        """Give one warning for each file and reason."""
        for (path, reason), lines in self._lines.items():
            more = f", nor {numbered(lines[1:], 'line', 10)}" if lines[1:] else ""
            warn(
                f"{path}:{lines[0]}: damaged row, not counted{more}: {reason}; the same `kvbench run` computes it again"
            )


class FileCheck:
    """The lines of one rows file, block by block, without the damaged ones.

    A file with the checksum that its writer noted as it ended is whole (`ended` is that note, else None); the lines of
    any other are checked one by one.
    """

    def __init__(self, path: Path, damage: Damage, warn: Warn) -> None:
        self.path, self._damage, self._warn = path, damage, warn
        self._lines, self._is_whole = 0, True
        self._finished: Finished | None = None
        try:
            self._finished = ResultsFolder(path.parent.parent).read_finished(path.stem)
        except UserError as error:
            warn(str(error))
        self.ended: Finished | None = None
        if self._finished is not None and self._finished.crc32 == crc32_of(path):
            self.ended = self._finished

    def whole(self, block: LineBlock) -> Sequence[int]:
        """Return the numbers of the lines of a block that have their checksum; the others are noted as damaged."""
        numbers = range(block.first, block.first + block.count)
        self._lines += block.count
        if self.ended is not None:
            return numbers
        lines = block.text.split(b"\n")
        ends = b"".join([line[-END:] for line in lines])
        if ends == CHECKSUM * block.count % tuple([zlib.crc32(line[:-END]) for line in lines]):  # all at once: fast
            return numbers
        whole = [has_checksum(line) for line in lines]
        for number, line, has in zip(numbers, lines, whole, strict=True):
            if not has:
                self.row(line, number, block)
        return [number for number, has in zip(numbers, whole, strict=True) if has]

    def row(self, line: bytes, number: int, block: LineBlock) -> Row | None:
        """Return the row of a line, or None if it is damaged. Raises UserError for one of a later kvbench."""
        try:
            return Row.from_json(line)
        except NewerSchema as error:
            raise UserError(f"{self.path}:{number}: not a row: {error}") from error
        except (ValueError, RecursionError) as error:
            is_last = block.is_end and number == block.first + block.count - 1
            if is_last and isinstance(error, (json.JSONDecodeError, UnicodeDecodeError)):
                self._warn(torn(self.path, number, error))
            else:
                is_json = not isinstance(error, (json.JSONDecodeError, UnicodeDecodeError))
                self._damage.add(self.path, number, str(error) if is_json else f"not JSON ({error})")
            self._is_whole = False
            return None

    def end(self) -> None:
        """Compare the file with what its writer noted about it as it ended."""
        if self._finished is None or self.ended is not None:
            return
        if self._finished.rows != self._lines:
            fix = "; the same `kvbench run` computes lost rows again" * (self._lines < self._finished.rows)
            lines = count_noun(self._lines, "line")
            self._warn(f"{self.path}: it has {lines}, but its writer recorded {self._finished.rows}{fix}")
        elif self._is_whole and self._finished.crc32:
            self._warn(f"{self.path}: its lines are complete, but differ from the checksum that its writer recorded")


def mismatch_with_cell(words: Mapping[str, Any], describe: Callable[[str], Mapping[str, Any] | None]) -> str | None:
    """Return the first of the ``WORDS`` of a row that the description of its cell contradicts, as text, or None."""
    if not FILE_NAME.fullmatch(words["cell"]):
        return f"no cell is named {words['cell'][:80]!r}"
    description = describe(words["cell"]) or {}
    for name, path in _SETTINGS.items():
        setting: Any = description
        for key in path:
            setting = setting.get(key, ...) if isinstance(setting, Mapping) else ...
        word = words[name]
        if name == "policy" and word:
            word = policy_of(word)
        if name == "score" and word:  # a name, then fields
            word = word.split()[0]
        if word is not None and setting is not ... and word != setting:
            return f"its {name} is {word!r}, but its cell has {setting!r}"
    return None


def choose_record(records: Sequence[tuple[bool, str | None, int | None]]) -> int:
    """Return which of several records of one sample counts, from whether each failed, its code and what it replaces.

    It is one of the rows that replace the most, whatever the clocks of their writers said. Where several do: among rows
    with the code of the last one the first that did not fail; if all of these failed, the last.
    """
    most = max(replaces or 0 for _, _, replaces in records)
    newest = [place for place, (_, _, replaces) in enumerate(records) if (replaces or 0) == most]
    code = records[newest[-1]][1]
    return next((place for place in newest if records[place][:2] == (False, code)), newest[-1])
