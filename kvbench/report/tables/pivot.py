"""Summaries laid out in blocks: the line and the column of every cell, in which table."""

from collections.abc import Callable, Sequence, Set
from dataclasses import dataclass, field
from difflib import get_close_matches
from typing import Any, NamedTuple

from kvbench.records.rows import Describe
from kvbench.report.experiments import Experiments
from kvbench.report.selection import is_setting, setting
from kvbench.report.tables.summary import Summary, budget_key
from kvbench.support.errors import UserError
from kvbench.support.grouped import grouped
from kvbench.support.plugins import held_groups

BLOCK = ("model", "task", "context_length")
LINES = ("policy", "score")
COLUMNS = ("budget",)
EXTRA = ("variant", "layout", "schedule", "seed", "task_version")
KEYS = (*BLOCK, *LINES, *COLUMNS, *EXTRA, "metric", "question_number")
_CHOICES = ("policy.", "score.")  # settings that the full cache does not have

Key = tuple[Any, ...]
Look = Callable[[Summary, str], Any]


@dataclass
class MeansRow:
    """One line: the values of the line keys, and the cell of every column that has one."""

    labels: Key
    reference: bool
    cells: dict[Key, Summary] = field(default_factory=dict)


@dataclass
class Block:
    """One table: what all its cells have in common, the keys of its lines and columns, and the lines."""

    title: dict[str, Any]
    line_keys: tuple[str, ...]
    column_keys: tuple[str, ...]
    columns: list[Key]
    lines: list[MeansRow]

    def title_of(self, column: Key) -> dict[str, Any]:
        """Return what the cells of a column have in common."""
        return self.title | dict(zip(self.column_keys, column, strict=True))

    def cells(self, reference: bool) -> list[Summary]:
        """Return the cells of the reference lines, or of all other lines, each once."""
        cells = [cell for line in self.lines if line.reference == reference for cell in line.cells.values()]
        return list({(cell.cell, cell.question_number): cell for cell in cells}.values())


class _Entry(NamedTuple):
    line: Key
    column: Key
    cell: Summary


def check_keys(rows: Sequence[str], cols: Sequence[str]) -> None:
    """Raise ValueError for keys that do not exist, are named twice or are missing altogether."""
    for name, keys in (("rows", rows), ("cols", cols)):
        if not keys:
            raise UserError(f"{name}= has no key; allowed, one or more: {' '.join(KEYS)}")
        for key in keys:
            if key not in KEYS and not is_setting(key):
                meant = "".join(f"did you mean {near}? " for near in get_close_matches(key, KEYS, n=1))
                keys_text = f"{meant}keys: {' '.join(KEYS)}, or a setting of cells, such as policy.window"
                raise UserError(f"{name}={','.join(keys)}: there is no key {key!r}; {keys_text}")
            if (*rows, *cols).count(key) > 1:
                raise UserError(f"rows={','.join(rows)} cols={','.join(cols)}: {key!r} is named twice; name it once")


def arrange(
    cells: Sequence[Summary],
    rows: Sequence[str] = LINES,
    cols: Sequence[str] = COLUMNS,
    describe: Describe = lambda cell: None,
) -> list[Block]:
    """Return one block for each value of the keys of ``BLOCK LINES COLUMNS`` that are neither in ``rows`` nor in
    ``cols``.

    The full cache (policy ``full``) has no score and no budget: it is the reference line of every block it belongs
    to, with the same cell in every column. If two cells would share a line and differ in more than its column, the
    lines are split by what tells the cells apart: the keys of ``EXTRA``, then the settings in ``describe(cell)``, the
    whole description of a cell (`kvbench.report.experiments`).
    A key with dots, or a group of holders, is one of these settings.

    Raises ValueError as `check_keys` does, and for a setting that no cell has.
    """
    check_keys(rows, cols)
    is_split = any(key.startswith("policy.") or key.partition(".")[0] in held_groups() for key in (*rows, *cols))
    policy = "policy.name" if is_split else "policy"  # the label repeats the settings, in a block for each of them
    block_keys = [key for key in (*BLOCK, policy, "score", *COLUMNS) if key not in (*rows, *cols)]
    look = _lookup(cells, [key for key in (*block_keys, *rows, *cols) if is_setting(key)], describe)
    places: dict[Key, list[_Entry]] = {}
    columns: dict[Key, set[Key]] = {}

    def place(cell: Summary, key: Key, column: Key) -> None:
        places.setdefault(key, []).append(_Entry(_labels(cell, rows, look), column, cell))
        columns.setdefault(key, set()).add(column)

    for cell in cells:
        if not _is_reference(cell):
            place(cell, _values(cell, block_keys, look), _values(cell, cols, look))
    for cell in filter(_is_reference, cells):
        homes = [
            (key, column)
            for key in columns
            for column in columns[key]
            if _belongs(cell, block_keys, key, look) and _belongs(cell, cols, column, look)
        ]
        for key, column in homes or [(_values(cell, block_keys, look), _values(cell, cols, look))]:
            place(cell, key, column)

    experiments = Experiments(cols, describe)
    scored = {cell.policy for cell in cells if cell.score is not None}
    blocks = []
    for key in sorted(places, key=_order(block_keys, scored)):
        line_keys, entries = _tell_apart(tuple(rows), places[key], experiments, Experiments((), describe))
        lines: dict[tuple[bool, Key], MeansRow] = {}
        for labels, column, cell in entries:
            line = lines.setdefault((_is_reference(cell), labels), MeansRow(labels, _is_reference(cell)))
            line.cells[column] = cell
        order = _order(line_keys, scored)  # a reference that no policy label puts in its place comes first
        ordered = sorted(
            lines.values(), key=lambda line: ("policy" in line_keys or not line.reference, order(line.labels))
        )
        title = dict(zip(block_keys, key, strict=True))
        blocks.append(Block(title, line_keys, tuple(cols), sorted(columns[key], key=_order(cols, scored)), ordered))
    return blocks


