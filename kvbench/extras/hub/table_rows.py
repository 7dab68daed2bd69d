"""Rows of a table, from a file (Parquet, Arrow, CSV) or a data set of the Hub, as the rows of a file of JSON lines.

Columns are named by what they hold: {"context": "article", "question": "q", "answers": "labels.text"}; a dot enters a
column of structures. A text or a whole number is a list of one answer. A cell of a CSV file is the text that stands
there; a JSON list of texts in it is several answers, and messages are JSON.
"""

import hashlib
import json
import re
from ast import literal_eval
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from importlib import import_module
from itertools import chain
from pathlib import Path
from typing import Any

from kvbench.support.errors import MissingFile, UserError
from kvbench.support.parquet import check_growth
from kvbench.tasks.csv_rows import csv_rows
from kvbench.tasks.own_file import check_names

ROLES = ("context", "question", "messages", "answers")
"""What a column can hold."""
BY_NAME = "task.columns={context:COLUMN,question:COLUMN,answers:COLUMN}"
BATCH = 256
"""Rows of a table that are Python objects at a time."""
SUFFIXES = (".parquet", ".arrow", ".feather", ".csv")
REPOSITORY = re.compile(r"[\w.-]+(/[\w.-]+)?")
Columns = tuple[tuple[str, str], ...] | None


def table_rows(path: str, revision: str | None, subset: str | None, split: str, columns: Columns) -> Sequence[str]:
    """Return the rows as canonical JSON with the keys of ``columns``, pairs of a role and a column (None: by role).

    Raises UserError for columns that are not there, a name of the Hub without a revision, settings of the Hub for a
    file, and where `datasets` is missing; MissingFile where there is no file or the Hub does not give it.
    """
    if unknown := [role for role, _ in columns or () if role not in ROLES]:
        raise UserError(f"task.columns has {unknown[0]}: allowed: {', '.join(ROLES)}")
    file = Path(path).expanduser().absolute()
    if file.suffix in SUFFIXES or file.is_file():
        if file.suffix not in SUFFIXES:
            raise UserError(f"task.path={path}: allowed: {', '.join(SUFFIXES)}; task=jsonl reads JSON lines")
        if not file.is_file():
            raise MissingFile(f"task.path={path}: no such file")
        if of_hub := [name for name, value in (("revision", revision), ("subset", subset)) if value is not None]:
            raise UserError(f"task.{of_hub[0]} is of data sets of the Hub; task.path={path} is a file: leave it out")
        state = file.stat()
        return _of_file(file, columns, state.st_size, state.st_mtime_ns)
    if not REPOSITORY.fullmatch(path):
        raise MissingFile(f"task.path={path}: no such file, and no data set of the Hub: org/name")
    if revision is None:
        raise UserError(
            f"task.path={path} is a data set of the Hub and needs task.revision=COMMIT: what a branch holds changes"
        )
    return _of_hub(path, revision, subset, split, columns)


def sha256_of_rows(rows: Sequence[str]) -> str:
    """Return the hash of what was read, whatever it was read from."""
    return hashlib.sha256("\n".join(rows).encode()).hexdigest()


@lru_cache(maxsize=8)
def _of_file(file: Path, columns: Columns, size: int, changed: int) -> tuple[str, ...]:
    if file.suffix == ".csv":
        return _of_csv(file, columns)
    import pyarrow
    from pyarrow import feather, parquet

    read: Any = parquet.read_table if file.suffix == ".parquet" else feather.read_table
    try:
        if file.suffix == ".parquet":
            check_growth(file.read_bytes())
        table = _stream(file) if file.suffix == ".arrow" else read(file)
    except (pyarrow.ArrowException, OSError, ValueError) as error:
        raise UserError(f"task.path={file}: not a table: {' '.join(str(error).split())}") from error
    chosen = _chosen(str(file), table.column_names, columns)
    batches = table.select(_tops(table.column_names, chosen)).to_batches(BATCH)
    return _mapped(str(file), (record for batch in batches for record in batch.to_pylist()), chosen)


def _of_csv(file: Path, columns: Columns) -> tuple[str, ...]:
    try:
        rows = csv_rows(file)
        first = next(rows, None)
        if first is None:
            raise UserError("it has no rows")
        chosen = _chosen(str(file), list(first), columns)
        if inner := [column for _, column in chosen if column not in first]:
            raise UserError(f"task.columns has {inner[0]}: a cell of a CSV file has no parts; name one of its columns")
        records = (
            {role: _of_cell(row[column], role, number) for role, column in chosen}
            for number, row in enumerate(chain((first,), rows), 1)
        )
        return _mapped(str(file), records, [(role, role) for role, _ in chosen])
    except UserError as error:
        raise UserError(str(error) if "task." in str(error) else f"task.path={file}: {error}") from None


