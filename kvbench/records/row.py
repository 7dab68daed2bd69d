"""A row: one cell on one sample, in columns that were asked, measured, and where. Names and order are fixed.

Missing is `None` (JSON null), never 0. A failed sample is a row with `error` and no `value`. A line has `schema`, the
version of its columns. Versions so far only added columns, so an older row is read with blanks in the new ones.
"""

import json
import math
import os
import warnings
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields
from typing import Any

from kvbench.records.folder import ResultsFolder
from kvbench.records.lines import Warn, read_lines
from kvbench.support.errors import UserError

SCHEMA = 4
"""1: lines without a mark. 2: with it. 3: with ``question_number``. 4: with ``border_tokens``."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Row:
    """One JSON object a line of a rows file.

    Units: ``*_tokens`` in tokens (``kept_tokens``: KV pairs per cache head, mean over heads and evictable layers;
    ``local_layers`` counts the other layers, which their own sliding window excludes from eviction), ``*_fraction`` in
    0..1, ``*_bytes`` in bytes (``cache_bytes``: keys and values right after eviction; ``allocated_bytes``: with
    positions and the state of each pair; ``peak_bytes``: the most during decoding, room for the answer included),
    ``*_seconds`` in seconds (``prefill_seconds``: of the prefill that this cell shares with others). ``value`` is in
    0..1 if ``metric`` is a rate. ``budget`` is the text of the setting. ``question_number`` counts from 1 if several
    questions are asked about one context. ``border_tokens``: tokens of the whole prompt that its division into context
    and question changed, if any.

    Raises ValueError for a column of the wrong type or a number that JSON cannot hold (NaN, infinity).
    """

    # asked
    cell: str
    sample: int
    model: str
    task: str
    task_version: str | None
    context_length: int | None
    policy: str
    score: str | None
    budget: str
    variant: str | None
    layout: str | None
    schedule: str | None
    seed: int | None
    # measured
    prompt_tokens: int | None = None
    kept_tokens: float | None = None
    kept_fraction: float | None = None
    local_layers: int | None = None
    cache_bytes: int | None = None
    full_cache_bytes: int | None = None
    allocated_bytes: int | None = None
    peak_bytes: int | None = None
    store: str | None = None
    prefill_seconds: float | None = None
    evict_seconds: float | None = None
    decode_seconds: float | None = None
    new_tokens: int | None = None
    prediction: str | None = None
    metric: str | None = None
    value: float | None = None
    error: str | None = None
    prompt_sha256: str | None = None
    context_sha256: str | None = None
    question_number: int | None = None
    border_tokens: int | None = None
    output_sha256: str | None = None
    kept_sha256: str | None = None
    top2_margin: float | None = None
    # where
    environment: str | None = None

    def __post_init__(self) -> None:
        for name in COLUMNS:
            object.__setattr__(self, name, _checked(name, getattr(self, name)))
        if self.error is not None and self.value is not None:
            raise UserError(f"row has both an error ({self.error!r}) and a value ({self.value!r}); it must have one")

    def to_json(self) -> str:
        """One line of strict JSON without its newline: the schema, then the columns in order. ASCII only."""
        return json.dumps({"schema": SCHEMA} | {name: getattr(self, name) for name in COLUMNS}, allow_nan=False)

    @classmethod
    def from_json(cls, line: str | bytes) -> "Row":
        """The row of one line. A missing column is None; an unknown column is ignored.

        Raises ValueError for text that is no strict JSON object, for a newer schema, and for columns of the wrong type.
        """
        try:
            data = json.loads(line, parse_constant=_refuse_constant)
        except RecursionError:
            raise UserError("a row must be a JSON object of plain values, this one is nested too deeply") from None
        if not isinstance(data, dict):
            raise UserError(f"a row must be a JSON object, got {type(data).__name__}")
        check_schema(data.get("schema", 1))
        columns: dict[str, Any] = {name: data.get(name) for name in COLUMNS}
        return cls(**columns)

    def outcome(self) -> dict[str, Any]:
        """All columns except seconds and environment: what identical runs must have in common."""
        skipped = {name for name in COLUMNS if name.endswith("_seconds")} | set(WHERE)
        return {name: getattr(self, name) for name in COLUMNS if name not in skipped}


def check_schema(version: Any) -> None:
    """Raise ValueError for a schema that this version of kvbench cannot read."""
    if isinstance(version, bool) or not isinstance(version, int) or not 1 <= version <= SCHEMA:
        raise UserError(f"schema {version!r}; this kvbench reads schemas 1 to {SCHEMA}: update it to read newer rows")


def _checked(name: str, item: Any) -> Any:
    """The value of a column: of its type, finite, and a float in a float column (1 and 1.0 give the same line)."""
    kind = _TYPES[name]
    if isinstance(item, int) and not isinstance(item, bool) and isinstance(0.0, kind):
        item = float(item) if abs(item) < 2**1000 else math.inf
    if isinstance(item, bool) or not isinstance(item, kind):
        wanted = kind.__name__ if isinstance(kind, type) else str(kind)
        raise UserError(f"row column {name!r} is {item!r} ({type(item).__name__}); it must be {wanted}")
    if isinstance(item, int) and not -(2**63) <= item < 2**63:
        raise UserError(f"row column {name!r} is {item!r}; an integer has 64 bits")
    if isinstance(item, float) and not math.isfinite(item):
        raise UserError(f"row column {name!r} is {item!r}; a number must be finite, a missing one is None")
    return item


def _refuse_constant(name: str) -> Any:
    raise UserError(f"{name} is not JSON; a missing number is null")


_TYPES: dict[str, Any] = {field.name: field.type for field in fields(Row)}
COLUMNS: tuple[str, ...] = tuple(_TYPES)
REQUESTED: tuple[str, ...] = COLUMNS[: COLUMNS.index("prompt_tokens")]
MEASURED: tuple[str, ...] = COLUMNS[len(REQUESTED) : COLUMNS.index("environment")]
WHERE: tuple[str, ...] = COLUMNS[len(REQUESTED) + len(MEASURED) :]


def row_of(line: bytes) -> Row:
    """The row of a recorded line. A value of NaN or infinity is missing, and so is an integer of more than 64 bits.

    Raises ValueError as `Row.from_json` does.
    """
    try:
        return Row.from_json(line)
    except ValueError:
        try:
            data = json.loads(line)
            columns = data.items() if isinstance(data, dict) else ()
        except (ValueError, RecursionError):
            columns = ()
        missing = {
            name: None
            for name, item in columns
            if (isinstance(item, int) and abs(item) >= 2**63)
            or (name == "value" and isinstance(item, float) and not math.isfinite(item))
        }
        if not missing:
            raise
        return Row.from_json(json.dumps(data | missing))


def read_rows(folder: str | os.PathLike[str], warn: Warn = warnings.warn) -> list[Row]:
    """The rows of every file under `rows/`, files by name (that is, by time), each (cell, sample) once.

    Of a sample that was recorded several times, `which_counts` chooses the row, in the place of the first one. A folder
    that does not exist has no rows. Faults of a file are those of `kvbench.records.lines.parse_block`.
    `kvbench.report.rows.load_table` reads the same rows as columns, much faster.
    """
    recorded: dict[tuple[str, int], list[Row]] = {}
    for path in sorted(ResultsFolder(folder).rows.glob("*.jsonl")):
        for row in read_lines(path, row_of, "a row", warn):
            recorded.setdefault((row.cell, row.sample), []).append(row)
    return [rows[which_counts([row.error is not None for row in rows])] for rows in recorded.values()]


def which_counts(failed: Sequence[bool]) -> int:
    """Which of several records of one sample counts: the first that did not fail; if all failed, the last."""
    return failed.index(False) if False in failed else len(failed) - 1


def done(rows: Iterable[Row], retry_errors: bool = False) -> set[tuple[str, int]]:
    """(cell, sample) of the rows that need no second run; a failed row needs one only with ``retry_errors``."""
    return {(row.cell, row.sample) for row in rows if not (retry_errors and row.error is not None)}
