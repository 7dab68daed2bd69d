"""A block of means as a table: its heads, labels, figures and notes in the words of readers."""

import re
import textwrap
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from operator import attrgetter
from typing import TYPE_CHECKING, Any

from kvbench.records.rows import Describe
from kvbench.report.acted import CONTROL
from kvbench.report.formats.latex import BETTER, BLANK, WORSE
from kvbench.report.formats.table import Figure, Table, TableRow
from kvbench.report.stats.verdicts import FLOOR
from kvbench.report.tables.pivot import Block, Key
from kvbench.report.tables.summary import Summary
from kvbench.report.tables.usual_values import unsaid_settings
from kvbench.support.grouped import grouped
from kvbench.support.quantity import count_noun, duration, numbered, percent, shortened, size

if TYPE_CHECKING:
    from kvbench.report.compare.beyond_chance import Mark

MANY_DIGITS = 1e9
"""Numbers from here on are written with a power of ten."""
ABOUT_EVICT = "; evict column: per prompt"
"""What a note says of the aside."""
TIMES = ("first token", "tokens/s")
"""Of requests to a server that streams its answers."""
_LISTED_ERRORS = 5
_LISTED_CHARACTERS = 300
_NUMBER = re.compile(r"\b\d+(?:\.\d+)?\b")
_LISTED_EXTREMES = 2  # cells at the floor, and as many at the ceiling


def means_table(
    block: Block,
    describe: Describe = lambda cell: None,
    marks: "Mapping[str, Mark] | None" = None,
    against: str = "",
    triggered: bool = False,
) -> Table:
    """Return the table of a block: rates x100, bytes in powers of 1024, times in ms or s.

    ``marks``: which cells differ from the baseline ``against`` by more than chance, by cell. ``triggered``: whether
    means are over the prompts in which the method acted.
    """
    marks = marks or {}
    cells = [cell for line in block.lines for cell in line.cells.values()]
    decimals, (best, second) = _decimals(cells), _ranked(block)
    used_labels = [i for i in range(len(block.line_keys)) if any(line.labels[i] is not None for line in block.lines)]
    has_reader = any(cell.index_bytes for cell in cells)
    is_streamed = any(cell.first_token_seconds for cell in cells)
    lines = []
    for line in block.lines:
        tally = Counter(cell.n for cell in line.cells.values())
        common = max(tally, key=lambda n: (tally[n], n))  # the larger of two that are equally frequent
        figures = []
        for column in block.columns:
            cell, place = line.cells.get(column), (id(line), column)
            figure = _figure(cell, common, decimals, marks.get(cell.cell) if cell else None)
            figures.append(replace(figure, best=place in best, second=place in second))
        texts = ("" if line.labels[i] is None else str(line.labels[i]) for i in used_labels)
        seconds = [cell.evict_seconds for cell in line.cells.values() if cell.evict_seconds is not None]
        evict = duration([sum(seconds) / len(seconds)]) if seconds and not line.reference else ""
        read = [_read(line.cells.values())] if has_reader else []
        read += _times(line.cells.values()) if is_streamed else []
        lines.append(TableRow((*texts, *read, str(common)), tuple(figures), evict, line.reference))
    described = unsaid_settings(((cell.cell, cell.policy, cell.score) for cell in cells), describe)
    metrics, compared = _metrics(cells), _compared(against)
    margin = _margin(cells)
    reference, methods = block.cells(reference=True), block.cells(reference=False)
    every = reference + methods
    differences = "; ".join(filter(None, (compared, described)))
    reach = f"95 % intervals reach {margin} to either side at most" if margin else ""
    return Table(
        title=_title(block, cells),
        caption=(f"{metrics}: mean [95 % interval] of n samples", compared, described),
        words=". ".join(
            filter(None, (f"{metrics}, means of n samples", reach, differences[:1].upper() + differences[1:]))
        ),
        competition="of its column",
        labels=(
            *(block.line_keys[i] for i in used_labels),
            *(["read"] if has_reader else []),
            *(TIMES if is_streamed else ()),
            "n",
        ),
        heads=tuple(_head(block, column) for column in block.columns),
        lines=tuple(lines),
        notes=(*_notes(reference, methods, block), *_endings(every), *_actions(methods, triggered), *_extremes(block)),
        errors=tuple(_errors(every)),
        aside="evict" if any(line.aside for line in lines) else "",
        about_aside=ABOUT_EVICT,
        rules=(0, *(i for i in range(1, len(lines)) if lines[i - 1].reference and not lines[i].reference)),
    )


