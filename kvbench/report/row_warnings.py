"""Warnings of the rows that a report reads: altered data files, several versions of the code, missing rows."""

from collections import Counter
from collections.abc import Callable, Mapping

import pyarrow as pa

from kvbench.records import NO_SOURCE, ResultsFolder
from kvbench.records.lines import MISSING, Warn, listed
from kvbench.records.rows import Describe, within
from kvbench.support.errors import UserError
from kvbench.support.quantity import count_noun, shortened

ReadCode = Callable[[str], Mapping[str, str] | None]
"""The hashes of the parts of some code by its name, or None if they were not kept."""
_LISTED = 3


def tell_altered(source: str, rows: pa.Table, describe: Describe, warn: Warn) -> None:
    """Warn of cells that read files which differ from kvbench's lock, as their descriptions say."""
    files: dict[str, None] = {}
    cells = 0
    for cell in rows["cell"].unique().to_pylist():
        task = (describe(cell) or {}).get("task")
        named = task.get("data_altered") if isinstance(task, dict) else None
        if isinstance(named, list) and named:
            cells += 1
            files |= dict.fromkeys(map(str, named))
    if cells:
        warn(
            f"{source}: {count_noun(cells, 'cell')} read files that differ from what was locked or pulled "
            f"(data.verify=false): {shortened(list(files), _LISTED)}"
        )


def versions(rows: pa.Table, read_code: ReadCode) -> dict[str, Counter[str]]:
    """Return how many rows each version of each part of the code made, by the name of the part and its hash.

    Where the parts of some code are not known, it counts as a part of its cell. Rows of unknown code are left out.
    """
    parts: dict[str, Counter[str]] = {}
    for cell, code, count in _counted(rows):
        if code is not None:
            for name, version in (read_code(code) or {f"the code of cell {cell}": code}).items():
                parts.setdefault(name, Counter())[version[:12]] += count
    return parts


def tell_codes(source: str, rows: pa.Table, read_code: ReadCode, warn: Warn) -> None:
    """Warn of rows of several versions of the code, of means over them, and of rows that do not say which made them."""
    counted = _counted(rows)
    unknown = sum(count for _, code, count in counted if code is None)
    if unknown:
        which = f"{unknown} of {count_noun(rows.num_rows, 'row')} do" if unknown < rows.num_rows else "its rows do"
        warn(f"{source}: {which} not say which code made them")
    differ = {name: by_code for name, by_code in versions(rows, read_code).items() if len(by_code) > 1}
    if not differ:
        return
    texts = []
    for name, by_code in sorted(differ.items()):
        counts = [f"{version}: {count_noun(count, 'row')}" for version, count in by_code.most_common()]
        texts.append(f"{name} ({', '.join(counts)})")
    codes_of = Counter(cell for cell, code, _ in counted if code is not None)
    mixed = [(cell, code) for cell, code, _ in counted if code is not None and codes_of[cell] > 1]
    means = ""
    if mixed:
        means = (
            f"; the means of {count_noun(len({cell for cell, _ in mixed}), 'cell')} are over several: choose one with "
            f"code=, of {shortened(list(dict.fromkeys(code for _, code in mixed)), _LISTED)}, or make rows again with "
            "kvbench run --stale=rerun"
        )
    warn(f"{source}: rows of several versions of the code: {shortened(texts, _LISTED)}{means}")


def _counted(rows: pa.Table) -> list[tuple[str, str | None, int]]:
    """Cell, code (None: unknown) and number of rows."""
    groups = rows.select(["cell", "code"]).group_by(["cell", "code"], use_threads=False).aggregate([([], "count_all")])
    codes = (None if code == NO_SOURCE else code for code in groups["code"].to_pylist())
    return list(zip(groups["cell"].to_pylist(), codes, groups["count_all"].to_pylist(), strict=True))


def count_missing(requested: Mapping[str, int], rows: pa.Table) -> int:
    """Return how many rows of the samples requested of each cell are not among `rows`, each (cell, sample) once."""
    return sum(requested.values()) - within(rows, requested).num_rows


def tell_missing(folder: ResultsFolder, rows: pa.Table, is_selection: bool, warn: Warn) -> None:
    """Warn of rows that commands asked for, and of rows files that were finished, and are not there.

    Of a selection only the cells count of which it has rows: what a lost row was is not known otherwise.
    """
    try:
        requested = folder.read_requested()
    except UserError as error:  # the next run of that command writes it again
        warn(str(error))
        requested = {}
    if is_selection:
        requested = {cell: requested[cell] for cell in rows["cell"].unique().to_pylist() if cell in requested}
    num_missing = count_missing(requested, rows)
    finished = listed(folder.path / "finished", ".json")
    lost = [path.stem for path in finished if not (folder.rows / f"{path.stem}.jsonl").exists()]
    if num_missing or lost:
        files = f", and {count_noun(len(lost), 'file')} of rows: {shortened(lost, _LISTED)}" if lost else ""
        total = f"{num_missing} of {sum(requested.values())} rows {MISSING}" if num_missing else f"rows {MISSING}"
        warn(
            f"{folder.path}: {total}{files}; kvbench status counts them, --partial reports without this line, "
            "kvbench cancel --requests withdraws them"
        )
