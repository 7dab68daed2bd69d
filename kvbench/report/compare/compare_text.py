"""A comparison as text for a terminal, as Markdown, CSV and JSON."""

import json
import os
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, TextIO

from rich.console import Console
from rich.text import Text

from kvbench.report.compare.compare import BETTER, WORSE, Comparison, Difference, as_tree
from kvbench.report.compare.paired_rows import counted, shown
from kvbench.report.stats.intervals import FEW
from kvbench.report.tables.grid import (
    Grid,
    escaped,
    markdown_table,
    plain_console,
    print_lines,
    text_grid,
    write_lines,
)
from kvbench.support.quantity import numbered, shortened
from kvbench.support.text import printable, wrapped

FORMATS = ("text", "markdown", "csv", "json")
WIDTH = 120  # of text that does not go to a terminal
_CSV = (
    *("metric", "n", "clusters", "mean_a", "mean_b", "difference", "low", "high", "interval", "p", "p_method"),
    *("p_holm", "only_a", "only_b", "mcnemar", "detectable", "noisy", "verdict"),
)
_KEYS = (
    *("model", "task", "task_version", "context_length", "seed"),
    *("policy", "score", "budget", "variant", "layout", "schedule"),
)
_FIGURES = ("n", "A", "B", "B - A [95 %]", "p", "p Holm", "only A:B", "McNemar", "MDE", "near-ties", "verdict")
_PLAIN = ("model", "task", "policy", "score")  # columns whose values need no name
_NAMED = 20  # lines of what one side lacks that are named
_REASONS = {"absent": "absent", "failed": "failed", "no value": "without a value"}


def write(comparison: Comparison, format: str, out: TextIO, width: int | None = None) -> None:
    """Write a comparison in one of FORMATS. ``width``: columns of text; by default those of the terminal, or WIDTH."""
    assert format in FORMATS
    if format == "json":
        out.write(json.dumps(as_tree(comparison), indent=2, allow_nan=False) + "\n")
    elif format == "csv":
        _write_csv(comparison, out)
    elif format == "markdown":
        _write_markdown(comparison, out)
    else:
        _write_text(comparison, out, width)


def lines_of(comparison: Comparison) -> list[Difference]:
    """The lines, the overall one last."""
    return [*comparison.lines, *([comparison.overall] if comparison.overall else [])]


def title(comparison: Comparison) -> str:
    """What is A, what is B, and what all lines share."""
    lines = comparison.lines
    common = {name: value for name, value in lines[0].key.items() if all(line.key[name] == value for line in lines)}
    named = [f"{name} {shown(value)}" for name, value in common.items() if value is not None and name in _KEYS]
    return f"A: {comparison.a}; B: {comparison.b}" + (f" ({', '.join(named)})" if named else "")


def grid_of(comparison: Comparison) -> Grid:
    """What tells the lines apart, then the figures, rates in points; lines that one side lacks are left out."""
    labels = _varying(comparison)
    align = "l" * len(labels) + "r" * (len(_FIGURES) - 1) + "l"
    lines = [line for line in lines_of(comparison) if not _only_on(line)]
    return Grid([*labels, *_FIGURES], [_strings(comparison, line, labels) for line in lines], align)


def _strings(comparison: Comparison, line: Difference, names: Sequence[str]) -> list[str]:
    labels = [shown(line.key[name]) if name in line.key else "" for name in names]
    if line is comparison.overall and labels:
        labels[0] = "overall"
    factor, digits = (100.0, 1) if line.rate else (1.0, 4)

    def number(value: float | None, sign: str = "") -> str:
        return "" if value is None else f"{factor * value:{sign}.{digits}f}"

    limits = f" [{number(line.low, '+')}, {number(line.high, '+')}]" if line.low is not None else ""
    discordant = "" if line.only_a is None else f"{line.only_a}:{line.only_b}"
    n = str(line.n) if line.clusters == line.n else f"{line.n} ({line.clusters} contexts)"
    means = [number(line.mean_a), number(line.mean_b), number(line.difference, "+") + limits]
    tests = [_p(line.p), _p(line.p_holm), discordant, _p(line.mcnemar)]
    near_ties = "" if line.noisy is None else str(line.noisy)
    return [printable(text) for text in (*labels, n, *means, *tests, number(line.detectable), near_ties, line.verdict)]


