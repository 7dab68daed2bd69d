"""`kvbench report efficiency`: seconds, bytes and what the device could have done, a line a timed cell.

Reading what an efficiency task leaves beside its rows (`timings/*.jsonl`): a cell's repetitions as one summary.

What the full cache would hold in a quantised cache of transformers: the budget that holds as many bytes.

QuantizedCache with the backend quanto (optimum-quanto 0.2.7, `optimum/quanto/tensor/optimizers/affine_optimizer.py`)
packs numbers of 2 or 4 bits and keeps a scale and a shift in the model's precision for each group of 64. Up to 128
tokens are kept as they are besides; they are left out here. `store=int4` and `store=int2` hold, and time, the same.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any, TextIO

import numpy as np
from rich.console import Console
from rich.text import Text

from kvbench.records import ResultsFolder, Timing, read_rows
from kvbench.records.lines import read_lines
from kvbench.records.sidecars import TIMINGS
from kvbench.report.output import check_format, text_to
from kvbench.report.rows import Warn, describer, load_table
from kvbench.report.selection import NothingSelected, Where
from kvbench.report.tables.grid import aligned, escaped, markdown_line, write_csv
from kvbench.report.tables.summary import budget_key
from kvbench.support.errors import MissingFile
from kvbench.support.printable import printable
from kvbench.support.quantity import duration, size

ASKED = ("model", "context_length", "policy", "score", "budget", "layout", "schedule")
STEP = "step_seconds"


@dataclass(frozen=True)
class Spread:
    """The median of some numbers and their quartiles; n says of how many."""

    median: float
    low: float
    high: float
    n: int

    @classmethod
    def of(cls, numbers: Sequence[float]) -> "Spread":
        """Quartiles as numpy interpolates them."""
        low, middle, high = np.percentile(numbers, (25, 50, 75))
        return cls(float(middle), float(low), float(high), len(numbers))


@dataclass(frozen=True)
class Timed:
    """A cell. asked: its columns of ``ASKED``; quantities: by name over its repetitions, ``step_seconds`` over the
    steps of all of them; error: why it has none.
    """

    cell: str
    asked: Mapping[str, Any]
    batch: int
    new_tokens: int
    quantities: Mapping[str, Spread]
    error: str | None = None

    def median(self, name: str) -> float | None:
        """The median of a quantity, None where there is none."""
        found = self.quantities.get(name)
        return None if found is None else found.median

    @property
    def tokens_per_second(self) -> float | None:
        """New tokens of all sequences in a second of steps."""
        step = self.median(STEP)
        return None if not step else self.batch / step

    def reached(self, seconds: str, flops: str | None, moved: str) -> float | None:
        """The least time that the device could take for a part, over the time that it took; None where not known.

        The roofline: the longer of its operations and its bytes at the speeds that were measured beside it.
        """
        took, least = self.median(seconds), self._least(flops, moved)
        return None if not took or least is None else max(least) / took

    def bound(self, flops: str | None, moved: str) -> str | None:
        """Which of the two would hold the device up: "flops" or "bytes"."""
        least = self._least(flops, moved)
        return None if least is None else ("flops" if least[0] > least[1] else "bytes")

    def _least(self, flops: str | None, moved: str) -> tuple[float, float] | None:
        names = (flops or moved, moved, "device_flops_per_second", "device_copy_bytes_per_second")
        work, traffic, multiplies, copies = (self.median(name) for name in names)
        if work is None or traffic is None or not multiplies or not copies:
            return None
        return (0.0 if flops is None else work / multiplies), traffic / copies


def timed_cells(results: Path, warn: Warn, where: Where | None = None) -> list[Timed]:
    """The timed cells of a folder, by model, batch, context length, policy, score and budget.

    Raises FileNotFoundError where there are no rows or none was timed, NothingSelected where none is selected,
    ValueError naming file and line for a broken one.
    """
    files = sorted((results / TIMINGS).glob("*.jsonl")) if results.is_dir() else []
    table = load_table(results, (*ASKED, "metric"), warn, where)
    found: dict[str, dict[int, Timing]] = {}
    for file in files:
        for timing in read_lines(file, Timing.from_json, "a timing", warn):
            found.setdefault(timing.cell, {})[timing.sample] = timing
    rows = [row for row in table.to_pylist() if row["metric"] == "seconds_per_token"]
    if not rows:
        if not files:
            raise MissingFile(f"{str(results)!r} has no {TIMINGS}/*.jsonl: kvbench run task=efficiency leaves them")
        raise NothingSelected("no selected row was timed: kvbench run task=efficiency times")
    describe, cells = describer(results), {row["cell"]: row for row in rows}
    errors = {row["cell"]: row["error"] for row in rows if row["error"]}
    timed = []
    for cell, row in cells.items():
        task: Mapping[str, Any] = (describe(cell) or {}).get("task", {})
        repeats = list(found.get(cell, {}).values())
        names = dict.fromkeys(name for one in repeats for name in one.quantities)
        quantities = {
            name: Spread.of([one.quantities[name] for one in repeats if name in one.quantities]) for name in names
        }
        if steps := [step for one in repeats for step in one.steps]:
            quantities[STEP] = Spread.of(steps)
        asked = {name: row[name] for name in ASKED}
        error = errors.get(cell) if not repeats else None
        timed.append(Timed(cell, asked, task.get("batch", 1), task.get("new_tokens", 0), quantities, error))
    return sorted(timed, key=_order)


def _order(one: Timed) -> tuple[Any, ...]:
    asked = one.asked
    policy = (asked["policy"] != "full", asked["policy"], asked["score"] or "")
    places = (asked["model"], one.batch, asked["context_length"] or 0, *policy)
    return (*places, *budget_key(asked["budget"]), asked["schedule"] or "", one.cell)


GROUP = 64
BITS = (4, 2)
BYTES: Mapping[str, int] = {"float32": 4, "bfloat16": 2, "float16": 2}


def share_of_full(bits: int, bytes_each: int, group: int = GROUP) -> float:
    """Bytes of a quantised number, its part of scale and shift included, over those of a number that is not."""
    return (bits / 8 + 2 * bytes_each / group) / bytes_each


def quantized_note(dtype: str | None) -> str:
    """A line for people, or nothing where the precision is not known."""
    if dtype is None or dtype not in BYTES:
        return ""
    shares = " and ".join(f"{100 * share_of_full(bits, BYTES[dtype]):.3g} % in {bits} bits" for bits in BITS)
    return f"equal bytes: of a full cache in {dtype}, transformers' QuantizedCache (quanto) holds {shares}"


FORMATS = ("text", "markdown", "csv", "json")
NOTE = (
    "median [quartiles] over repetitions, a step over all of their steps; first token: reading, scoring and cut of the "
    "whole batch; at: the least time that the device needs for the bytes or the operations, whichever is more, at the "
    "speeds measured beside it, over the time taken"
)
LABELS = ("policy", "score", "budget", "layout", "schedule")


def print_efficiency(folder: Path, format: str, out: TextIO | Path, warn: Warn, where: Where | None = None) -> None:
    """Write the table. ``text``, ``markdown``: a block a model, batch and context length; ``csv``, ``json``: a line a
    cell, every quantity with its quartiles.

    Raises ValueError for an unknown format and as `kvbench.report.tables.efficiency.timed_cells` does.
    """
    check_format(format, FORMATS)
    cells = timed_cells(folder, warn, where)
    with text_to(out) as stream:
        if format == "json":
            json.dump([_flat(cell) for cell in cells], stream, indent=1, allow_nan=False)
            stream.write("\n")
        elif format == "csv":
            flat = [_flat(cell) for cell in cells]
            columns = list(dict.fromkeys(name for one in flat for name in one))
            write_csv(columns, flat, stream)
        else:
            _blocks(cells, format, stream, _where_made(folder, cells, warn))


def _flat(cell: Timed) -> dict[str, Any]:
    """All that is known of a cell by column; ``<quantity>``, ``<quantity>_q1`` and ``<quantity>_q3``."""
    found: dict[str, Any] = {"cell": cell.cell, **cell.asked, "batch": cell.batch, "new_tokens": cell.new_tokens}
    for name, spread in cell.quantities.items():
        found |= {name: spread.median, f"{name}_q1": spread.low, f"{name}_q3": spread.high}
    found["tokens_per_second"] = cell.tokens_per_second
    for part, names in ROOFS.items():
        found[f"{part}_of_roofline"] = cell.reached(*names)
    return found | {"error": cell.error}


ROOFS: Mapping[str, tuple[str, str | None, str]] = {
    "prefill": ("prefill_seconds", "prefill_flops", "prefill_moved_bytes"),
    "score": ("score_seconds", None, "score_moved_bytes"),
    "step": (STEP, "step_flops", "step_moved_bytes"),
}
"""By part: what it took, its operations and its bytes."""


def _blocks(cells: Sequence[Timed], format: str, out: TextIO, made: str) -> None:
    def key(cell: Timed) -> tuple[Any, ...]:
        return cell.asked["model"], cell.batch, cell.asked["context_length"]

    console = Console(file=out, highlight=False, markup=False, emoji=False, soft_wrap=True)
    for place, ((model, batch, tokens), members) in enumerate(groupby(cells, key)):
        block = list(members)
        title = f"model {printable(model)}, {tokens} tokens, batch {batch}, {block[0].new_tokens} new tokens"
        grid, left = _grid(block)
        if format == "markdown":
            rule = [":--"] * left + ["--:"] * (len(grid[0]) - left)
            lines = [f"**{escaped(title)}**", ""]
            lines += [markdown_line([escaped(one) for one in line]) for line in (grid[0], rule, *grid[1:])]
            out.write(("\n" if place else "") + "\n".join(lines) + "\n")
        else:
            console.print(Text(("\n" if place else "") + title, style="bold"))
            for number, line in enumerate(aligned(grid, left)):
                console.print(Text(line, style="" if number else "bold"))
        for error in dict.fromkeys(cell.error for cell in block if cell.error):
            names = ", ".join(
                " ".join(filter(None, _labels(cell, LABELS[:3]))) for cell in block if cell.error == error
            )
            out.write(f"\n{printable(names)}: {escaped(error) if format == 'markdown' else printable(error)}\n")
    out.write(f"\n{NOTE}\n{made}")


def _grid(block: Sequence[Timed]) -> tuple[list[list[str]], int]:
    """Heads and lines, and how many columns are labels; columns that say nothing are left out."""
    names = [name for name in LABELS if name in LABELS[:3] or len({cell.asked[name] for cell in block}) > 1]
    heads = [*names, *(head for head, _ in FIGURES)]
    lines = [[*_labels(cell, names), *(show(cell) for _, show in FIGURES)] for cell in block]
    used = [place for place in range(len(heads)) if place < len(names) or any(line[place] for line in lines)]
    return [[line[place] for place in used] for line in (heads, *lines)], len(names)


def _labels(cell: Timed, names: Sequence[str]) -> list[str]:
    full = cell.asked["policy"] == "full"
    asked = (None if full and name == "budget" else cell.asked[name] for name in names)
    return ["" if value is None else printable(str(value)) for value in asked]


def _seconds(name: str, spread: bool = False) -> Callable[[Timed], str]:
    def show(cell: Timed) -> str:
        found = cell.quantities.get(name)
        if found is None or not found.median:
            return ""
        return _spread(found) if spread else duration([found.median])

    return show


def _spread(found: Spread) -> str:
    """Median and quartiles in one unit: "4.1 [4.0, 4.6] ms"."""
    factor, unit = (1e3, "ms") if found.high < 0.9995 else (1.0, "s")
    middle, low, high = (f"{factor * one:.3g}" for one in (found.median, found.low, found.high))
    return f"{middle} [{low}, {high}] {unit}"


def _bytes(name: str) -> Callable[[Timed], str]:
    return lambda cell: "" if (found := cell.median(name)) is None else size([found])


def _roof(part: str) -> Callable[[Timed], str]:
    def show(cell: Timed) -> str:
        reached, bound = cell.reached(*ROOFS[part]), cell.bound(*ROOFS[part][1:])
        return "" if reached is None else f"{100 * reached:.2g} % {bound}"

    return show


def _rate(cell: Timed) -> str:
    return "" if cell.tokens_per_second is None else f"{cell.tokens_per_second:.4g}"


FIGURES: tuple[tuple[str, Callable[[Timed], str]], ...] = (
    ("prefill", _seconds("prefill_seconds")),
    ("scoring", _seconds("score_seconds")),
    ("cut", _seconds("cut_seconds")),
    ("first token", _seconds("first_token_seconds", spread=True)),
    ("step", _seconds(STEP, spread=True)),
    ("tokens/s", _rate),
    ("held", _bytes("held_bytes")),
    ("decoding in", _bytes("decode_bytes")),
    ("peak reading", _bytes("prefill_peak_bytes")),
    ("peak decoding", _bytes("decode_peak_bytes")),
    ("prefill at", _roof("prefill")),
    ("scoring at", _roof("score")),
    ("step at", _roof("step")),
    ("joules", lambda cell: "" if (found := cell.median("joules")) is None else f"{found:.3g}"),
)


def _where_made(folder: Path, cells: Sequence[Timed], warn: Warn) -> str:
    """The devices, what they can do, and how busy the machine was."""
    wanted = {cell.cell for cell in cells}
    names: dict[str, None] = {}
    dtypes: dict[str | None, None] = {}
    for environment in dict.fromkeys(
        row.environment for row in read_rows(folder, warn=lambda text: None) if row.cell in wanted
    ):
        told = (environment and ResultsFolder(folder).read_environment(environment)) or {}
        device = told.get("device")
        dtypes[device.get("dtype") if isinstance(device, Mapping) else None] = None
        name = device.get("name") if isinstance(device, Mapping) else device
        names[f"{name}, {device.get('dtype')}" if isinstance(device, Mapping) else str(name)] = None
    copies, multiplies, loads = (
        [value for cell in cells if (value := cell.median(name)) is not None]
        for name in ("device_copy_bytes_per_second", "device_flops_per_second", "load")
    )
    said = "; ".join(names)
    if copies and multiplies:
        said += f": copies {_range(copies, 1e9)} GB/s, multiplies {_range(multiplies, 1e12)} TFLOP/s"
    if loads:
        said += f"; load of the machine {_range(loads, 1)}"
    notes = dict.fromkeys(note for dtype in dtypes if (note := quantized_note(dtype)))
    return "".join(f"{printable(line)}\n" for line in (said, *notes))


def _range(numbers: Sequence[float], unit: float) -> str:
    low, high = (f"{number / unit:.3g}" for number in (min(numbers), max(numbers)))
    return low if low == high else f"{low}-{high}"
