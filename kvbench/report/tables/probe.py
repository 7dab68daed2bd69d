"""Numbers of a probe as a table: a mean over samples with its 95 % interval for whatever is kept apart.

A sample's heads, layers and whatever else is not kept apart are averaged first: they are not independent, samples are.
Samples that share a context are one cluster. The interval is Student's below `FEW` clusters and Hesterberg's expanded
percentile bootstrap from there on (`kvbench.report.stats.intervals`), cut to where the quantity can be.
"""

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TextIO

import numpy as np
import pyarrow as pa
from rich.console import Console
from rich.text import Text

from kvbench.report.output import check_format, text_to
from kvbench.report.stats.intervals import FEW, RESAMPLES, expanded_percentile, student_of_clusters
from kvbench.report.tables.grid import escaped, markdown_line, padded, write_csv
from kvbench.support.errors import UserError
from kvbench.support.printable import printable

FORMATS = ("text", "markdown", "csv", "json")
ASKED = ("probe", "model", "task", "context_length", "policy", "score", "budget", "schedule", "seed")
_CLUSTER = ("sample", "context_sha256")
KEPT = ("sample", "layer", "head", "window", "recent", "position", "quantity")
"""What can be kept apart beside what was asked."""
WIDTH = 120  # of text that does not go to a terminal
_POSITIVE = ("total", "lost", "error", "loss", "relative", "bound", "joint", "singles", "ratio")
_SHARES = ("recall", "lost_share", "best_share", "weight")
LIMITS = {
    **dict.fromkeys(_POSITIVE, (0.0, math.inf)),
    **dict.fromkeys(_SHARES, (0.0, 1.0)),
    "spearman": (-1.0, 1.0),
}
"""Where quantities end."""


@dataclass(frozen=True)
class Line:
    """A mean. `n` samples have a number; of `blanks` the quantity is not defined."""

    keys: tuple[Any, ...]
    cell: str
    n: int
    blanks: int
    mean: float | None
    low: float | None
    high: float | None


def lines_of(numbers: pa.Table, by: Sequence[str]) -> list[Line]:
    """One line for each cell and value of the columns `by`, in the order in which they first appear.

    Raises ValueError for a column that cannot be kept apart.
    """
    for name in by:
        if name not in KEPT:
            raise UserError(f"--by {name}: numbers can be kept apart by {', '.join(KEPT)}")
    keys = ["cell", *ASKED, *dict.fromkeys([*by, "quantity"])]
    whole = numbers.filter(pa.array([error is None for error in numbers["error"].to_pylist()]))
    grouped = whole.group_by(list(dict.fromkeys([*keys, *_CLUSTER])), use_threads=False)
    means = grouped.aggregate([("value", "mean")]).to_pylist()
    found: dict[tuple[Any, ...], list[dict[str, Any]]] = {}
    for one in means:
        found.setdefault(tuple(one[key] for key in keys), []).append(one)
    lines = []
    for (cell, *rest), samples in found.items():
        known = [one for one in samples if one["value_mean"] is not None]
        interval = _interval([(one["context_sha256"], one["value_mean"]) for one in known], samples[0]["quantity"])
        lines.append(Line(tuple(rest), cell, len(known), len(samples) - len(known), *interval))
    return lines


def _interval(known: Sequence[tuple[str, float]], quantity: str) -> tuple[float | None, float | None, float | None]:
    """Mean and limits of (cluster, value) pairs."""
    if not known:
        return None, None, None
    clusters: dict[str, list[float]] = {}
    for cluster, value in known:
        clusters.setdefault(cluster, []).append(value)
    sums = np.array([math.fsum(values) for values in clusters.values()])
    sizes = np.array([len(values) for values in clusters.values()], dtype=float)
    mean = math.fsum(sums) / len(known)
    if len(sums) < 2:
        return mean, None, None
    limits = expanded_percentile(sums, sizes, RESAMPLES, 0) if len(sums) >= FEW else student_of_clusters(sums, sizes)
    least, most = LIMITS.get(quantity, (-math.inf, math.inf))
    return mean, max(float(limits[0]), least), min(float(limits[1]), most)