def _title(block: Block, cells: Sequence[Summary]) -> str:
    """Return what all cells have in common; beside the length that was set, how long the prompts of one task were."""
    parts = [_named(key, value) for key, value in block.title.items() if value is not None]
    prompted = [cell for cell in cells if cell.higher]  # the others are texts, or timed
    lengths = [cell.prompt_tokens for cell in prompted if cell.prompt_tokens is not None]
    if lengths and "task" in block.title:
        shortest, longest = f"{min(lengths):.0f}", f"{max(lengths):.0f}"
        parts.append(f"prompts of {shortest if shortest == longest else f'{shortest}-{longest}'} tokens")
    return ", ".join(parts)


def _decimals(cells: Sequence[Summary]) -> dict[str | None, int]:
    """Decimals of the means, by metric: none for rates if every mean is a whole percentage."""
    decimals: dict[str | None, int] = {}
    for cell in cells:
        if cell.mean is not None and cell.rate:
            is_whole = abs(100 * cell.mean - round(100 * cell.mean)) < 1e-6
            decimals[cell.metric] = max(decimals.get(cell.metric, 0), 0 if is_whole else 1)
        elif cell.mean is not None:
            digits = max(0, 4 - len(str(int(abs(cell.mean)))))
            decimals[cell.metric] = min(decimals.get(cell.metric, 4), digits)
    return decimals


def _figure(cell: Summary | None, common: int, decimals: dict[str | None, int], mark: "Mark | None") -> Figure:
    if cell is None:
        return Figure()
    blank = BLANK if cell.blanks else ""
    if cell.mean is None:
        return Figure(note=("failed" if cell.errors else "") + blank)
    factor, places = (100.0 if cell.rate else 1.0), decimals[cell.metric]
    low, high = (
        # An interval of a rate is whole percentages wide until there are a thousand samples.
        "" if end is None else _number(factor * end, places if not cell.rate or cell.n >= 1000 else 0)
        for end in (cell.low, cell.high)
    )
    note = ("" if cell.n == common else f"n={cell.n}") + blank
    if mark:
        note = f"{note} {mark.won}:{mark.lost}".strip()
    if mark and mark.survives:
        note += BETTER if mark.better else WORSE
    return Figure(_number(factor * cell.mean, places), low, high, note)


def _number(value: float, places: int) -> str:
    """Return a number with this many decimals, or in scientific form where it has many digits."""
    return f"{value:.{places}f}" if abs(value) < MANY_DIGITS else f"{value:.3g}"


def _ranked(block: Block) -> tuple[set[tuple[int, Key]], set[tuple[int, Key]]]:
    """(line, column) of the best mean of each question, and of the second; none where samples are missing."""
    places = [
        (cell, (id(line), column)) for line in block.lines for column, cell in line.cells.items() if not line.reference
    ]
    samples = {id(line): _choosing_samples(block, line.labels) for line in block.lines}
    same = attrgetter("model", "task", "context_length", "metric")
    best: set[tuple[int, Key]] = set()
    second: set[tuple[int, Key]] = set()
    for group in grouped(places, lambda place: (place[1][1], samples[place[1][0]], same(place[0]))).values():
        if len({cell.n for cell, _ in group}) == 1:
            means = {place: cell.mean for cell, place in group if cell.mean is not None}
            winners, seconds = best_and_second(means, group[0][0].higher)
            best, second = best | winners, second | seconds
    return best, second


def best_and_second(values: Mapping[Any, float], highest: bool) -> tuple[set[Any], set[Any]]:
    """Return whose value is the best, and whose the second; `highest` is better, or lowest.

    None is best if all are equal; none is second if several are best or only two compete.
    """
    order = sorted(set(values.values()), reverse=highest)
    if len(order) < 2:
        return set(), set()
    best, second = ({key for key, value in values.items() if value == each} for each in order[:2])
    return best, second if len(best) == 1 and len(values) > 2 else set()


def _choosing_samples(block: Block, line: Key) -> tuple[str, ...]:
    """Return the labels of a line that choose its samples; lines with other samples are not ranked with it."""
    labels = (f"{key}={label}" for key, label in zip(block.line_keys, line, strict=True) if label is not None)
    words = (word for label in labels for word in label.removeprefix("setting=").split())
    return tuple(word for word in words if word.startswith(("task.", "question_number=", "seed=", "task_version=")))


def _head(block: Block, column: Key) -> tuple[str, ...]:
    keyed = zip(block.column_keys, column, strict=True)
    names = ", ".join(_named(key, value) for key, value in keyed if value is not None)
    cells = [line.cells[column] for line in block.lines if column in line.cells and not line.reference]
    kept = percent(cell.kept_fraction for cell in cells if cell.kept_fraction is not None)
    held = size(cell.held_bytes for cell in cells if cell.held_bytes is not None)
    return (names or "-", f"kept {kept}" if kept else "", held)


