"""A comparison in words and columns: for a terminal, for Markdown, for a spreadsheet, for another program."""

import json
import textwrap
from collections.abc import Sequence
from typing import Any, TextIO

from rich.console import Console
from rich.table import Table
from rich.text import Text

from kvbench.report.compare.compare import BETTER, WORSE, Comparison, Difference, as_tree
from kvbench.report.compare.paired_rows import counted, shown
from kvbench.report.stats.intervals import FEW
from kvbench.report.tables.grid import escaped, markdown_line, write_lines
from kvbench.support.printable import printable

FORMATS = ("text", "markdown", "csv", "json")
WIDTH = 120  # of text that does not go to a terminal
_SAMPLES = 5
_CSV = (
    *("metric", "n", "clusters", "mean_a", "mean_b", "difference", "low", "high", "interval", "p", "p_method"),
    *("p_holm", "only_a", "only_b", "mcnemar", "detectable", "noisy", "verdict"),
)
_KEYS = (
    *("model", "task", "task_version", "context_length", "seed"),
    *("policy", "score", "budget", "variant", "layout", "schedule"),
)
_REASONS = {"absent": "absent", "failed": "failed", "no value": "without a value"}


def write(comparison: Comparison, format: str, out: TextIO, width: int | None = None) -> None:
    """Write a comparison in one of FORMATS. ``width``: columns of text, default those of the terminal, or WIDTH."""
    assert format in FORMATS
    if format == "json":
        out.write(json.dumps(as_tree(comparison), indent=2, allow_nan=False) + "\n")
    elif format == "csv":
        _write_csv(comparison, out)
    elif format == "markdown":
        out.write("\n".join(_markdown(comparison)) + "\n")
    else:
        _write_text(comparison, out, width)


def lines_of(comparison: Comparison) -> list[Difference]:
    """The lines, the overall one last."""
    return [*comparison.lines, *([comparison.overall] if comparison.overall else [])]


def title(comparison: Comparison) -> str:
    """What is A, what is B, and what all lines share."""
    common = ", ".join(f"{name} {shown(value)}" for name, value in _constant(comparison).items())
    return f"A: {comparison.a}; B: {comparison.b}" + (f" ({common})" if common else "")


def heads(comparison: Comparison) -> list[str]:
    """Column heads: what tells the lines apart, then the figures."""
    figures = ["n", "A", "B", "B - A [95 %]", "p", "p Holm", "only A:B", "McNemar", "sees", "noisy", "verdict"]
    return [*_varying(comparison), *figures]


def cells(comparison: Comparison, line: Difference) -> list[str]:
    """One line as strings, rates in points."""
    names = _varying(comparison)
    labels = [shown(line.key[name]) if name in line.key else "" for name in names]
    if line is comparison.overall and labels:
        labels[0] = "all pairs"
    factor, digits = (100.0, 1) if line.rate else (1.0, 4)

    def number(value: float | None, sign: str = "") -> str:
        return "" if value is None else f"{factor * value:{sign}.{digits}f}"

    limits = f" [{number(line.low, '+')}, {number(line.high, '+')}]" if line.low is not None else ""
    discordant = "" if line.only_a is None else f"{line.only_a}:{line.only_b}"
    n = str(line.n) if line.clusters == line.n else f"{line.n} ({line.clusters} contexts)"
    means = [number(line.mean_a), number(line.mean_b), number(line.difference, "+") + limits]
    tests = [_p(line.p), _p(line.p_holm), discordant, _p(line.mcnemar)]
    noisy = "" if line.noisy is None else str(line.noisy)
    return [*labels, n, *means, *tests, number(line.detectable), noisy, line.verdict]


def notes(comparison: Comparison) -> list[str]:
    """How to read the columns, and what is missing."""
    several = len(lines_of(comparison)) > 1
    family = f", p Holm: over the {len(lines_of(comparison))} lines" if several else ""
    said = [
        f"B - A in {'points' if all(line.rate for line in comparison.lines) else 'points, or the metric as it is'}; "
        f"interval: paired, 95 % for this line alone. p: sign-flip test{family}; a verdict is on B and "
        f"needs p Holm <= {comparison.alpha:g}.",
        "sees: the smallest difference found four times in five at this n; too few samples: no evidence, and blind to "
        f"{100 * comparison.relevant:g} points or fewer than {FEW} contexts. noisy: pairs with an answer that numeric "
        "noise could flip (top-2 margin below the step of its dtype).",
    ]
    if any(line.interval == "student" for line in lines_of(comparison)):
        said.append(f"Fewer than {FEW} contexts: their interval is Student's, not a bootstrap.")
    return [*said, *comparison.notes, *missing(comparison)]