def print_probed(numbers: pa.Table, by: Sequence[str], across: str, format: str, out: TextIO | Path) -> None:
    """Write the table. ``text`` and ``markdown``: what all lines have in common above it, the values of ``across`` as
    columns; ``csv`` and ``json``: one line a mean, all columns.

    Raises ValueError for an unknown format or column.
    """
    check_format(format, FORMATS)
    names = [*ASKED, *dict.fromkeys([*by, "quantity"])]
    lines = lines_of(numbers, by)
    with text_to(out) as stream:
        if format in ("csv", "json"):
            columns = ["cell", *names, "n", "blanks", "mean", "low", "high"]
            items = [vars(line) | dict(zip(names, line.keys, strict=True)) for line in lines]
            if format == "csv":
                write_csv(columns, items, stream)
            else:
                json.dump([{name: item[name] for name in columns} for item in items], stream, indent=1)
                stream.write("\n")
            return
        _print_blocks(lines, names, across, format, stream)
        errors = [one for one in numbers["error"].to_pylist() if one]
        for error in dict.fromkeys(errors):
            stream.write(
                f"{errors.count(error)} failed: {escaped(error) if format == 'markdown' else printable(error)}\n"
            )


def _print_blocks(lines: Sequence[Line], names: Sequence[str], across: str, format: str, out: TextIO) -> None:
    """One grid; columns that say the same in all lines stand above it."""
    if not lines:
        out.write("no numbers\n")
        return
    places = {name: place for place, name in enumerate(names)}
    common = [name for name in names if name != across and len({line.keys[places[name]] for line in lines}) == 1]
    labels = [name for name in names if name not in common and name != across]
    heads = list(dict.fromkeys(line.keys[places[across]] for line in lines))
    if not any(isinstance(head, str) or head is None for head in heads):
        heads.sort()
    grid: dict[tuple[Any, ...], dict[Any, Line]] = {}
    for line in lines:
        row = (line.cell, *(line.keys[places[name]] for name in labels))
        grid.setdefault(row, {})[line.keys[places[across]]] = line
    said = ", ".join(_said(name, lines[0].keys[places[name]]) for name in common if lines[0].keys[places[name]])
    counts = {line.n for line in lines}
    caption = f"mean [95 % interval] over n = {min(counts)}{f' to {max(counts)}' if len(counts) > 1 else ''} samples"
    top = [*labels, *(f"{across} {head}" if not isinstance(head, str) else head for head in heads)]
    body = [
        [
            *("" if key is None else printable(str(key)) for key in row[1:]),
            *(_figure(found.get(head)) for head in heads),
        ]
        for row, found in grid.items()
    ]
    if format == "markdown":
        rule = [":--"] * len(labels) + ["--:"] * len(heads)
        table = [markdown_line([escaped(one) for one in cells]) for cells in (top, rule, *body)]
        out.write("\n".join([f"**{escaped(said)}**", "", caption, "", *table]) + "\n")
        return
    console = Console(file=out, highlight=False, markup=False, emoji=False)
    console.print(printable(said), style="bold", soft_wrap=True)
    console.print(caption, soft_wrap=True)
    for part in _parts([top, *body], len(labels), console.width if console.is_terminal else WIDTH):
        console.print()
        for row in part:
            console.print(Text("  ".join(row).rstrip(), style="bold" if row is part[0] else ""), soft_wrap=True)


def _parts(grid: list[list[str]], labels: int, width: int) -> list[list[list[str]]]:
    """The grid padded, cut where its columns do not fit beside the labels: one grid a part."""
    lines = padded(grid, labels)
    sizes = list(map(len, lines[0]))
    parts: list[list[int]] = [[]]
    for place in range(labels, len(sizes)):
        if parts[-1] and sum(sizes[one] + 2 for one in (*range(labels), *parts[-1], place)) > width + 2:
            parts.append([])
        parts[-1].append(place)
    return [[[line[one] for one in (*range(labels), *part)] for line in lines] for part in parts]


def _said(name: str, value: Any) -> str:
    return str(value) if name in ("probe", "quantity") else f"{name.replace('_', ' ')} {value}"


def _figure(line: Line | None) -> str:
    if line is None or line.mean is None:
        return ""
    if line.low is None or line.high is None:
        return f"{line.mean:.3g}"
    return f"{line.mean:.3g} [{line.low:.3g}, {line.high:.3g}]"
