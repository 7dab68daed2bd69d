"""Rows of other code than the code that runs now: a run names them and stops, makes them again, or keeps them."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple

import pyarrow as pa

from kvbench.records import NO_SOURCE, ResultsFolder
from kvbench.records.environment import source
from kvbench.records.rows import within
from kvbench.run.cell import Cell
from kvbench.support import __version__
from kvbench.support.errors import UserError
from kvbench.support.quantity import count_noun, shortened

Stale = Literal["stop", "keep", "rerun"]
"""What `kvbench run --stale` does about them."""
SETTLED = ("cell", "sample", "error", "code", "replaces", "environment")
"""Columns of rows that say whether one needs a second run."""


class RowsOfOtherCode(UserError):
    """Rows that another code made: `fault` says which. stale: how the caller's users write a value of that setting."""

    def __init__(self, fault: str, stale: str = "--stale={}") -> None:
        rerun, keep = map(stale.format, ("rerun", "keep"))
        fix = f"{rerun} makes them again, {keep} takes them as they are, results.dir=FOLDER starts a new folder"
        super().__init__(f"{fault}: {fix}")
        self.fault = fault


class Settled(NamedTuple):
    """The rows, by (cell, sample), that need no second run; and of the others that are there what is to stand in the
    column `replaces` of the row that counts instead.
    """

    done: set[tuple[str, int]]
    replaced: dict[tuple[str, int], int]


class RowsOfCode(NamedTuple):
    """How many rows of a cell some code made in an environment."""

    cell: str
    code: str | None
    environment: str | None
    rows: int


def settled(
    rows: pa.Table,
    cells: Sequence[Cell],
    results: ResultsFolder,
    retry_errors: bool,
    stale: Stale,
    tell: Callable[[str], None],
) -> Settled:
    """Return the rows of `cells` that need no second run, by what `stale` says of other code; a failed row needs one
    only with `retry_errors`. `rows`: a table with the columns of `SETTLED`.

    Rows whose code is not known are taken as they are, and to `tell` goes how many; with "rerun" they are made again.
    Raises RowsOfOtherCode with "stop".
    """
    by_id = {cell.id: cell for cell in cells}
    all_rows = rows = within(rows, {name: cell.task.num_answers for name, cell in by_id.items()})
    if retry_errors:
        rows = rows.filter(pa.array(rows["error"].is_null().to_numpy()))
    differing = [group for group in _rows_by_code(rows) if group.code != by_id[group.cell].code.id]
    other_code = [group for group in differing if is_known(group.code) and by_id[group.cell].code.parts is not None]
    if stale == "rerun":
        to_rerun = {(group.cell, group.code) for group in differing}
        codes = zip(rows["cell"].to_pylist(), rows["code"].to_pylist(), strict=True)
        return _settled(all_rows, rows.filter(pa.array([pair not in to_rerun for pair in codes], pa.bool_())))
    counted = f"{count_noun(sum(group.rows for group in other_code), 'row')} of {results.path}"
    if other_code and stale == "stop":
        raise RowsOfOtherCode(f"{counted} {_made_by(other_code, by_id, results)}")
    if other_code:
        tell(f"warning: {counted} are of other code and kept: with new rows, means are over two versions of the code")
    if unknown := sum(group.rows for group in differing) - sum(group.rows for group in other_code):
        tell(
            f"{count_noun(unknown, 'row')} of {results.path} do not say which code made them and are kept; "
            "--stale=rerun makes them again"
        )
    return _settled(all_rows, rows)


def _settled(all_rows: pa.Table, settled_rows: pa.Table) -> Settled:
    """Return what is settled if these of the recorded rows need no second run."""
    done = _keys(settled_rows)
    if all_rows.num_rows == settled_rows.num_rows:
        return Settled(done, {})
    columns = zip(*(all_rows[name].to_pylist() for name in ("cell", "sample", "replaces")), strict=True)
    return Settled(done, {(cell, at): (before or 0) + 1 for cell, at, before in columns if (cell, at) not in done})


def _keys(rows: pa.Table) -> set[tuple[str, int]]:
    """(cell, sample) of rows, each text once in memory."""
    cells = rows["cell"].combine_chunks().dictionary_encode()
    names = cells.dictionary.to_pylist()
    return {
        (names[code], sample)
        for code, sample in zip(cells.indices.to_pylist(), rows["sample"].to_pylist(), strict=True)
    }


def _rows_by_code(rows: pa.Table) -> list[RowsOfCode]:
    """Who made rows: the distinct cells, codes and environments, in the order of their first rows."""
    keys = ["cell", "code", "environment"]
    groups = rows.select(keys).group_by(keys, use_threads=False).aggregate([([], "count_all")])
    return [
        RowsOfCode(*line) for line in zip(*(groups[name].to_pylist() for name in (*keys, "count_all")), strict=True)
    ]


def is_known(code: str | None) -> bool:
    """Return whether a row says which code made it: not where the sources could not be read, or of a server."""
    return code not in (None, NO_SOURCE)


def _made_by(rows: Sequence[RowsOfCode], cells: dict[str, Cell], results: ResultsFolder) -> str:
    """Return which code made rows and which runs now, by hash, commit and the parts that differ."""
    codes = list(dict.fromkeys(row.code or "" for row in rows))
    first_row = rows[0]
    current = cells[first_row.cell].code
    differing = set[str]()
    for row in {(row.cell, row.code): row for row in rows}.values():
        recorded, parts = results.read_code(row.code or "") or {}, cells[row.cell].code.parts or {}
        differing |= {name for name in {*recorded, *parts} if recorded and recorded.get(name) != parts.get(name)}
    environment = results.read_environment(first_row.environment) if first_row.environment else None
    packages: dict[str, Any] = (environment or {}).get("packages") or {}
    old = _version(packages.get("kvbench"), (environment or {}).get("source") or {})
    new = _version(__version__, source(Path(__file__).parents[1]))
    names = f"; {shortened(sorted(differing), 4)} differ" if differing else ""
    return f"were made by other code ({shortened(codes, 2)}, {old}) than runs now ({current.id}, {new}{names})"


def _version(version: Any, checkout: dict[str, Any]) -> str:
    commit = checkout.get("commit")
    changed = " with changes" if checkout.get("dirty") else ""
    return f"kvbench {version or 'of unknown version'}" + (f" at {str(commit)[:9]}{changed}" if commit else "")
