"""`kvbench report cost`: what the rows of a folder took: tokens read and written, seconds, device seconds, energy.

A prefill that cells share is counted once: its rows agree on the context and, to the last bit, on its seconds. Shared
eviction work (rankings, repetitions) counts for each cell, as in its rows. All tokens of a prompt count as read, those
of the question too, which every cell reads for itself. A row of a task that measures time stands for every sequence of
its batch, but not for warm-up repetitions. What no row says (packed rows have no seconds) is unknown: blank, not 0.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from functools import cache
from typing import Any

from kvbench.records import read_processes
from kvbench.records.lines import Warn
from kvbench.report.formats.table import Report, Table, TableRow
from kvbench.report.frames import Source, place_of
from kvbench.report.rows import describer, load_table
from kvbench.report.selection import Where, task_settings
from kvbench.support.grouped import grouped

_GROUP = ("model", "task", "context_length")
_COLUMNS = (
    *(*_GROUP, "prompt_tokens", "prompt_sha256", "context_sha256", "new_tokens"),
    *("prefill_seconds", "evict_seconds", "decode_seconds", "error"),
)


@dataclass(frozen=True)
class Cost:
    """Cost of the rows of one model, task and context length. Seconds are of the processes that made them.

    What is counted over prefills or seconds is None where no row has seconds.
    """

    model: str
    task: str
    context_length: int | None
    rows: int
    failed: int
    prefills: int | None
    prefill_tokens: int | None
    new_tokens: int | None
    prefill_seconds: float | None
    evict_seconds: float | None
    decode_seconds: float | None

    @property
    def seconds(self) -> float | None:
        """Prefill, eviction and decoding together, as far as they are known."""
        return _sum((self.prefill_seconds, self.evict_seconds, self.decode_seconds))


def costs(source: Source, warn: Warn, where: Where | None = None) -> list[Cost]:
    """Return one cost per model, task and context length, in the order of their first rows. Raises as `load_table`."""
    describe = describer(source)
    batch_of = cache(lambda cell: task_settings(describe(cell)).get("batch") or 1)
    rows = [row | {"batch": batch_of(row["cell"])} for row in load_table(source, _COLUMNS, warn, where).to_pylist()]
    groups = grouped(rows, lambda row: tuple(row[name] for name in _GROUP))
    return [_cost(key, members) for key, members in groups.items()]


def _cost(key: tuple[Any, ...], rows: Sequence[Mapping[str, Any]]) -> Cost:
    timed = [row for row in rows if row["prefill_seconds"] is not None]
    shared = grouped(timed, lambda row: (row["context_sha256"], row["prefill_seconds"]))
    prefills = [members[0] for members in shared.values()]

    def total(rows: Iterable[Mapping[str, Any]], column: str) -> Any:
        return _sum(None if row[column] is None else row["batch"] * row[column] for row in rows)

    return Cost(
        *key,
        rows=len(rows),
        failed=sum(row["error"] is not None for row in rows),
        prefills=sum(row["batch"] for row in prefills) or None,
        prefill_tokens=total(prefills, "prompt_tokens"),
        new_tokens=total(rows, "new_tokens"),
        prefill_seconds=total(prefills, "prefill_seconds"),
        evict_seconds=total(rows, "evict_seconds"),
        decode_seconds=total(rows, "decode_seconds"),
    )


def report_of(source: Source, warn: Warn, where: Where | None = None) -> Report:
    """Return the report of a folder or a frame: for readers with the total and with what processes occupied.

    Processes are of the whole folder. Raises as `load_table`.
    """
    lines, folder = costs(source, warn, where), place_of(source)
    processes = read_processes(folder, warn) if folder is not None and folder.is_dir() else []
    joules = _sum(process.joules for process in processes)
    seconds = _sum(process.seconds * process.devices for process in processes)
    totals = {"processes": len(processes), "device_seconds": seconds, "joules": joules}
    records = [asdict(cost) | {"seconds": cost.seconds} for cost in lines]
    energy = "energy unknown" if joules is None else f"{joules:.4g} J as the devices report it"
    devices = f"{_seconds(seconds)} of devices by {len(processes)} processes, loading and waiting included"
    notes = (
        f"held: {'unknown, as no process is recorded beside these rows' if seconds is None else devices}; "
        f"if cells share a ranking, each counts its time in evict; {energy}",
    )
    if any(cost.prefill_seconds is None for cost in lines):
        notes += ("blank: these rows have no seconds, from which prefills are told apart.",)
    tree = {"costs": records, "held": totals}
    return Report(tables=(_table(lines),), notes=notes, records=records, tree=tree)


def _table(lines: Sequence[Cost]) -> Table:
    heads = ["tokens", "rows", "failed", "prefills", "read", "written", "prefill", "evict", "decode"]
    if len(lines) > 1:
        sums = [_sum(getattr(cost, field.name) for cost in lines) for field in fields(Cost)[3:]]
        lines = [*lines, Cost("all", "", None, *sums)]
    shown = []
    for cost in lines:
        counts = (cost.rows, cost.failed, cost.prefills, cost.prefill_tokens, cost.new_tokens)
        seconds = map(_seconds, (cost.prefill_seconds, cost.evict_seconds, cost.decode_seconds))
        length = "" if cost.context_length is None else str(cost.context_length)
        texts = ("" if count is None else str(count) for count in counts)
        shown.append(TableRow.of((cost.model, cost.task), (length, *texts, *seconds)))
    return Table.of(("model", "task"), heads, shown)


def _sum(numbers: Iterable[Any]) -> Any:
    """Return the sum of the numbers that are known; None where none is."""
    known = [number for number in numbers if number is not None]
    return sum(known) if known else None


def _seconds(seconds: float | None) -> str:
    if seconds is None:
        return ""
    if seconds < 120:
        return f"{seconds:.3g} s"
    return f"{seconds / 60:.3g} min" if seconds < 7200 else f"{seconds / 3600:.3g} h"