def notes(comparison: Comparison) -> list[str]:
    """How to read the columns, and what is missing."""
    lines = [line for line in lines_of(comparison) if line.n]
    family = f", p Holm: over the {len(lines)} lines" if len(lines) > 1 else ""
    unit = "points" if all(line.rate for line in comparison.lines) else "points, or in the unit of the metric"
    texts = [
        f"B - A in {unit}; interval: paired, 95 %, not corrected for several lines. p: sign-flip test{family}; "
        f"better or worse is said of B and needs p Holm <= {comparison.alpha:g}.",
        "MDE: the smallest true difference that this n detects with 80 % power; too few samples: not significant, and "
        f"MDE above {100 * comparison.relevant:g} points or fewer than {FEW} contexts. near-ties: questions with an "
        "answer that numeric noise could flip (top-2 margin below the rounding step of its dtype).",
    ]
    if any(line.interval == "student" for line in lines):
        texts.append(f"Fewer than {FEW} contexts: their interval is Student's, not a bootstrap.")
    names = _varying(comparison)
    missing: dict[str, list[str]] = {}  # the lines by what they lack
    for line in comparison.lines:
        values = {name: shown(line.key[name]) for name in names if line.key.get(name) is not None}
        where = " ".join(value if name in _PLAIN else f"{name} {value}" for name, value in values.items())
        if side := _only_on(line):
            missing.setdefault(f"only in {side}", []).append(where)
            continue
        for (side, reason), samples in counted(line.unpaired).items():
            missing.setdefault(f"{side}: {len(samples)} {_REASONS[reason]} ({numbered(samples)})", []).append(where)
    lacking = [
        f"  {reason}: {shortened(places, _NAMED)}".removesuffix(": ") for reason, places in sorted(missing.items())
    ]
    return [*texts, *comparison.notes, *(["Not compared:", *lacking] if lacking else [])]


def _only_on(line: Difference) -> str:
    """The side without whose rows nothing of a line is there; "" if both have some."""
    samples = {row.sample for row in line.unpaired}
    for side, other in ("AB", "BA"):
        absent = {row.sample for row in line.unpaired if (row.side, row.reason) == (side, "absent")}
        if line.n == 0 and absent == samples:
            return other
    return ""


def _varying(comparison: Comparison) -> list[str]:
    lines = comparison.lines
    varying = [name for name in lines[0].key if len({repr(line.key[name]) for line in lines}) > 1]
    return varying or ["task"] * ("task" in lines[0].key)


def _p(p: float | None) -> str:
    return "" if p is None else "<0.0001" if p < 0.0001 else f"{p:.4f}"


def _write_markdown(comparison: Comparison, out: TextIO) -> None:
    grid = grid_of(comparison)
    heads, *lines = ([escaped(text) for text in line] for line in (grid.heads, *grid.lines))
    for line in lines:
        line[-1] = f"**{line[-1]}**" if line[-1] in (BETTER, WORSE) else line[-1]
    head = [f"**{escaped(title(comparison))}**", "", *([escaped(comparison.windows), ""] if comparison.windows else [])]
    texts = [*head, *markdown_table(heads, *lines, align=grid.align), ""]
    for note in notes(comparison):
        texts += [f"- {escaped(note.strip())}"] if note.startswith("  ") else [escaped(note), ""]
    out.write("\n".join(texts) + "\n")


def _write_csv(comparison: Comparison, out: TextIO) -> None:
    names = [*_KEYS, *(name for name in comparison.lines[0].key if name not in _KEYS)]
    lines: list[list[Any]] = [["line", *names, *_CSV, "unpaired_a", "unpaired_b"]]
    for line in lines_of(comparison):
        kind = "overall" if line is comparison.overall else "cell"
        unpaired = [len({row.sample for row in line.unpaired if row.side == side}) for side in "AB"]
        lines.append([kind, *(line.key.get(name) for name in names), *(getattr(line, f) for f in _CSV), *unpaired])
    write_lines(lines, out)


def _write_text(comparison: Comparison, out: TextIO, width: int | None) -> None:
    console = plain_console(out)
    room = width or (console.width if console.is_terminal or "COLUMNS" in os.environ else None)
    width = room or WIDTH
    _print_wrapped([title(comparison)], console, width, "bold")
    _print_wrapped([comparison.windows] * bool(comparison.windows), console, width, "")
    console.print()
    grid = grid_of(comparison)
    *columns, verdicts = grid.columns()
    styles = [{BETTER: "green", WORSE: "red"}.get(verdict, "") for verdict in verdicts.body]
    labels = len(grid.heads) - len(_FIGURES)
    print_lines(text_grid(columns[:labels], [*columns[labels:], replace(verdicts, styles=styles)], room), console)
    console.print()
    _print_wrapped(notes(comparison), console, width, "dim")


def _print_wrapped(texts: Sequence[str], console: Console, width: int, style: str) -> None:
    for text in texts:
        indent = "  " if text.startswith("  ") else ""
        lines = wrapped(indent + printable(text.strip()), width, indent * 2)
        for line in lines:
            console.print(Text(line, style))
