"""`kvbench report efficiency`: seconds, bytes and the share of the device's roofline, one line per timed cell.

An efficiency task leaves its measurements beside the rows (`timings/*.jsonl`). The repetitions of a cell are reported
as medians and quartiles.

The footer also says what a full cache would hold in a quantised cache of transformers, as a budget of equal bytes.
QuantizedCache with the backend quanto (optimum-quanto 0.2.7, `optimum/quanto/tensor/optimizers/affine_optimizer.py`)
packs numbers of 2 or 4 bits and keeps a scale and a shift in the model's precision for each group of 64. It keeps up to
128 more tokens unquantised, which are left out here. `store=int4` and `store=int2` hold, and time, the same.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from kvbench.records import ResultsFolder, Timing
from kvbench.records.lines import Warn
from kvbench.report.beside import check_lines, lines_beside
from kvbench.report.experiments import Experiments
from kvbench.report.formats.table import Report, Table, TableRow
from kvbench.report.frames import Source, place_of
from kvbench.report.rows import describer, load_table
from kvbench.report.selection import NothingSelected, Where, task_settings
from kvbench.report.tables.observation_note import windows
from kvbench.report.tables.summary import budget_key
from kvbench.support.grouped import grouped
from kvbench.support.quantity import duration, size

LABELS = ("policy", "score", "budget", "layout", "schedule")
COLUMNS = ("model", "context_length", *LABELS)
"""Columns of rows that name a timed cell."""
STEP = "step_seconds"
PRODUCTION = "production_seconds"
ROOFS: Mapping[str, tuple[str, str | None, str]] = {
    "prefill": ("prefill_seconds", "prefill_flops", "prefill_moved_bytes"),
    "score": ("score_seconds", None, "score_moved_bytes"),
    "step": (STEP, "step_flops", "step_moved_bytes"),
    "production": (PRODUCTION, "step_flops", "step_moved_bytes"),
}
"""For each phase: its seconds, its operations (None: not counted) and the bytes it moves."""
NOTE = (
    "median [quartiles] over repetitions; step: over all steps of all repetitions; first token: prefill, scoring "
    "and eviction of all sequences of the batch; at: share of the roofline (the best possible time at the bandwidth "
    "and FLOP/s measured here, divided by the time taken); floor: that best time of a step"
)
PRODUCTION_NOTE = (
    "in production: the step by a captured graph; of the full cache without one, by transformers' own cache and "
    "attention. gain only when restricted: share of the gain over the full cache in the method's own steps that the "
    "full cache makes up for in production"
)
GROUP = 64
BITS = (4, 2)
BYTES: Mapping[str, int] = {"float32": 4, "bfloat16": 2, "float16": 2}


class Spread(NamedTuple):
    """The median of ``n`` numbers and their quartiles."""

    median: float
    low: float
    high: float
    n: int


@dataclass(frozen=True)
class Timed:
    """A timed cell. ``columns``: of ``COLUMNS``, and ``setting``, what else tells it apart; ``quantities``: by
    name over its repetitions, ``step_seconds`` over the steps of all repetitions; ``error``: why it has none.
    """

    cell: str
    columns: Mapping[str, Any]
    batch: int
    new_tokens: int
    quantities: Mapping[str, Spread]
    error: str | None = None

    def median(self, name: str) -> float | None:
        """Return the median of a quantity, None if it was not measured."""
        spread = self.quantities.get(name)
        return None if spread is None else spread.median

    @property
    def tokens_per_second(self) -> float | None:
        """New tokens of all sequences per second of decoding steps."""
        step = self.median(STEP)
        return None if not step else self.batch / step

    def roofline(self, phase: str) -> tuple[float, str] | None:
        """Return the best possible time of a phase over the time taken, and what bounds it. None as of `floor`."""
        measured, floor = self.median(ROOFS[phase][0]), self.floor(phase)
        return None if not measured or floor is None else (floor[0] / measured, floor[1])

    def floor(self, phase: str) -> tuple[float, str] | None:
        """Return the best possible seconds of a phase, and what bounds it, "flops" or "bytes".

        The best time is the longer of operations and bytes at the speeds measured beside them. None if one of these
        numbers is missing.
        """
        _, flops, moved = ROOFS[phase]
        names = (flops or moved, moved, "device_flops_per_second", "device_copy_bytes_per_second")
        operations, traffic, flops_per_second, bytes_per_second = map(self.median, names)
        if operations is None or traffic is None or not flops_per_second or not bytes_per_second:
            return None
        compute = 0.0 if flops is None else operations / flops_per_second
        transfer = traffic / bytes_per_second
        return max(compute, transfer), "flops" if compute > transfer else "bytes"

    def restricted_share(self, full: "Timed") -> float | None:
        """Return the share of the gain over a full cache that is one over its restricted steps alone.

        With M the step of the method as a run does it, R a step of the full cache in the same way (both replayed, or
        both launched) and P its faster one: (R - P) / (R - M), at most 1. None without a gain (M >= R), or if one of
        them was not timed.
        """
        name = STEP if self.median(PRODUCTION) is None else PRODUCTION
        step, restricted = self.median(name), full.median(name)
        times = [seconds for seconds in map(full.median, (STEP, PRODUCTION)) if seconds is not None]
        if step is None or restricted is None or step >= restricted:
            return None
        return min(1.0, (restricted - min(times)) / (restricted - step))


def timed_cells(source: Source, warn: Warn, where: Where | None = None) -> list[Timed]:
    """Return the timed cells of a folder or a frame, by model, batch, context length, policy, score and budget.

    Raises FileNotFoundError if there are no rows or none was timed, NothingSelected if none is selected, ValueError
    naming file and line for a broken one.
    """
    rows = load_table(source, (*COLUMNS, "metric"), warn, where).to_pylist()
    rows = [row for row in rows if row["metric"] == "seconds_per_token"]
    if not rows:
        check_lines(source, Timing, "only kvbench run task=efficiency writes them")
        raise NothingSelected("no selected row was timed: only kvbench run task=efficiency measures time")
    timings = grouped(lines_beside(source, Timing, warn).values(), lambda timing: timing.cell)
    describe = describer(source)
    cells, by_cell = [], grouped(rows, lambda row: row["cell"])
    alike = {cell: tuple(members[-1][name] for name in COLUMNS) for cell, members in by_cell.items()}
    words = Experiments(("task.batch",), describe).told_apart(alike)
    for cell, members in by_cell.items():
        task, repeats = task_settings(describe(cell)), timings.get(cell, [])
        error = next((row["error"] for row in reversed(members) if row["error"]), None) if not repeats else None
        columns = dict(zip(COLUMNS, alike[cell], strict=True)) | {"setting": words[cell]}
        cells.append(Timed(cell, columns, task.get("batch", 1), task.get("new_tokens", 0), _spreads(repeats), error))

    def order(timed: Timed) -> tuple[Any, ...]:
        columns = timed.columns
        shape = (columns["model"], timed.batch, columns["context_length"] or 0)
        policy = (columns["policy"] != "full", columns["policy"], columns["score"] or "")
        return (*shape, *policy, *budget_key(columns["budget"]), columns["schedule"] or "", timed.cell)

    return sorted(cells, key=order)


def _spreads(repeats: Sequence[Timing]) -> dict[str, Spread]:
    """Median and quartiles of each quantity over the repetitions of a cell."""
    numbers: dict[str, list[float]] = {}
    for timing in repeats:
        for name, number in timing.quantities.items():
            numbers.setdefault(name, []).append(number)
    if steps := [step for timing in repeats for step in timing.steps]:
        numbers[STEP] = steps
    spreads = {}
    for name, values in numbers.items():
        low, middle, high = np.percentile(values, (25, 50, 75)).tolist()
        spreads[name] = Spread(middle, low, high, len(values))
    return spreads


def report_of(source: Source, warn: Warn, where: Where | None = None) -> Report:
    """Return the report of the timed cells of a folder or a frame. Raises as `timed_cells`."""
    cells = timed_cells(source, warn, where)
    blocks = grouped(cells, lambda cell: (cell.columns["model"], cell.batch, cell.columns["context_length"]))
    shared = windows(dict.fromkeys(cell.cell for cell in cells), describer(source))
    return Report(
        tables=tuple(map(_table, blocks.values())),
        notes=(*filter(None, [shared]), NOTE, *_production_note(cells), *_environment(source, cells)),
        records=[_record(cell, _full_of(cell, block)) for block in blocks.values() for cell in block],
    )


def _production_note(cells: Sequence[Timed]) -> list[str]:
    return [PRODUCTION_NOTE] if any(PRODUCTION in cell.quantities for cell in cells) else []


def _full_of(cell: Timed, block: Sequence[Timed]) -> Timed | None:
    """Return the full cache that a method of a block is compared with, where there is one of the same settings or only
    one.
    """
    full = [each for each in block if each.columns["policy"] == "full" and not each.error]
    alike = [each for each in full if each.columns["setting"] == cell.columns["setting"]] or full
    return alike[0] if len(alike) == 1 and alike[0] is not cell else None


def _record(cell: Timed, full: Timed | None) -> dict[str, Any]:
    """Everything about a cell by column; ``<quantity>``, ``<quantity>_q1`` and ``<quantity>_q3``."""
    line: dict[str, Any] = {"cell": cell.cell, **cell.columns, "batch": cell.batch, "new_tokens": cell.new_tokens}
    for name, spread in cell.quantities.items():
        line |= {name: spread.median, f"{name}_q1": spread.low, f"{name}_q3": spread.high}
    line["tokens_per_second"] = cell.tokens_per_second
    for phase in ROOFS:
        roofline = cell.roofline(phase)
        line[f"{phase}_of_roofline"] = None if roofline is None else roofline[0]
    floor = cell.floor("step")
    line["step_floor_seconds"] = None if floor is None else floor[0]
    line["restricted_share"] = None if full is None else cell.restricted_share(full)
    return line | {"error": cell.error}


def _table(block: Sequence[Timed]) -> Table:
    """Return the cells of one model, batch and context length.

    Columns that are empty or, for a label, always equal are left out.
    """
    first = block[0]
    size_text = f"{first.columns['context_length']} tokens, batch {first.batch}, {first.new_tokens} new tokens"
    names = [*LABELS[:3], *(n for n in (*LABELS[3:], "setting") if len({cell.columns[n] for cell in block}) > 1)]
    figures = [_figures(cell, _full_of(cell, block)) for cell in block]
    heads = [head for head in figures[0] if any(figure[head] for figure in figures)]
    texts = [[figure[head] for head in heads] for figure in figures]
    lines = [TableRow.of(_labels(cell, names), line) for cell, line in zip(block, texts, strict=True)]
    failed = grouped((cell for cell in block if cell.error), lambda cell: cell.error or "")
    errors = [
        f"{', '.join(' '.join(filter(None, _labels(cell, LABELS[:3]))) for cell in members)}: {error}"
        for error, members in failed.items()
    ]
    title = f"model {first.columns['model']}, {size_text}"
    return Table.of(names, heads, lines, title=title, errors=tuple(errors))


def _labels(cell: Timed, names: Sequence[str]) -> list[str]:
    is_full = cell.columns["policy"] == "full"
    values = (None if is_full and name == "budget" else cell.columns[name] for name in names)
    return ["" if value is None else str(value) for value in values]


def _figures(cell: Timed, full: Timed | None) -> dict[str, str]:
    """Return the columns of the table: their heads, and what they show of a cell ("" for what was not measured)."""

    def median(name: str, words: Callable[[float], str]) -> str:
        number = cell.median(name)
        return "" if number is None else words(number)

    def seconds(name: str) -> str:
        return median(name, lambda number: duration([number]) if number else "")

    def spread(name: str) -> str:
        """Median and quartiles in one unit: "4.1 [4.0, 4.6] ms"."""
        quartiles = cell.quantities.get(name)
        if quartiles is None or not quartiles.median:
            return ""
        factor, unit = (1e3, "ms") if quartiles.high < 0.9995 else (1.0, "s")
        middle, low, high = (f"{factor * number:.3g}" for number in quartiles[:3])
        return f"{middle} [{low}, {high}] {unit}"

    def roof(phase: str) -> str:
        roofline = cell.roofline(phase)
        return "" if roofline is None else f"{100 * roofline[0]:.2g} % {roofline[1]}"

    floor, share = cell.floor("step"), None if full is None else cell.restricted_share(full)
    return {
        "prefill": seconds("prefill_seconds"),
        "scoring": seconds("score_seconds"),
        "evict": seconds("cut_seconds"),
        "first token": spread("first_token_seconds"),
        "step": spread(STEP),
        "in production": spread(PRODUCTION),
        "gain only when restricted": "" if share is None else f"{100 * share:.0f} %",
        "floor": "" if floor is None else duration([floor[0]]),
        "tokens/s": "" if cell.tokens_per_second is None else f"{cell.tokens_per_second:.4g}",
        "held": median("held_bytes", lambda count: size([count])),
        "decoding in": median("decode_bytes", lambda count: size([count])),
        "peak reading": median("prefill_peak_bytes", lambda count: size([count])),
        "peak decoding": median("decode_peak_bytes", lambda count: size([count])),
        "prefill at": roof("prefill"),
        "scoring at": roof("score"),
        "step at": roof("step"),
        "production at": roof("production"),
        "joules": median("joules", "{:.3g}".format),
    }


def _environment(source: Source, cells: Sequence[Timed]) -> list[str]:
    """Return the devices, their measured speeds, how busy the machine was, and a quantised cache of equal bytes."""
    table = load_table(source, ["environment"], lambda text: None, {"cell": [cell.cell for cell in cells]})
    folder, names = place_of(source), dict[str, None]()
    dtypes: dict[Any, None] = {}
    for environment in table["environment"].unique().to_pylist():
        recorded = ResultsFolder(folder).read_environment(environment) if environment and folder is not None else None
        device = (recorded or {}).get("device")
        dtype = device.get("dtype") if isinstance(device, Mapping) else None
        dtypes[dtype] = None
        names[f"{device.get('name')}, {dtype}" if isinstance(device, Mapping) else str(device)] = None

    def measured(name: str, unit: float) -> str:
        """Return the smallest and the largest median of the cells."""
        medians = [number / unit for cell in cells if (number := cell.median(name)) is not None]
        return "-".join(dict.fromkeys(f"{number:.3g}" for number in (min(medians), max(medians)))) if medians else ""

    copies, products = measured("device_copy_bytes_per_second", 1e9), measured("device_flops_per_second", 1e12)
    line, load = "; ".join(names), measured("load", 1)
    if copies and products:
        line += f": copies {copies} GB/s, multiplies {products} TFLOP/s"
    if load:
        line += f"; load of the machine {load}"
    return [line, *filter(None, map(quantized_note, dtypes))]


def share_of_full(bits: int, bytes_each: int) -> float:
    """Return bytes of a quantised number, with its part of scale and shift, over the bytes of an unquantised one."""
    return (bits / 8 + 2 * bytes_each / GROUP) / bytes_each


def quantized_note(dtype: str | None) -> str:
    """Return a line for the footer; empty if the precision is unknown."""
    if dtype is None or dtype not in BYTES:
        return ""
    shares = " and ".join(f"{100 * share_of_full(bits, BYTES[dtype]):.3g} % in {bits} bits" for bits in BITS)
    return f"equal bytes: of a full cache in {dtype}, transformers' QuantizedCache (quanto) holds {shares}"