def _read(cells: Iterable[Summary]) -> str:
    """Bytes that a token of an answer reads, the index of the reader included; "" without a reader."""
    return size((cell.read_bytes or 0.0) + cell.index_bytes for cell in cells if cell.index_bytes)


def _named(key: str, value: Any) -> str:
    return str(value) if key in ("policy", "score") else f"{key.replace('_', ' ')} {value}"


def _metrics(cells: Sequence[Summary]) -> str:
    """Return the metrics of cells that have a mean, each with its unit and direction."""
    metrics: list[str] = []
    for cell in cells:
        name = (cell.metric or "value") + (" in %" if cell.rate else "")
        name += "" if cell.higher else " (lower is better)"
        if cell.mean is not None and name not in metrics:
            metrics.append(name)
    return ", ".join(metrics) or "value"


def _compared(against: str) -> str:
    """Explain the marks of differences and the counts beside them, if there are any."""
    tested = "beyond chance (paired sign-flip test, Holm over all)"
    return f"{BETTER}{WORSE} better or worse than {against} {tested}; a:b prompts won and lost" if against else ""


def _times(cells: Iterable[Summary]) -> list[str]:
    """Return the columns `TIMES`: a server's mean time to its first token, and tokens per second after it."""
    timed = [cell for cell in cells if cell.first_token_seconds is not None and cell.decode_seconds is not None]
    first = duration([sum(cell.first_token_seconds or 0 for cell in timed) / len(timed)]) if timed else ""
    tokens = sum(cell.n * ((cell.new_tokens or 1) - 1) for cell in timed)
    seconds = sum(cell.n * (cell.decode_seconds or 0) for cell in timed)
    return [first, f"{tokens / seconds:.3g}" if tokens and seconds else ""]


def _notes(reference: Sequence[Summary], methods: Sequence[Summary], block: Block) -> list[str]:
    every = [*reference, *methods]
    full = size(cell.full_held_bytes for cell in every if cell.full_held_bytes is not None)
    prefill = duration(cell.prefill_seconds for cell in every if cell.prefill_seconds is not None)
    notes = []
    if blank := [cell for cell in every if cell.blanks]:
        where = (f"{_name(cell)} ({numbered(cell.blank_samples)})" for cell in blank)
        notes.append(f"{BLANK} no number (NaN or missing), left out of the mean: {'; '.join(_some(list(where)))}.")
    if any(cell.index_bytes for cell in methods):
        notes.append("read: bytes that a token of an answer reads, index included; without a reader all that is held.")
    if any(cell.first_token_seconds for cell in every):
        notes.append("first token: mean over requests, the server's queue included; tokens/s: of a request after it.")
    if reference and methods:
        bytes_full = f" ({full})" if full else ""
        repeated = ", repeated in every column for reference" if len(block.columns) > 1 else ""
        notes.append(f"full: no eviction{bytes_full}{repeated}.")
    elif full:
        notes.append(f"The full cache is {full}.")
    if prefill:
        # Decoding time over all cells: active cells share a step, so no cell has a time of its own.
        decoded = [cell for cell in every if cell.decode_seconds is not None and cell.new_tokens]
        tokens = sum(cell.n * (cell.new_tokens or 0) for cell in decoded)
        seconds = sum(cell.n * (cell.decode_seconds or 0) for cell in decoded)
        evict = ABOUT_EVICT if any(cell.evict_seconds is not None for cell in methods) else ""
        decoding = f"; decode {duration([seconds / tokens])} per token" if tokens else ""
        notes.append(f"Mean times: prefill {prefill} per prompt (shared){evict}{decoding}.")
    return notes


def _endings(cells: Sequence[Summary]) -> list[str]:
    """Return how many answers have no final part, and how many had to stop, if most of the answers that say why they
    ended had to.

    A model whose end of turn does not end its answers, or that repeats itself, writes to the limit.
    """
    answers, with_ending = sum(cell.n for cell in cells), sum(cell.ended for cell in cells)
    cut, limited = sum(cell.cut for cell in cells), sum(cell.limited for cell in cells)
    notes = []
    if cut:
        notes.append(
            f"{cut} of {answers} answers ended within their reasoning and are 0 (task.reasoning=keep: all of it)."
        )
    if 2 * limited > with_ending:
        notes.append(f"{limited} of {with_ending} answers did not end before task.max_new_tokens.")
    return notes


