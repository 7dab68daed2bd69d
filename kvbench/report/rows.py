"""Rows of a results folder, a Parquet file or a frame, as columns or as rows, each (cell, sample) once.

Runs, the status and every report read their rows here; `kvbench.report.columns` reads the files. Damaged rows are left
out and named. A table has the requested columns of `kvbench.records.Row`, and ``file`` and ``line``: where each row
stands.

Half of a surrogate pair, which Arrow cannot hold, becomes an escape in a table.
"""

import base64
import json
import os
import warnings
import zlib
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet

from kvbench.records import COLUMNS, SCHEMA, ResultsFolder, Row, check_schema
from kvbench.records.lines import Warn, check_name, listed
from kvbench.records.parquet import DAMAGED, checked_bytes, to_parquet
from kvbench.records.row import LARGEST_NUMBER
from kvbench.records.rows_files import WORDS, Damage, choose_record, mismatch_with_cell
from kvbench.report.altered_files import tell_altered
from kvbench.report.codes import ReadCode, tell_codes
from kvbench.report.columns import (
    JUDGED,
    REQUIRED,
    TYPES,
    empty_table,
    read_file,
    shares_outside,
    too_large,
    warn_of_unknown,
    with_places,
)
from kvbench.report.frames import Source, is_frame, named, place_of, table_of
from kvbench.report.missing_rows import tell_missing
from kvbench.report.moments import Span, as_metadata
from kvbench.report.selection import Describe, NothingSelected, Where, check_where, select
from kvbench.support.errors import MissingFile, UserError
from kvbench.support.grouped import grouped
from kvbench.support.parquet import check_growth
from kvbench.support.quantity import count_noun
from kvbench.support.whole_file import lines_of

_SCHEMA, _CELLS = b"kvbench.schema", b"kvbench.cells.zlib"
"""Metadata of a Parquet file: the version of the columns; the descriptions of cells, as compressed JSON."""
_DECIDING = ("error", "code", "replaces")
"""Columns that decide which of several rows of a sample counts."""
LARGEST = 2**28
"""Bytes that the descriptions of all cells of a Parquet file may have."""


def load(source: Source, warn: Warn = warnings.warn, where: Where | None = None) -> list[Row]:
    """Return the rows of `load_table`, in its order, with all their columns as recorded, or as the frame has them."""
    table = load_table(source, COLUMNS, warn, where)
    return rows_of(table) if is_frame(source) else fetched(table)


def fetched(table: pa.Table) -> list[Row]:
    """Return the rows of a table with ``file`` and ``line``, with all their columns as recorded."""
    return _fetch([*zip(table["file"].to_pylist(), table["line"].to_pylist(), strict=True)])


def load_table(
    source: Source,
    columns: Sequence[str] = COLUMNS,
    warn: Warn = warnings.warn,
    where: Where | None = None,
) -> pa.Table:
    """Return the rows of a results folder, a Parquet file or a frame as columns, each (cell, sample) once, files by
    name.

    The table has ``columns``, the columns of ``where``, ``cell sample error code replaces``, and ``file`` and ``line``,
    the place of a row. ``where``: see `kvbench.report.selection.select`. Damaged rows and torn last lines, which are
    left out, unknown columns, dropped duplicates, rows that are missing and rows of several versions of the code go to
    ``warn``.

    Raises FileNotFoundError if there are no rows, NothingSelected if none is selected, ValueError naming file and line
    for a row of a later kvbench, for two rows of one sample that contradict each other, and as
    `kvbench.report.frames.table_of`.
    """
    where = where or {}
    check_where(where)
    read = ("cell", "sample", *_DECIDING, *columns, *where)
    path, describe = None, describer(source)
    if isinstance(source, (str, os.PathLike)):
        check_name(path := Path(source))
        rows = _whole_rows(path, read, describe, warn)
    else:
        rows = table_of(source, read)
    if not rows.num_rows:
        raise NothingSelected("the frame has no rows") if path is None else MissingFile(_no_rows(path))
    rows = select(rows, where, describe, warn)
    rows = rows if path is None else _once(rows, warn)
    tell_codes(named(source), rows, code_reader(source), warn)
    tell_altered(named(source), rows, describe, warn)
    if path is not None and not _is_parquet(path):
        tell_missing(ResultsFolder(path), rows, bool(where), warn)
    return rows


