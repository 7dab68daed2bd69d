"""`kvbench report cost`: what the rows of a folder took: tokens read and written, seconds, device seconds, energy.

A prefill that cells share is counted once: its rows agree on the context and, to the last bit, on its seconds. Shared
eviction work (rankings, repetitions) counts for each cell, as in its rows. All tokens of a prompt count as read, those
of the question too, which every cell reads for itself. A row of an efficiency task stands for every sequence of its
batch, but not for warm-up repetitions.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, TextIO

from kvbench.records import read_processes
from kvbench.report.output import check_format, text_to
from kvbench.report.rows import Warn, describer, load_table
from kvbench.report.selection import Where
from kvbench.report.tables.grid import Grid, plain_console, write_csv, write_json
from kvbench.support.text import printable

FORMATS = ("text", "markdown", "csv", "json")
_COLUMNS = (
    *("model", "task", "context_length", "prompt_tokens", "prompt_sha256", "context_sha256", "new_tokens"),
    *("prefill_seconds", "evict_seconds", "decode_seconds", "error"),
)


@dataclass(frozen=True)
class Cost:
    """What the rows of one model, task and context length took. Seconds are those of the processes that made them."""

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


def costs(results: Path, warn: Warn, where: Where | None = None) -> list[Cost]:
    """One cost per model, task and context length, in the order of their first rows. Raises as `load_table`."""
    describe = describer(results)
    batches: dict[str, int] = {}
    groups: dict[tuple[Any, ...], list[dict[str, Any]]] = {}
    for row in load_table(results, _COLUMNS, warn, where).to_pylist():
        cell = row["cell"]
        if cell not in batches:
            task: Mapping[str, Any] = (describe(cell) or {}).get("task", {})
            batches[cell] = task.get("batch") or 1
        row["batch"] = batches[cell]
        groups.setdefault((row["model"], row["task"], row["context_length"]), []).append(row)
    return [_cost(key, rows) for key, rows in groups.items()]


def _cost(key: tuple[Any, ...], rows: Sequence[Mapping[str, Any]]) -> Cost:
    shared: dict[tuple[Any, ...], Mapping[str, Any]] = {}
    for row in rows:
        if row["prefill_seconds"] is not None:
            shared.setdefault((row["context_sha256"], row["prefill_seconds"]), row)

    def total(rows: Iterable[Mapping[str, Any]], column: str) -> Any:
        return sum(row["batch"] * (row[column] or 0) for row in rows)

    return Cost(
        *key,
        rows=len(rows),
        failed=sum(row["error"] is not None for row in rows),
        prefills=sum(row["batch"] for row in shared.values()),
        prefill_tokens=total(shared.values(), "prompt_tokens"),
        new_tokens=total(rows, "new_tokens"),
        prefill_seconds=float(total(shared.values(), "prefill_seconds")),
        evict_seconds=float(total(rows, "evict_seconds")),
        decode_seconds=float(total(rows, "decode_seconds")),
    )


def print_cost(folder: Path, format: str, out: TextIO | Path, warn: Warn, where: Where | None = None) -> None:
    """Write the table. ``text`` and ``markdown`` end with the total and with what processes occupied."""
    check_format(format, FORMATS)
    lines, processes = costs(folder, warn, where), read_processes(folder) if folder.is_dir() else []
    joules = [process.joules for process in processes if process.joules is not None]
    device_seconds = sum(process.seconds * process.devices for process in processes)
    held = {"processes": len(processes), "device_seconds": device_seconds, "joules": sum(joules) if joules else None}
    items = [asdict(cost) | {"seconds": cost.seconds} for cost in lines]
    with text_to(out) as stream:
        if format == "csv":
            write_csv(list(items[0]), items, stream)
        elif format == "json":
            write_json({"costs": items, "held": held}, stream)
        elif format == "markdown":
            stream.write("\n".join([*_grid(lines).markdown(), "", _footer(held)]) + "\n")
        else:
            console = plain_console(stream)
            _grid(lines).print(console)
            console.print(f"\n{_footer(held)}")


def _grid(lines: Sequence[Cost]) -> Grid:
    heads = ["model", "task", "tokens", "rows", "failed", "prefills", "read", "written", "prefill", "evict", "decode"]
    if len(lines) > 1:
        sums = [sum(getattr(cost, field.name) for cost in lines) for field in fields(Cost)[3:]]
        lines = [*lines, Cost("all", "", None, *sums)]
    texts = []
    for cost in lines:
        counts = (cost.rows, cost.failed, cost.prefills, cost.prefill_tokens, cost.new_tokens)
        seconds = map(_seconds, (cost.prefill_seconds, cost.evict_seconds, cost.decode_seconds))
        length = "" if cost.context_length is None else str(cost.context_length)
        texts.append([printable(cost.model), printable(cost.task), length, *map(str, counts), *seconds])
    return Grid(heads, texts, "ll" + "r" * (len(heads) - 2))


def _footer(held: Mapping[str, Any]) -> str:
    """What all processes of the folder occupied."""
    energy = "energy unknown" if held["joules"] is None else f"{held['joules']:.4g} J as the devices report it"
    return (
        f"held: {_seconds(held['device_seconds'])} of devices by {held['processes']} processes, loading and waiting "
        f"included; if cells share a ranking, each counts its time in evict; {energy}"
    )


def _seconds(seconds: float) -> str:
    if seconds < 120:
        return f"{seconds:.3g} s"
    return f"{seconds / 60:.3g} min" if seconds < 7200 else f"{seconds / 3600:.3g} h"
