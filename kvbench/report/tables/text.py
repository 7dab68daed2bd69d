"""A sheet for a terminal or a text file: aligned columns, cut into parts where the screen is too narrow."""

import textwrap
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from kvbench.report.tables.sheet import Figure, Sheet
from kvbench.support.printable import printable

Span = tuple[str, str]  # text, style (a rich style; "" for none)


@dataclass(frozen=True)
class _Column:
    """One column, each string padded to its width: the head from top to bottom, then one string a line."""

    heads: tuple[str, ...]
    body: tuple[str, ...]
    styles: tuple[str, ...]

    @property
    def width(self) -> int:
        return len(self.body[0])


def text_lines(sheet: Sheet, width: int) -> list[list[Span]]:
    """The lines of one sheet, none longer than ``width`` unless a single column is; spans of text with their style."""
    sheet = _printable(sheet)
    labels = _labels(sheet)
    columns = [_figures(sheet, i) for i in range(len(sheet.heads))]
    out: list[list[Span]] = [[(line, "bold")] for line in textwrap.wrap(sheet.title, width)]
    out += [[(line, "")] for line in textwrap.wrap(sheet.caption, width)]
    columns += [_evict(sheet)] if any(line.evict for line in sheet.lines) else []
    gap = 2 if _width([labels, *columns], 2) <= width or _width([labels, *columns], 1) > width else 1
    for part in _parts(labels, columns, gap, width):
        out.append([("", "")])
        out += _grid(part, [line.reference for line in sheet.lines], gap)
    if sheet.notes or sheet.errors:
        out.append([("", "")])
    for note in sheet.notes:
        out += [[(line, "dim")] for line in textwrap.wrap(note, width)]
    for i, error in enumerate(sheet.errors):
        wrapped = textwrap.wrap(error, width, initial_indent="  " if i else "", subsequent_indent="    ")
        out += [[(line, "red")] for line in wrapped]
    return out


def _printable(sheet: Sheet) -> Sheet:
    """The sheet with texts that a terminal only prints."""

    def said(texts: Iterable[str]) -> tuple[str, ...]:
        return tuple(map(printable, texts))

    lines = [replace(line, labels=said(line.labels)) for line in sheet.lines]
    return replace(
        sheet,
        title=printable(sheet.title),
        caption=printable(sheet.caption),
        heads=tuple(map(said, sheet.heads)),
        lines=tuple(lines),
        notes=said(sheet.notes),
        errors=said(sheet.errors),
    )


def plain(lines: Sequence[Sequence[Span]]) -> str:
    """The text without its styles."""
    return "".join("".join(text for text, _ in line).rstrip() + "\n" for line in lines)


def _width(columns: Sequence[_Column], gap: int) -> int:
    return sum(column.width for column in columns) + gap * (len(columns) - 1)


def _parts(labels: _Column, columns: list[_Column], gap: int, width: int) -> list[list[_Column]]:
    """Columns that fit on the screen beside the labels, part by part."""
    parts = [[labels]]
    for column in columns:
        if len(parts[-1]) > 1 and _width([*parts[-1], column], gap) > width:
            parts.append([labels])
        parts[-1].append(column)
    return parts


def _grid(columns: list[_Column], references: Sequence[bool], gap: int) -> list[list[Span]]:
    lines = [_joined([(column.heads[i], "bold" if i == 0 else "dim") for column in columns], gap) for i in range(3)]
    lines = [line for line in lines if any(text.strip() for text, _ in line)]
    rule = [("-" * _width(columns, gap), "dim")]
    lines.append(rule)
    for i, reference in enumerate(references):
        lines.append(_joined([(column.body[i], column.styles[i]) for column in columns], gap))
        if reference and i + 1 < len(references) and not references[i + 1]:
            lines.append(rule)
    return lines


def _joined(spans: list[Span], gap: int) -> list[Span]:
    joined = [spans[0]]
    for span in spans[1:]:
        joined += [(" " * gap, ""), span]
    return joined


def _labels(sheet: Sheet) -> _Column:
    """All labels in one column. A label with nothing to its right may run over its neighbours' place."""
    table = [sheet.labels, *(line.labels for line in sheet.lines)]
    widths = [
        max((len(labels[i]) for labels in table if any(labels[i + 1 :])), default=0) for i in range(len(sheet.labels))
    ]
    joined = ["  ".join(f"{label:{widths[i]}}" for i, label in enumerate(labels)).rstrip() for labels in table]
    width = max(len(text) for text in joined)
    head, *body = (f"{text:{width}}" for text in joined)
    return _Column((head, " " * width, " " * width), tuple(body), ("",) * len(body))


def _figures(sheet: Sheet, index: int) -> _Column:
    """Means, stars, intervals and notes each aligned among themselves, as a whole to the right."""
    figures = [line.figures[index] for line in sheet.lines]
    mean = max(len(figure.mean) for figure in figures)
    star = any(known.best for line in sheet.lines for known in line.figures)
    low, high, note = (max(len(getattr(figure, name)) for figure in figures) for name in ("low", "high", "note"))
    interval = low + high + 3 if low else 0

    def said(figure: Figure) -> str:
        if not figure.mean:
            return figure.note.rjust(mean + star)
        between = f"[{figure.low:>{low}},{figure.high:>{high}}]" if figure.low else " " * interval
        text = f"{figure.mean:>{mean}}" + (("*" if figure.best else " ") if star else "")
        return f"{text} {between} {figure.note:<{note}}".rstrip() if note else f"{text} {between}".rstrip()

    body = [said(figure) for figure in figures]
    inner = max(map(len, body))
    body = [f"{text:{inner}}" for text in body]
    width = max(inner, *(len(text) for text in sheet.heads[index]))
    styles = tuple(
        "dim" if line.reference else "bold green" if figure.best else "red" if figure.note and not figure.mean else ""
        for line, figure in zip(sheet.lines, figures, strict=True)
    )
    return _Column(
        tuple(f"{text:>{width}}" for text in sheet.heads[index]), tuple(f"{text:>{width}}" for text in body), styles
    )


def _evict(sheet: Sheet) -> _Column:
    head, body = "evict", [line.evict for line in sheet.lines]
    width = max(len(head), *map(len, body))
    padded = tuple(f"{text:>{width}}" for text in body)
    return _Column((f"{head:>{width}}", " " * width, " " * width), padded, ("dim",) * len(body))