def _actions(methods: Sequence[Summary], triggered: bool) -> list[str]:
    """On how many prompts the methods acted: where means are over these, and where they are less than `CONTROL`."""
    cells, notes = [cell for cell in methods if cell.acted is not None], []
    controls = _some([_acted(cell) for cell in cells if (cell.acted or 0) < CONTROL])
    if triggered:
        others = _some([_acted(cell) for cell in cells if CONTROL <= (cell.acted or 0) < 1])
        shares = f"{'; '.join(others)}; all others: all" if others else "all"
        notes.append(f"Means are over the prompts in which the method acted: {shares}. full: all prompts.")
        if unjudged := sum(cell.unjudged for cell in methods):
            notes.append(f"Left out, as they do not say whether their method acted: {count_noun(unjudged, 'row')}.")
    if controls:
        notes.append(
            f"Controls, whose method acted on less than {100 * CONTROL:.0f} % of the prompts: {'; '.join(controls)}."
        )
    return notes


def _acted(cell: Summary) -> str:
    """Return a cell, on how many of its prompts its method acted, and the full cache's mean on these."""
    share = cell.acted or 0
    there = "" if cell.full_there is None else f", full there {cell.full_there * (100 if cell.rate else 1):.1f}"
    return f"{_name(cell)} ({round(share * cell.judged)} of {cell.judged}, {100 * share:.0f} %{there})"


def _extremes(block: Block) -> list[str]:
    """Return a line that names cells at 0 or 100 %, which cannot be told apart."""
    if any(cell.rate and cell.mean == 0 for cell in block.cells(reference=True)):
        return [f"{FLOOR.capitalize()}."]
    ends: dict[str, list[str]] = {}
    for column in block.columns:
        lines = [line for line in block.lines if not line.reference and column in line.cells]
        for end in (0, 1):
            at_end = [line for line in lines if line.cells[column].rate and line.cells[column].mean == end]
            names = [" ".join(str(label) for label in line.labels if label is not None) for line in at_end]
            names = ["all"] if 1 < len(lines) == len(at_end) else names
            ends.setdefault(f"{100 * end} %", []).extend(f"{name} at {_head(block, column)[0]}" for name in names)
    parts = [f"{end}: {shortened(names, _LISTED_EXTREMES)}" for end, names in ends.items() if names]
    return [f"Not informative: {'; '.join(parts)}."] if parts else []


def _errors(cells: Sequence[Summary]) -> list[str]:
    """Return how many samples failed, then every message with the cells and samples it is about, the first few. Of
    messages that differ in numbers alone the first one stands for all.
    """
    causes: dict[str, list[str]] = {}
    messages: dict[str, dict[str, None]] = {}
    for cell in cells:
        failed_samples: dict[str, list[int]] = {}
        for text, samples in cell.failures.items():
            message = textwrap.shorten(text, _LISTED_CHARACTERS, placeholder=" ...") or "no message"
            cause = _NUMBER.sub("", message)
            messages.setdefault(cause, {})[message] = None
            failed_samples.setdefault(cause, []).extend(samples)
        for cause, numbers in failed_samples.items():
            causes.setdefault(cause, []).append(f"{_name(cell)} ({numbered(sorted(numbers))})")
    if not causes:
        return []
    failed, rows = sum(cell.errors for cell in cells), sum(cell.n + cell.errors for cell in cells)
    lines = [f"{failed} of {rows} rows failed; they are left out of all means:"]
    for cause, where in list(causes.items())[:_LISTED_ERRORS]:
        first, *alike = messages[cause]
        more = f" (and {len(alike)} more like it)" if alike else ""
        lines.append(f"{first}{more} -- {'; '.join(_some(where))}")
    if len(causes) > _LISTED_ERRORS:
        lines.append(f"and {len(causes) - _LISTED_ERRORS} more messages: see `kvbench report rows`")
    return lines


def _name(cell: Summary) -> str:
    return " ".join(part for part in (cell.policy, cell.score, cell.budget) if part)


def _margin(cells: Sequence[Summary]) -> str:
    """Return how far the widest interval reaches from its mean, by unit; intervals of rates are not symmetric."""
    widths: dict[bool, float] = {}
    for cell in cells:
        if cell.mean is not None and cell.low is not None and cell.high is not None:
            widths[cell.rate] = max(widths.get(cell.rate, 0.0), cell.high - cell.mean, cell.mean - cell.low)
    return " or ".join(f"{100 * w:.0f} points" if rate else f"{w:.3g}" for rate, w in sorted(widths.items()))


def _some(where: list[str]) -> list[str]:
    return where if len(where) <= 4 else [*where[:3], f"{len(where) - 3} more cells"]