def missing(comparison: Comparison) -> list[str]:
    """Rows without a partner, counted and named."""
    found: dict[str, list[str]] = {}
    count = 0
    names = _varying(comparison)
    for line in comparison.lines:
        where = " ".join(shown(line.key[name]) for name in names if name in line.key)
        for (side, reason), samples in counted(line.unpaired).items():
            count += len(samples)
            listed = ", ".join(map(str, samples[:_SAMPLES])) + (", ..." if len(samples) > _SAMPLES else "")
            what = f"{len(samples)} {_REASONS[reason]} (sample{'s' * (len(samples) != 1)} {listed})"
            found.setdefault(side, []).append(f"{where}: {what}" if where else what)
    if not count:
        return []
    return ["In no pair:", *(f"  {side}: {text}" for side in sorted(found) for text in found[side])]


def _constant(comparison: Comparison) -> dict[str, Any]:
    first = comparison.lines[0].key
    same = {name: value for name, value in first.items() if all(line.key[name] == value for line in comparison.lines)}
    return {name: value for name, value in same.items() if value is not None and name in _KEYS}


def _varying(comparison: Comparison) -> list[str]:
    lines = comparison.lines
    found = [name for name in lines[0].key if len({repr(line.key[name]) for line in lines}) > 1]
    return found or ["task"] * ("task" in lines[0].key)


def _p(p: float | None) -> str:
    return "" if p is None else "<0.0001" if p < 0.0001 else f"{p:.4f}"


def _markdown(comparison: Comparison) -> list[str]:
    top = heads(comparison)
    labels = len(_varying(comparison))
    out = [f"**{escaped(title(comparison))}**", "", markdown_line([escaped(head) for head in top])]
    out.append(markdown_line([":--" if i < labels or head == "verdict" else "--:" for i, head in enumerate(top)]))
    for line in lines_of(comparison):
        said = [escaped(text) for text in cells(comparison, line)]
        said[-1] = f"**{said[-1]}**" if line.verdict in (BETTER, WORSE) else said[-1]
        out.append(markdown_line(said))
    out.append("")
    for note in notes(comparison):
        out.append(f"- {escaped(note.strip())}" if note.startswith("  ") else escaped(note))
        if not note.startswith("  "):
            out.append("")
    return out


def _write_csv(comparison: Comparison, out: TextIO) -> None:
    extra = [name for name in comparison.lines[0].key if name not in _KEYS]
    names = [*_KEYS, *extra]
    lines: list[list[Any]] = [["line", *names, *_CSV, "unpaired_a", "unpaired_b"]]
    for line in lines_of(comparison):
        where = "overall" if line is comparison.overall else "cell"
        sides = [len({one.sample for one in line.unpaired if one.side == side}) for side in "AB"]
        lines.append([where, *(line.key.get(name) for name in names), *(getattr(line, f) for f in _CSV), *sides])
    write_lines(lines, out)


def _write_text(comparison: Comparison, out: TextIO, width: int | None) -> None:
    console = Console(file=out, highlight=False, markup=False, emoji=False)
    console.width = width or (console.width if console.is_terminal else WIDTH)
    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, header_style="bold")
    top = heads(comparison)
    labels = len(_varying(comparison))
    for i, head in enumerate(top):
        table.add_column(head, justify="left" if i < labels or head == "verdict" else "right", no_wrap=True)
    for line in lines_of(comparison):
        colour = {BETTER: "green", WORSE: "red"}.get(line.verdict, "")
        if line is comparison.overall:
            table.add_section()
        table.add_row(*map(printable, cells(comparison, line)[:-1]), Text(line.verdict, colour))
    _say(console, [title(comparison)], "bold")
    console.print()
    with_room = console.options.update(max_width=1000)
    for spans in console.render_lines(table, with_room, pad=False):  # whole lines, however narrow the screen
        said = Text.assemble(*((part.text, part.style or "") for part in spans))
        said.rstrip()
        console.print(said, soft_wrap=True)
    console.print()
    _say(console, notes(comparison), "dim")


def _say(console: Console, said: Sequence[str], style: str) -> None:
    for text in said:
        indent = "  " if text.startswith("  ") else ""
        for line in textwrap.wrap(
            printable(text.strip()), console.width, initial_indent=indent, subsequent_indent=indent * 2
        ):
            console.print(Text(line, style), soft_wrap=True)
