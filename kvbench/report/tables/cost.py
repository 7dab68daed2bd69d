"""`kvbench report cost`: what the rows of a folder took: tokens read and written, seconds, device seconds, energy.

A prefill that cells share is counted once: its rows agree on the context and, to the last bit, on its seconds. Shared
eviction work (rankings, repetitions) counts for each cell, as in its rows. All tokens of a prompt count as read, those
of the question too, which every cell reads for itself. A row of a task that measures time stands for every sequence of
its batch, but not for warm-up repetitions.
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
    """Cost of the rows of one model, task and context length. Seconds are of the processes that made them."""

    model: str
    task: str
    context_length: int | None
    rows: int
    failed: int
    prefills: int
    prefill_tokens: int
    new_tokens: int
    prefill_seconds: float
    evict_seconds: float
    decode_seconds: float

    @property
    def seconds(self) -> float:
        """Prefill, eviction and decoding together."""
        return self.prefill_seconds + self.evict_seconds + self.decode_seconds


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
        return sum(row["batch"] * (row[column] or 0) for row in rows)

    return Cost(
        *key,
        rows=len(rows),
        failed=sum(row["error"] is not None for row in rows),
        prefills=sum(row["batch"] for row in prefills),
        prefill_tokens=total(prefills, "prompt_tokens"),
        new_tokens=total(rows, "new_tokens"),
        prefill_seconds=float(total(prefills, "prefill_seconds")),
        evict_seconds=float(total(rows, "evict_seconds")),
        decode_seconds=float(total(rows, "decode_seconds")),
    )


def report_of(source: Source, warn: Warn, where: Where | None = None) -> Report:
    """Return the report of a folder or a frame: for readers with the total and with what processes occupied.

    Processes are of the whole folder. Raises as `load_table`.
    """
    lines, folder = costs(source, warn, where), place_of(source)
    processes = read_processes(folder, warn) if folder is not None and folder.is_dir() else []
    joules = [process.joules for process in processes if process.joules is not None]
    seconds = sum(process.seconds * process.devices for process in processes)
    held = {"processes": len(processes), "device_seconds": seconds, "joules": sum(joules) if joules else None}
    records = [asdict(cost) | {"seconds": cost.seconds} for cost in lines]
    energy = "energy unknown" if not joules else f"{sum(joules):.4g} J as the devices report it"
    note = (
        f"held: {_seconds(seconds)} of devices by {len(processes)} processes, loading and waiting included; "
        f"if cells share a ranking, each counts its time in evict; {energy}"
    )
    tree = {"costs": records, "held": held}
    return Report(tables=(_table(lines),), notes=(note,), records=records, tree=tree)


def _table(lines: Sequence[Cost]) -> Table:
    heads = ["tokens", "rows", "failed", "prefills", "read", "written", "prefill", "evict", "decode"]
    if len(lines) > 1:
        sums = [sum(getattr(cost, field.name) for cost in lines) for field in fields(Cost)[3:]]
        lines = [*lines, Cost("all", "", None, *sums)]
    shown = []
    for cost in lines:
        counts = (cost.rows, cost.failed, cost.prefills, cost.prefill_tokens, cost.new_tokens)
        seconds = map(_seconds, (cost.prefill_seconds, cost.evict_seconds, cost.decode_seconds))
        length = "" if cost.context_length is None else str(cost.context_length)
        shown.append(TableRow.of((cost.model, cost.task), (length, *map(str, counts), *seconds)))
    return Table.of(("model", "task"), heads, shown)


def _seconds(seconds: float) -> str:
    if seconds < 120:
        return f"{seconds:.3g} s"
    return f"{seconds / 60:.3g} min" if seconds < 7200 else f"{seconds / 3600:.3g} h"
