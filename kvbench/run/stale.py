"""Rows of other code than the code that runs now: a run names them and stops, makes them again, or keeps them."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Literal

from kvbench.records import NO_SOURCE, ResultsFolder, Row, done
from kvbench.records.environment import source
from kvbench.run.plan import Cell
from kvbench.support import __version__
from kvbench.support.errors import UserError
from kvbench.support.quantity import plural, shortened

Stale = Literal["stop", "keep", "rerun"]
"""What `kvbench run --stale` does about them."""


def settled(
    rows: Sequence[Row],
    cells: Sequence[Cell],
    results: ResultsFolder,
    retry_errors: bool,
    stale: Stale,
    tell: Callable[[str], None],
) -> set[tuple[str, int]]:
    """(cell, sample) of the rows that need no second run, as `done` has them, by what `stale` says of other code.

    Rows whose code is not known are taken as they are, and to `tell` goes how many; with "rerun" they are made again.
    Raises UserError for rows of other code with "stop".
    """
    recorded, by_id = done(rows, retry_errors), {cell.id: cell for cell in cells}
    mine = [
        row
        for row in rows
        if row.cell in by_id
        and row.sample < by_id[row.cell].task.num_answers
        and (row.cell, row.sample) in recorded
        and row.code != by_id[row.cell].code.id
    ]
    other = [row for row in mine if is_known(row.code) and by_id[row.cell].code.parts is not None]
    if stale == "rerun":
        return recorded - {(row.cell, row.sample) for row in mine}
    counted = f"{plural(len(other), 'row')} of {results.path}"
    if other and stale == "stop":
        raise UserError(
            f"{counted} {_made_by(other, by_id, results)}: --stale=rerun makes them again, --stale=keep takes them as "
            "they are, results.dir=FOLDER starts a new folder"
        )
    if other:
        tell(f"warning: {counted} are of other code and kept: with new rows, means are over two versions of the code")
    if unknown := len(mine) - len(other):
        tell(
            f"{plural(unknown, 'row')} of {results.path} do not say which code made them and are kept; --stale=rerun "
            "makes them again"
        )
    return recorded


def is_known(code: str | None) -> bool:
    """Whether a row says which code made it: not if an earlier kvbench wrote it, or the sources could not be read."""
    return code not in (None, NO_SOURCE)


def _made_by(rows: Sequence[Row], cells: dict[str, Cell], results: ResultsFolder) -> str:
    """Which code made rows and which runs now, by hash, commit and the parts that differ."""
    codes = list(dict.fromkeys(row.code or "" for row in rows))
    first = rows[0]
    now = cells[first.cell].code
    differ = set[str]()
    for row in {(row.cell, row.code): row for row in rows}.values():
        before, parts = results.read_code(row.code or "") or {}, cells[row.cell].code.parts or {}
        differ |= {name for name in {*before, *parts} if before and before.get(name) != parts.get(name)}
    environment = results.read_environment(first.environment) if first.environment else None
    packages: dict[str, Any] = (environment or {}).get("packages") or {}
    theirs = _version(packages.get("kvbench"), (environment or {}).get("source") or {})
    ours = _version(__version__, source(Path(__file__).parents[1]))
    names = f"; {shortened(sorted(differ), 4)} differ" if differ else ""
    return f"were made by other code ({shortened(codes, 2)}, {theirs}) than runs now ({now.id}, {ours}{names})"


def _version(version: Any, checkout: dict[str, Any]) -> str:
    commit = checkout.get("commit")
    changed = " with changes" if checkout.get("dirty") else ""
    return f"kvbench {version or 'of unknown version'}" + (f" at {str(commit)[:9]}{changed}" if commit else "")