def recorded(
    folder: str | os.PathLike[str],
    columns: Sequence[str],
    warn: Warn,
    cells: Collection[str] | None = None,
    keep: bool = False,
) -> pa.Table:
    """Read rows as columns: these, the columns that decide which row counts, ``file`` and ``line``.

    Of a sample that was recorded several times, `choose_record` chooses the row. Only damaged rows go to ``warn``; a
    folder may have none. ``cells``: only rows of these; what the others say of their cells is not checked. ``keep``:
    leave a copy of what was parsed, for the next reader.
    """
    path = Path(folder)
    rows = _whole_rows(path, ("cell", "sample", *_DECIDING, *columns), describer(path), warn, cells, keep)
    drop: list[int] = []
    for records in _recorded_again(rows):
        counts = _counting(records)
        drop += [record["place"] for record in records if record is not counts]
    return _without(rows, drop)


def _whole_rows(
    path: Path,
    columns: Collection[str],
    describe: Describe,
    warn: Warn,
    cells: Collection[str] | None = None,
    keep: bool = False,
) -> pa.Table:
    """Return these columns of every row that is not damaged, with their places; only of ``cells``, if given."""
    read = [name for name in COLUMNS if name in {*columns, *WORDS, *JUDGED}]
    ordered = [*(name for name in COLUMNS if name in columns), "file", "line"]
    damage, tables = Damage(), [empty_table(read).select(ordered)]
    with ThreadPoolExecutor(1) as parser:
        if _is_parquet(path):
            files = iter([read_parquet(path, read, warn)])
        else:
            names = listed(ResultsFolder(path).rows, ".jsonl")
            files = (read_file(name, read, parser, damage, warn, keep) for name in names)
        for rows in files:
            if cells is not None:
                rows = with_values(rows, "cell", cells)
            tables.append(_consistent(rows, describe, damage).select(ordered))
    damage.tell(warn)
    return pa.concat_tables(tables)


def with_values(rows: pa.Table, column: str, values: Collection[str]) -> pa.Table:
    """Return the rows that have one of these values in a column of text."""
    coded = rows[column].combine_chunks().dictionary_encode()
    chosen = [code for code, value in enumerate(coded.dictionary.to_pylist()) if value in values]
    return rows.filter(pa.array(np.isin(coded.indices.to_numpy(), chosen)))


def within(rows: pa.Table, samples: Mapping[str, int]) -> pa.Table:
    """Rows whose sample is below the number given for their cell; other cells are left out."""
    coded = rows["cell"].combine_chunks().dictionary_encode()
    limits = np.array([samples.get(cell, 0) for cell in coded.dictionary.to_pylist()], np.int64)
    return rows.filter(pa.array(rows["sample"].to_numpy() < limits[coded.indices.to_numpy()]))


def code_reader(source: Source) -> ReadCode:
    """Return a function from the `code` of a row to the hashes of its parts, or None where they were not kept."""
    path = place_of(source)
    return (lambda code: None) if path is None or _is_parquet(path) else cache(ResultsFolder(path).read_code)


def describer(source: Source) -> Describe:
    """Return a function from a cell to its description, or None if none was kept; each is read once."""
    path, described = place_of(source), cache(descriptions_of)
    if path is None:
        return lambda cell: None
    return (lambda cell: described(path).get(cell)) if _is_parquet(path) else cache(ResultsFolder(path).read_cell)


def rows_of(table: pa.Table) -> list[Row]:
    """Return the rows of a table that has all columns; a value that is not a number is missing."""
    lines = table.select(list(COLUMNS)).to_pylist()
    return [Row(**{**line, "value": None} if line["value"] != line["value"] else line) for line in lines]


def write_parquet(
    rows: pa.Table,
    path: str | os.PathLike[str],
    describe: Callable[[str], Mapping[str, Any] | None],
    spans: Mapping[str, Span] | None = None,
) -> None:
    """Write all columns of rows, with descriptions of their cells and a checksum as metadata. Same rows, same bytes.

    spans: when the rows of a cell were made, where that is known.
    """
    described = {cell: describe(cell) for cell in sorted(set(rows["cell"].to_pylist()))}
    metadata = metadata_of({cell: text for cell, text in described.items() if text is not None})
    metadata |= as_metadata(spans or {})
    Path(path).write_bytes(to_parquet(rows.select(list(COLUMNS)), metadata))


