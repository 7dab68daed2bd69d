"""`kvbench report cost`: what the rows of a folder took: tokens read and written, seconds, device seconds, energy.

A prefill that cells share is counted once: its rows agree on the prompt and, to the last bit, on how long it took. What
they share of cutting, rankings and repetitions, counts for each of them, as in their rows. All tokens of a prompt count
as read, those of a question too, which every cell reads for itself. Rows of an efficiency task stand for every sequence
of their batch, but not for repetitions that only warmed up.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, TextIO

from rich.console import Console

from kvbench.records import Process, read_processes
from kvbench.report.output import check_format, text_to
from kvbench.report.rows import Warn, describer, load_table
from kvbench.report.selection import Where
from kvbench.report.tables.grid import aligned, escaped, markdown_line, write_csv
from kvbench.support.printable import printable

FORMATS = ("text", "markdown", "csv", "json")
_NEEDED = (
    *("model", "task", "context_length", "prompt_tokens", "prompt_sha256", "context_sha256", "new_tokens"),
    *("prefill_seconds", "evict_seconds", "decode_seconds", "error"),
)


@dataclass(frozen=True)
class Cost:
    """What the rows of one model, task and context length took. Seconds are of this process's part of a machine."""

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
        """Reading, cutting and decoding together."""
        return self.prefill_seconds + self.evict_seconds + self.decode_seconds


@dataclass(frozen=True)
class Held:
    """What processes held, waiting and loading included. joules: None where no device told."""

    processes: int
    device_seconds: float
    joules: float | None

    @classmethod
    def by(cls, processes: Sequence[Process]) -> "Held":
        """Of all processes of a folder, whatever rows they made."""
        told = [one.joules for one in processes if one.joules is not None]
        seconds = sum(one.seconds * one.devices for one in processes)
        return cls(len(processes), seconds, sum(told) if told else None)


def costs(results: Path, warn: Warn, where: Where | None = None) -> list[Cost]:
    """A cost for each model, task and context length, in the order of their first rows. Raises as `load_table`."""
    describe = describer(results)
    batches: dict[str, int] = {}
    groups: dict[tuple[Any, ...], list[dict[str, Any]]] = {}
    for row in load_table(results, _NEEDED, warn, where).to_pylist():
        cell = row["cell"]
        if cell not in batches:
            task: Mapping[str, Any] = (describe(cell) or {}).get("task", {})
            batches[cell] = task.get("batch") or 1
        row["batch"] = batches[cell]
        groups.setdefault((row["model"], row["task"], row["context_length"]), []).append(row)
    return [_cost(key, rows) for key, rows in groups.items()]


def _cost(key: tuple[Any, ...], rows: Sequence[Mapping[str, Any]]) -> Cost:
    read: dict[tuple[Any, ...], Mapping[str, Any]] = {}
    for row in rows:
        if row["prefill_seconds"] is not None:
            read.setdefault((row["context_sha256"], row["prefill_seconds"]), row)

    def total(rows: Sequence[Mapping[str, Any]], column: str) -> Any:
        return sum(row["batch"] * (row[column] or 0) for row in rows)

    prefills = list(read.values())
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


def print_cost(folder: Path, format: str, out: TextIO | Path, warn: Warn, where: Where | None = None) -> None:
    """Write the table. ``text`` and ``markdown`` end with the whole and with what processes held; ``csv`` and ``json``
    are one line a model, task and context length.

    Raises ValueError for an unknown format and as `costs` does.
    """
    check_format(format, FORMATS)
    found, held = costs(folder, warn, where), Held.by(read_processes(folder) if folder.is_dir() else [])
    names = [field.name for field in fields(Cost)]
    with text_to(out) as stream:
        if format == "csv":
            write_csv([*names, "seconds"], found, stream)
            return
        if format == "json":
            lines = [asdict(one) | {"seconds": one.seconds} for one in found]
            json.dump({"costs": lines, "held": asdict(held)}, stream, indent=1, allow_nan=False)
            stream.write("\n")
            return
        _print(found, held, format, stream)


def _print(found: Sequence[Cost], held: Held, format: str, out: TextIO) -> None:
    heads = ["model", "task", "tokens", "rows", "failed", "prefills", "read", "written", "prefill", "evict", "decode"]
    grid = [heads, *(_line(one) for one in found)]
    if len(found) > 1:
        sums = [sum(getattr(one, field.name) for one in found) for field in fields(Cost)[3:]]
        grid.append(_line(Cost("all", "", None, *sums)))
    said = (
        f"held: {_seconds(held.device_seconds)} of devices by {held.processes} processes, loading and waiting included"
    )
    said += "; rankings that cells share count in evict for each"
    said += "; energy unknown" if held.joules is None else f"; {held.joules:.4g} J by the devices' own count"
    if format == "markdown":
        rule = [":--", ":--", *("--:" for _ in heads[2:])]
        out.write("\n".join(markdown_line([escaped(one) for one in line]) for line in (grid[0], rule, *grid[1:])))
        out.write(f"\n\n{said}\n")
        return
    console = Console(file=out, highlight=False, markup=False, emoji=False, soft_wrap=True)
    for number, line in enumerate(aligned(grid, 2)):
        console.print(line, style=None if number else "bold")
    console.print(f"\n{said}")


def _line(one: Cost) -> list[str]:
    counts = (one.rows, one.failed, one.prefills, one.prefill_tokens, one.new_tokens)
    seconds = (one.prefill_seconds, one.evict_seconds, one.decode_seconds)
    length = "" if one.context_length is None else str(one.context_length)
    return [printable(one.model), printable(one.task), length, *map(str, counts), *map(_seconds, seconds)]


def _seconds(seconds: float) -> str:
    if seconds < 120:
        return f"{seconds:.3g} s"
    return f"{seconds / 60:.3g} min" if seconds < 7200 else f"{seconds / 3600:.3g} h"