def _is_reference(cell: Summary) -> bool:
    return cell.policy == "full"


def _lookup(cells: Sequence[Summary], settings: Sequence[str], describe: Describe) -> Look:
    """Return a function that gives the value of a key for a cell: a column, or one of these settings."""
    descriptions = {cell.cell: describe(cell.cell) for cell in cells if settings}
    for key in settings:
        if key != "policy.name" and all(setting(each, key) is None for each in descriptions.values()):
            raise UserError(f"no cell has a setting {key!r}; `kvbench report rows` names cells, cells/ describes them")

    def look(cell: Summary, key: str) -> Any:
        if not is_setting(key):
            return getattr(cell, key)
        value = setting(descriptions[cell.cell], key)
        return value if isinstance(value, (int, float, str, type(None))) else str(value)

    return look


def _values(cell: Summary, keys: Sequence[str], look: Look) -> Key:
    return tuple(look(cell, key) for key in keys)


def _labels(cell: Summary, rows: Sequence[str], look: Look) -> Key:
    if not _is_reference(cell):
        return _values(cell, rows, look)
    labels = [None if key in ("score", "budget") else look(cell, key) for key in rows]
    return tuple(labels) if "policy" in rows else ("full", *labels[1:])


def _belongs(cell: Summary, keys: Sequence[str], values: Key, look: Look) -> bool:
    """Return whether a reference belongs to the block or column in which the keys have these values."""
    return all(
        key in (*LINES, *COLUMNS) or key.startswith(_CHOICES) or look(cell, key) == value
        for key, value in zip(keys, values, strict=True)
    )


def _tell_apart(
    rows: tuple[str, ...], entries: list[_Entry], experiments: Experiments, cells: Experiments
) -> tuple[tuple[str, ...], list[_Entry]]:
    """Longer labels, until each line is one experiment and no two cells share a place. cells: along no axis."""

    def split(key: str, label: Callable[[_Entry], Any]) -> None:
        nonlocal rows, entries
        rows = (*rows, key)
        entries = [entry._replace(line=(*entry.line, label(entry))) for entry in entries]

    def mixed() -> list[list[_Entry]]:
        lines = grouped(entries, lambda entry: (_is_reference(entry.cell), entry.line)).values()
        return [line for line in lines if len({entry.column for entry in line}) < len(line) or differ(line)]

    def differ(line: list[_Entry]) -> bool:
        columns = [key for key in EXTRA if key not in experiments.columns]
        is_one = all(len({getattr(entry.cell, key) for entry in line}) == 1 for key in columns)
        return not is_one or experiments.differ(entry.cell.cell for entry in line)

    for key in EXTRA:
        is_free = key not in experiments.columns
        if is_free and any(len({getattr(entry.cell, key) for entry in line}) > 1 for line in mixed()):
            split(key, lambda entry, key=key: getattr(entry.cell, key))
    words: dict[str, str | None] = {}
    for line in mixed():
        words |= experiments.words([entry.cell.cell for entry in line])
    places = {entry.cell.cell: (entry.line, words.get(entry.cell.cell), entry.column) for entry in entries}
    for cell, more in cells.told_apart(places).items():
        words[cell] = " ".join(filter(None, (words.get(cell), more))) or None
    if any(words.values()):
        split("setting", lambda entry: words.get(entry.cell.cell))
    if hashed := {entry.line for line in mixed() for entry in line}:
        split("cell", lambda entry: entry.cell.cell if entry.line in hashed else None)
    return rows, entries


def _order(keys: Sequence[str], scored: Set[str]) -> Callable[[Key], tuple]:
    """Sort key for values of these keys: missing first, numbers by size, policies full, without a score, by name."""

    def rank(key: str, value: Any) -> tuple:
        if value is None:
            return (0,)
        if key == "budget":
            return (1, *budget_key(value))
        if key == "policy":
            return (1, value != "full", value in scored, value)
        return (1, value, "") if isinstance(value, (int, float)) else (2, 0, str(value))

    return lambda values: tuple(rank(key, value) for key, value in zip(keys, values, strict=True))