def metadata_of(descriptions: Mapping[str, Mapping[str, Any]]) -> dict[bytes, bytes]:
    """Return the metadata of a Parquet file of rows: the version of its columns, and the descriptions of its cells."""
    text = json.dumps(descriptions, sort_keys=True)
    return {_SCHEMA: str(SCHEMA).encode(), _CELLS: base64.b64encode(zlib.compress(text.encode(), 9))}


def read_parquet(path: Path, columns: Sequence[str], warn: Warn) -> pa.Table:
    """Return the rows of a Parquet file, with their places. Raises ValueError if this version cannot read them, or if
    its bytes differ from its checksum.
    """
    data, is_checked = checked_bytes(path)
    try:
        with pyarrow.parquet.ParquetFile(pa.BufferReader(data)) as file:
            schema = file.schema_arrow
            check_schema(int((schema.metadata or {}).get(_SCHEMA, b"0")))
            if absent := [name for name in REQUIRED if name not in schema.names]:
                raise UserError(f"rows have the column {absent[0]!r}")
            warn_of_unknown(path, schema.names, warn)
            check_growth(data, columns)
            rows = file.read([name for name in TYPES if name in columns and name in schema.names])
        arrays = [
            rows[name].cast(TYPES[name]) if name in rows.column_names else pa.nulls(rows.num_rows, TYPES[name])
            for name in columns
        ]
    except (ValueError, OSError, pa.ArrowException) as error:  # pa.ArrowInvalid is a ValueError
        raise UserError(f"{path}: not a Parquet file of rows: {' '.join(str(error).split())}") from error
    if not is_checked:  # where its name is damaged, a checksum is not found
        raise UserError(f"{path}: {DAMAGED}")
    table = pa.table(arrays, names=list(columns))
    if "value" in columns and (outside := shares_outside(table)):
        raise UserError(f"{path}: a value of {outside[0]} is not in 0..1: the file is damaged; copy or export it again")
    if large := too_large(table):
        raise UserError(f"{path}: the column {large[0]!r} has a number over {LARGEST_NUMBER:g}: the file is damaged")
    for name in REQUIRED:
        if name in columns and table[name].null_count:
            raise UserError(f"{path}: the column {name!r} has missing values; it must have none")
    return with_places(table, columns, path, range(1, table.num_rows + 1))


def _is_parquet(path: Path) -> bool:
    return path.is_file() and path.suffix == ".parquet"


def _consistent(rows: pa.Table, describe: Describe, damage: Damage) -> pa.Table:
    """Return the rows without those that their cell's description contradicts: most have the words of the first of a
    cell.
    """
    codes = rows["cell"].combine_chunks().dictionary_encode().indices.to_numpy()
    first = np.zeros(codes.max(initial=-1) + 1, np.int64)
    first[codes[::-1]] = np.arange(len(codes))[::-1]
    words = rows.select(list(WORDS))
    faults = [mismatch_with_cell(word, describe) for word in words.take(pa.array(first)).to_pylist()]
    to_check = np.array([fault is not None for fault in faults], bool)[codes]
    for column in words.itercolumns():
        encoded = column.combine_chunks().dictionary_encode("encode")
        if len(encoded.dictionary) > 1:
            coded = encoded.indices.to_numpy()
            to_check |= coded != coded[first][codes]
    drop = []
    for place, word in zip(np.flatnonzero(to_check), words.filter(pa.array(to_check)).to_pylist(), strict=True):
        if reason := mismatch_with_cell(word, describe):
            damage.add(rows["file"][place].as_py(), rows["line"][place].as_py(), reason)
            drop.append(place)
    return _without(rows, drop)


def _fetch(places: Sequence[tuple[str, int]]) -> list[Row]:
    """Return the rows at (file, line), lines counted from 1, in the order of ``places``."""
    rows: dict[tuple[str, int], Row] = {}
    for file, places_in_file in grouped(places, lambda place: place[0]).items():
        line_numbers = [line for _, line in places_in_file]
        if file.endswith(".parquet"):
            table = read_parquet(Path(file), COLUMNS, lambda text: None).take([line - 1 for line in line_numbers])
            rows |= zip(places_in_file, rows_of(table), strict=True)
            continue
        numbers = set(line_numbers)
        texts = zip(range(1, max(numbers) + 1), lines_of(Path(file)), strict=False)
        rows |= {(file, line): Row.from_json(text) for line, text in texts if line in numbers}
    return [rows[place] for place in places]