def _of_cell(cell: str, role: str, number: int) -> Any:
    """Parse a cell: a text, answers or messages. Raises UserError for a list of answers not in JSON."""
    if role not in ("answers", "messages") or not cell.lstrip().startswith("["):
        return cell
    try:
        content = json.loads(cell)
    except (ValueError, RecursionError):
        content = None
    if role == "messages":
        return cell if content is None else content
    if _are_texts(content):
        return content
    if _are_texts(_python(cell)):
        raise UserError(
            f"row {number}: its answers are {cell[:80]}, a list as Python writes it: write a JSON list, "
            f"{json.dumps(['a', 'b'])}, also for one answer in brackets"
        )
    return cell


def _python(cell: str) -> Any:
    try:
        return literal_eval(cell.strip())
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        return None


def _are_texts(content: Any) -> bool:
    return isinstance(content, list) and bool(content) and all(isinstance(item, str) for item in content)


def _stream(file: Path) -> Any:
    """Return a table of an Arrow file, which is a stream where `datasets` wrote it."""
    import pyarrow

    with pyarrow.memory_map(str(file)) as source:
        try:
            return pyarrow.ipc.open_file(source).read_all()
        except pyarrow.ArrowInvalid:
            source.seek(0)
            return pyarrow.ipc.open_stream(source).read_all()


@lru_cache(maxsize=8)
def _of_hub(path: str, revision: str, subset: str | None, split: str, columns: Columns) -> tuple[str, ...]:
    try:
        load_dataset = import_module("datasets").load_dataset
    except ImportError:
        raise UserError(f"task.path={path} is read by datasets: pip install 'kvbench[hub]'") from None
    try:
        data: Any = load_dataset(path, subset, split=split, revision=revision)
    except Exception as error:  # it raises many kinds: offline, no such repository, revision, subset or split
        reason = " ".join(str(error).split()) or type(error).__name__
        raise MissingFile(f"task.path={path} revision {revision}: the Hub did not give it: {reason}") from error
    chosen = _chosen(path, data.column_names, columns)
    return _mapped(path, data.select_columns(_tops(data.column_names, chosen)), chosen)


def _chosen(path: str, present: Sequence[str], columns: Columns) -> list[tuple[str, str]]:
    """Return the role and column of all that is read. Raises UserError for a column that is not there."""
    named = list(columns) if columns is not None else _by_role(path, present)
    for role, column in named:
        if column not in present and column.split(".")[0] not in present:
            raise UserError(
                f"task.columns: {path} has no column {column} for {role}, only {', '.join(present)}; name them with "
                f"{BY_NAME}"
            )
    return named


def _by_role(path: str, present: Sequence[str]) -> list[tuple[str, str]]:
    """Return the columns that are called as what they hold. Raises UserError for a column that may be meant as one."""
    try:
        check_names(present)
    except UserError as error:
        raise UserError(f"task.path={path}: {error}; or name what is read with {BY_NAME}") from None
    named = [(role, role) for role in ROLES if role in present or role == "answers"]
    return [*named, ("question", "input")] if "input" in present else named


def _tops(present: Sequence[str], chosen: Sequence[tuple[str, str]]) -> list[str]:
    return list(dict.fromkeys(column if column in present else column.split(".")[0] for _, column in chosen))


def _mapped(path: str, records: Iterable[Mapping[str, Any]], chosen: Sequence[tuple[str, str]]) -> tuple[str, ...]:
    rows = ({role: _value(record, column, role) for role, column in chosen} for record in records)
    try:
        lines = tuple(json.dumps(row, sort_keys=True, ensure_ascii=True) for row in rows)
    except TypeError as error:
        raise UserError(f"task.path={path}: a column holds no text: {error}") from None
    if not lines:
        raise UserError(f"task.path={path} has no rows")
    return lines


def _value(record: Mapping[str, Any], column: str, role: str) -> Any:
    value: Any = record.get(column)
    if column not in record:
        value = record
        for part in column.split("."):
            value = value.get(part) if isinstance(value, Mapping) else None
    if role == "answers" and (isinstance(value, str) or type(value) is int):
        return [str(value)]
    if role == "answers" and isinstance(value, list):
        return [str(answer) if type(answer) is int else answer for answer in value]
    return "" if role == "question" and value is None else value
