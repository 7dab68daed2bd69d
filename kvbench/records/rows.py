"""The rows of a results folder or a Parquet file, as columns or as objects, each (cell, sample) once.

Runs, merges, the status and every report read their rows here; `kvbench.records.columns` reads one file. Damaged rows
are left out and named. A table has the requested columns of `kvbench.records.Row`, and ``file`` and ``line``: where
each row stands.

Half of a surrogate pair, which Arrow cannot hold, becomes an escape in a table.
"""

import os
import warnings
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from kvbench.records.columns import JUDGED, empty_table, read_file
from kvbench.records.folder import ResultsFolder
from kvbench.records.lines import Warn, listed
from kvbench.records.parquet_rows import descriptions_of, read_parquet
from kvbench.records.row import COLUMNS, Row
from kvbench.records.rows_files import WORDS, Damage, choose_record, mismatch_with_cell
from kvbench.support.errors import UserError
from kvbench.support.grouped import grouped
from kvbench.support.whole_file import lines_of

Describe = Callable[[str], Mapping[str, Any] | None]
"""From a cell to its description, or None if none was kept."""
DECIDING = ("error", "code", "replaces")
"""Columns that decide which of several rows of a sample counts."""


def read_rows(folder: str | os.PathLike[str], warn: Warn = warnings.warn) -> list[Row]:
    """Return the rows of a folder that count, files by name (that is, by time), as `recorded` with all columns."""
    return fetched(recorded(folder, COLUMNS, warn))


def recorded(
    folder: str | os.PathLike[str],
    columns: Sequence[str],
    warn: Warn,
    cells: Collection[str] | None = None,
    keep: bool = False,
) -> pa.Table:
    """Read rows as columns: these, the columns that decide which row counts, ``file`` and ``line``.

    Of a sample that was recorded several times, `choose_record` chooses the row. Only damaged rows, and descriptions of
    cells that cannot be read, go to ``warn``: a run makes both again. A folder may have no rows. ``cells``: only their
    rows; what other rows say of their cells is not checked. ``keep``: leave a copy of what was parsed, for the next
    reader.
    """
    path = Path(folder)
    described = describer_of(path)

    @cache
    def describe(cell: str) -> Mapping[str, Any] | None:
        try:
            return described(cell)
        except UserError as error:
            warn(str(error))
            return None

    rows = whole_rows(path, ("cell", "sample", *DECIDING, *columns), warn, describe, cells, keep)
    drop: list[int] = []
    for records in recorded_again(rows):
        counts = counting(records)
        drop += [record["place"] for record in records if record is not counts]
    return without(rows, drop)


def whole_rows(
    path: Path,
    columns: Collection[str],
    warn: Warn,
    describe: Describe | None = None,
    cells: Collection[str] | None = None,
    keep: bool = False,
) -> pa.Table:
    """Return these columns of every row that is not damaged, with their places; only of ``cells``, if given."""
    describe = describe or describer_of(path)
    read_columns = [name for name in COLUMNS if name in {*columns, *WORDS, *JUDGED}]
    ordered = [*(name for name in COLUMNS if name in columns), "file", "line"]
    damage, tables = Damage(), [empty_table(read_columns).select(ordered)]
    with ThreadPoolExecutor(1) as parser:
        if is_parquet(path):
            files = iter([read_parquet(path, read_columns, warn)])
        else:
            names = listed(ResultsFolder(path).rows, ".jsonl")
            files = (read_file(name, read_columns, parser, damage, warn, keep) for name in names)
        for rows in files:
            if cells is not None:
                rows = with_values(rows, "cell", cells)
            tables.append(_consistent(rows, describe, damage).select(ordered))
    damage.tell(warn)
    return pa.concat_tables(tables)


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
    return without(rows, drop)


