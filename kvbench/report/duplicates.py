"""Each (cell, sample) once: what counts where a sample was recorded several times."""

from collections.abc import Callable, Sequence

import duckdb
import numpy as np
import pyarrow as pa

from kvbench.records import Row
from kvbench.report.reading import Warn
from kvbench.support.errors import UserError

Fetch = Callable[[Sequence[tuple[str, int]]], Sequence[Row]]


def once(rows: pa.Table, fetch: Fetch, warn: Warn) -> pa.Table:
    """Drop rows that say nothing new, and tell ``warn`` how many.

    Identical rows (all but seconds and environment) count once. A failed sample that was run again counts as run again;
    one that failed every time, as it failed last. ``fetch`` gives the rows at (file, line).

    Raises ValueError naming both places where two rows of one sample have different outcomes.
    """
    index = pa.array(np.arange(rows.num_rows))
    keyed = rows.select(["cell", "sample", "file", "line", "error"]).append_column("index", index)
    with duckdb.connect() as connection:
        connection.execute("SET enable_progress_bar = false")  # it goes to stdout
        connection.register("keyed", keyed)
        found = connection.execute(
            """SELECT cell, sample, list(struct_pack(file, line, index, failed := error IS NOT NULL) ORDER BY index)
            FROM keyed SEMI JOIN (FROM keyed SELECT cell, sample GROUP BY ALL HAVING count(*) > 1) USING (cell, sample)
            GROUP BY cell, sample ORDER BY min(index)"""
        ).fetchall()
    if not found:
        return rows
    drop: list[int] = []
    identical = retried = 0
    for cell, sample, places in found:
        good = [place for place in places if not place["failed"]]
        if len(good) > 1:
            _check_identical(cell, sample, [(place["file"], place["line"]) for place in good], fetch)
            identical += len(good) - 1
        retried += len(places) - max(len(good), 1)
        stays = good[0] if good else places[-1]
        drop += [place["index"] for place in places if place is not stays]
    if identical:
        warn(f"{_rows(identical)} recorded again with the same outcome; each sample counts once")
    if retried:
        warn(f"{_rows(retried)} with an error that a later try replaces; each sample counts once")
    stay = np.ones(rows.num_rows, bool)
    stay[drop] = False
    return rows.filter(pa.array(stay))


def _check_identical(cell: str, sample: int, places: Sequence[tuple[str, int]], fetch: Fetch) -> None:
    first, *others = (row.outcome() for row in fetch(places))
    for place, other in zip(places[1:], others, strict=True):
        if differ := [name for name in first if first[name] != other[name]]:
            one, two = (f"{file}:{line}" for file, line in (places[0], place))
            raise UserError(
                f"cell {cell}, sample {sample} has two outcomes: {one} and {two} differ in {', '.join(differ)}; "
                "remove the one that should not count, or move its file away"
            )


def _rows(count: int) -> str:
    return f"{count} row{'s' * (count != 1)}"