def _once(rows: pa.Table, warn: Warn) -> pa.Table:
    """Return each (cell, sample) once, by the rule of `choose_record`; what is dropped goes to ``warn``.

    Raises ValueError naming both places if two rows of one sample and code that did not fail have different outcomes,
    that is, differ in more than seconds and environment.
    """
    drop: list[int] = []
    identical = retried = superseded = 0
    for all_records in _recorded_again(rows):
        counts = _counting(all_records)
        records = [record for record in all_records if record["code"] == counts["code"]]
        superseded += len(all_records) - len(records)
        good = [record for record in records if record["error"] is None]
        if len(good) > 1:
            _check_identical(good)
        identical += max(len(good) - 1, 0)
        retried += len(records) - max(len(good), 1)
        drop += [record["place"] for record in all_records if record is not counts]
    if identical:
        warn(f"{count_noun(identical, 'row')} recorded twice with the same outcome; each sample counts once")
    if superseded:
        warn(f"{count_noun(superseded, 'row')} of other code were replaced by later rows; each sample counts once")
    if retried:
        warn(f"{count_noun(retried, 'row')} with an error were replaced by a later run; each sample counts once")
    return _without(rows, drop)


def _counting(records: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return the one of several records of a sample that counts."""
    return records[choose_record([(each["error"] is not None, each["code"], each["replaces"]) for each in records])]


def _without(rows: pa.Table, drop: Sequence[int]) -> pa.Table:
    return rows.filter(pa.array(~np.isin(np.arange(rows.num_rows), drop))) if drop else rows


def _recorded_again(rows: pa.Table) -> list[list[dict[str, Any]]]:
    """Return records of every sample that has several, each with its ``place`` in the table; by their first place."""
    cells = rows["cell"].combine_chunks().dictionary_encode().indices.to_numpy()
    samples = rows["sample"].to_numpy()
    order = np.lexsort((samples, cells))
    same_as_next = np.zeros(len(order), bool)
    same_as_next[:-1] = (np.diff(cells[order]) == 0) & (np.diff(samples[order]) == 0)
    places = np.sort(order[same_as_next | np.roll(same_as_next, 1)])
    records = rows.select(["cell", "sample", "file", "line", *_DECIDING]).take(places)
    placed = (record | {"place": place} for place, record in zip(places.tolist(), records.to_pylist(), strict=True))
    return list(grouped(placed, lambda record: (record["cell"], record["sample"])).values())


def _check_identical(records: Sequence[Mapping[str, Any]]) -> None:
    """Raise ValueError if these records of one sample, which did not fail, have different outcomes."""
    places = [(record["file"], record["line"]) for record in records]
    first, *others = (row.outcome() for row in _fetch(places))
    for place, other in zip(places[1:], others, strict=True):
        if differ := [name for name in first if first[name] != other[name]]:
            first_row, other_row = (f"{file}:{line}" for file, line in (places[0], place))
            raise UserError(
                f"cell {records[0]['cell']}, sample {records[0]['sample']} has two outcomes: {first_row} and "
                f"{other_row} differ in {', '.join(differ)}; remove the wrong one, or move its file away"
            )


def descriptions_of(path: Path) -> dict[str, Any]:
    """Return the descriptions of cells in the metadata of a Parquet file. Raises ValueError if they are broken."""
    try:
        metadata = pyarrow.parquet.read_metadata(path).metadata or {}
        text, decompressor = b"{}", zlib.decompressobj()
        if _CELLS in metadata:
            text = decompressor.decompress(base64.b64decode(metadata[_CELLS]), LARGEST)
            if decompressor.unconsumed_tail:
                raise UserError(f"unpacked they have more than {LARGEST} bytes")
        cells = json.loads(text)
    except (ValueError, OSError, pa.ArrowException, RecursionError, zlib.error) as error:
        raise UserError(f"{path}: its descriptions of cells cannot be read: {error}") from error
    if not isinstance(cells, dict) or not all(isinstance(cell, dict) for cell in cells.values()):
        raise UserError(f"{path}: its descriptions of cells cannot be read: they are no objects")
    return cells


def _no_rows(path: Path) -> str:
    if path.is_file():
        state = "has no rows" if path.suffix == ".parquet" else "is not a folder"
    elif path.is_dir():
        state = "has no rows yet" if ResultsFolder(path).rows.is_dir() else "is not a results folder"
    else:
        state = "does not exist"
    fix = "run `kvbench run`, or name the folder of a run with --results"
    return f"results folder {os.fspath(path)!r} {state}; {fix}"