def counting(records: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return the one of several records of a sample that counts."""
    return records[choose_record([(each["error"] is not None, each["code"], each["replaces"]) for each in records])]


def check_identical(records: Sequence[Mapping[str, Any]], fix: str) -> None:
    """Raise UserError, with what to do about it, if these records of one sample, which did not fail, have different
    outcomes: if they differ in more than seconds and environment.
    """
    if len(records) < 2:
        return
    places = [(record["file"], record["line"]) for record in records]
    first, *others = (row.outcome() for row in _fetch(places))
    for place, other in zip(places[1:], others, strict=True):
        if differ := [name for name in first if first[name] != other[name]]:
            first_row, other_row = (f"{file}:{line}" for file, line in (places[0], place))
            raise UserError(
                f"cell {records[0]['cell']}, sample {records[0]['sample']} has two outcomes: {first_row} and "
                f"{other_row} differ in {', '.join(differ)}; {fix}"
            )


def recorded_again(rows: pa.Table) -> list[list[dict[str, Any]]]:
    """Return records of every sample that has several, each with its ``place`` in the table; by their first place."""
    cells = rows["cell"].combine_chunks().dictionary_encode().indices.to_numpy()
    samples = rows["sample"].to_numpy()
    order = np.lexsort((samples, cells))
    same_as_next = np.zeros(len(order), bool)
    same_as_next[:-1] = (np.diff(cells[order]) == 0) & (np.diff(samples[order]) == 0)
    places = np.sort(order[same_as_next | np.roll(same_as_next, 1)])
    records = rows.select(["cell", "sample", "file", "line", *DECIDING]).take(places)
    placed = (record | {"place": place} for place, record in zip(places.tolist(), records.to_pylist(), strict=True))
    return list(grouped(placed, lambda record: (record["cell"], record["sample"])).values())


def without(rows: pa.Table, drop: Sequence[int]) -> pa.Table:
    """Return the rows of a table but those at these places."""
    return rows.filter(pa.array(~np.isin(np.arange(rows.num_rows), drop))) if drop else rows


def with_values(rows: pa.Table, column: str, values: Collection[str]) -> pa.Table:
    """Return the rows that have one of these values in a column of text."""
    return rows.filter(pa.array(fulfils(rows[column], lambda value: value in values)))


def fulfils(column: pa.ChunkedArray, condition: Callable[[Any], bool]) -> np.ndarray:
    """Return whether the value of each row fulfils a condition, [rows]; it is asked once for each different value."""
    coded = column.combine_chunks().dictionary_encode(null_encoding="encode")
    chosen = [code for code, value in enumerate(coded.dictionary.to_pylist()) if condition(value)]
    return np.isin(coded.indices.to_numpy(), chosen)


def within(rows: pa.Table, samples: Mapping[str, int]) -> pa.Table:
    """Rows whose sample is below the number given for their cell; other cells are left out."""
    coded = rows["cell"].combine_chunks().dictionary_encode()
    limits = np.array([samples.get(cell, 0) for cell in coded.dictionary.to_pylist()], np.int64)
    return rows.filter(pa.array(rows["sample"].to_numpy() < limits[coded.indices.to_numpy()]))


def describer_of(path: Path) -> Describe:
    """Return a function from a cell to its description, or None if none was kept; each is read once."""
    if not is_parquet(path):
        return cache(ResultsFolder(path).read_cell)
    described = cache(descriptions_of)
    return lambda cell: described(path).get(cell)


def fetched(table: pa.Table) -> list[Row]:
    """Return the rows of a table with ``file`` and ``line``, with all their columns as recorded."""
    return _fetch([*zip(table["file"].to_pylist(), table["line"].to_pylist(), strict=True)])


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


def rows_of(table: pa.Table) -> list[Row]:
    """Return the rows of a table that has all columns; a value that is not a number is missing."""
    columns = {name: _values(table[name]) for name in COLUMNS}
    columns["value"] = [None if value != value else value for value in columns["value"]]
    return [Row(**dict(zip(COLUMNS, line, strict=True))) for line in zip(*columns.values(), strict=True)]


def _values(column: pa.ChunkedArray) -> list[Any]:
    """Return the values of a column as `to_pylist` does, faster: equal texts are one, numbers are read at once."""
    if pa.types.is_string(column.type):
        coded = column.combine_chunks().dictionary_encode(null_encoding="encode")
        return [*map(coded.dictionary.to_pylist().__getitem__, coded.indices.to_numpy())]
    return column.to_pylist() if column.null_count else column.to_numpy().tolist()


def is_parquet(path: Path) -> bool:
    """Return whether a path names a Parquet file, and no results folder."""
    return path.is_file() and path.suffix == ".parquet"
