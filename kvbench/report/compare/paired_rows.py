"""The two sides of a comparison, and their rows paired by question: a sample of a task at a context length and a seed.

Of the columns that describe a cell, those with a value on both sides must agree between paired rows; those without a
common value are what is compared. If two experiments of a side (`kvbench.report.experiments`) then share a line, the
settings in which their descriptions differ are added by the same rule. What remains ambiguous is refused, with the
conditions that would resolve it. What else differs between the two sides of a line stands in its key, if it is not the
same for all lines.

A server, or a file of answers, says its method and budget, and nothing of `UNSAID`: against rows of such, these columns
tell no rows apart.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from operator import attrgetter
from typing import Any

from kvbench.records import Row
from kvbench.records.lines import Warn
from kvbench.report.experiments import CODE, Experiments, unlike
from kvbench.report.frames import Source, place_of
from kvbench.report.rows import answered_elsewhere, describer, load
from kvbench.report.selection import (
    Describe,
    NothingSelected,
    Where,
    as_typed,
    conditions,
    differences,
    flat,
    is_selection,
)
from kvbench.support.errors import UserError
from kvbench.support.grouped import grouped
from kvbench.support.quantity import shortened

QUESTION = ("task", "context_length", "seed")
CELL = ("model", "task_version", "policy", "score", "budget", "variant", "layout", "schedule")
SETTING = "setting"
"""The key of a line that says which settings set it apart, or differ between its sides."""
UNSAID = ("score", "variant", "layout", "schedule")
"""Columns that rows of servers and adopted answers leave open."""
_LISTED = 6


@dataclass(frozen=True)
class Side:
    """The rows of one side, its name, where they are from (``source``), and the descriptions of their cells."""

    name: str
    rows: Sequence[Row]
    source: str
    describe: Describe = lambda cell: None

    @property
    def answered_elsewhere(self) -> bool:
        """Whether all rows were answered elsewhere: by a server, or in a file that was adopted."""
        return all(answered_elsewhere(self.describe(cell)) for cell in {row.cell for row in self.rows})


@dataclass(frozen=True)
class Unpaired:
    """A question without two values: ``side`` ("A" or "B") lacks the row, or its value."""

    sample: int
    side: str
    reason: str  # "absent" | "failed" | "no value"


@dataclass(frozen=True)
class Match:
    """One comparison: what both sides share, and their paired rows by sample.

    ``rows``: those with two values. ``unpaired``: questions without two values. ``both``: ``rows``, and the paired rows
    of which a side failed.
    """

    key: Mapping[str, Any]
    rows: tuple[tuple[Row, Row], ...]
    unpaired: tuple[Unpaired, ...]
    both: tuple[tuple[Row, Row], ...]


@dataclass(frozen=True)
class Pairing:
    """All comparisons of two sides. ``compared``: column -> (values of A, values of B), without a common value."""

    matches: tuple[Match, ...]
    compared: Mapping[str, tuple[tuple[str, ...], tuple[str, ...]]]


def pair(a: Side, b: Side, strict: bool = False) -> Pairing:
    """Pair the rows of two sides, each of which has some.

    ``strict``: every column but the version of the task must agree, and so must the settings of tasks, as far as they
    are described; no column is compared.

    Raises ValueError if the sides have no question in common, if both hold the same row, and if a row has more than
    one possible partner.
    """
    assert a.rows and b.rows
    rows_of_a = {(row.cell, row.sample) for row in a.rows} if a.source == b.source else set()
    for row in b.rows:
        if (row.cell, row.sample) in rows_of_a:
            raise UserError(
                f"{a.name} and {b.name} both select cell {row.cell} ({_words(row)}): a row cannot be compared with "
                "itself; make the selections exclude each other"
            )
    unsaid = UNSAID if not strict and a.answered_elsewhere != b.answered_elsewhere else ()
    shared: list[str] = []
    compared: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {}
    for name in (*QUESTION, *CELL):
        of_a, of_b = (set(map(attrgetter(name), side.rows)) for side in (a, b))
        if name in unsaid:
            continue
        if of_a & of_b or (strict and name != "task_version"):
            shared.append(name)
            continue
        texts = tuple(sorted(map(as_typed, of_a))), tuple(sorted(map(as_typed, of_b)))
        if name in QUESTION:
            raise UserError(
                f"nothing to pair: {a.name} has {name} {shortened(texts[0], _LISTED)}, {b.name} has "
                f"{shortened(texts[1], _LISTED)}; two sides are paired by the samples of the same task, context length "
                "and seed"
            )
        compared[name] = texts
    for i, side in enumerate((a, b)):
        _check_compared(side, [name for name, texts in compared.items() if len(texts[i]) > 1])
    shared += [name for name in _refinement(a, b, shared) if not unsaid or name.startswith("task.")]
    if strict:
        shared += sorted(_differing_tasks(a, b, shared))
    left, right = _placed(a, shared), _placed(b, shared)
    order = {name: i for i, name in enumerate(("model", "task", "context_length", *CELL[1:], "seed"))}
    columns = sorted(range(len(shared)), key=lambda i: order.get(shared[i], len(order)))
    # by key, so that the same rows in any order and from either side give the same lines
    keys = sorted({*left, *right}, key=lambda key: [_sortable(key[i]) for i in columns])
    matches = [_match({shared[i]: key[i] for i in columns}, left.get(key, {}), right.get(key, {})) for key in keys]
    return Pairing(tuple(_told_apart(matches, a, b, shared, compared)), compared)


def _told_apart(
    matches: Sequence[Match], a: Side, b: Side, shared: Sequence[str], compared: Iterable[str]
) -> list[Match]:
    """Return the lines. Each says what sets it apart from others of its task beside their columns, and what differs
    between its sides beside what is compared, if that is not the same in all.
    """
    of_a, of_b = (Experiments((*compared, CODE), side.describe).settings for side in (a, b))

    @cache
    def differing(cells: tuple[str, str]) -> str:
        both = [of_a(cells[0]) or {}, of_b(cells[1]) or {}]
        values = {name: [as_typed(settings.get(name)) for settings in both] for name in unlike(*both)}
        return ", ".join(f"{name}={' | '.join(texts)}" for name, texts in values.items())

    between = [" ".join(sorted({differing((row.cell, other.cell)) for row, other in match.both})) for match in matches]
    is_alike = len({text for text, match in zip(between, matches, strict=True) if match.both}) < 2
    along = Experiments((*(name for name in shared if name != "task"), CODE), a.describe)
    apart: dict[str, str | None] = {}
    for lines in grouped((match for match in matches if match.both), lambda match: match.key.get("task")).values():
        apart |= along.words([match.both[0][0].cell for match in lines])
    texts = [
        ", ".join(filter(None, (apart[match.both[0][0].cell] if match.both else None, None if is_alike else text)))
        for match, text in zip(matches, between, strict=True)
    ]
    if not any(texts):
        return [*matches]
    return [
        replace(match, key={**match.key, SETTING: text or None}) for match, text in zip(matches, texts, strict=True)
    ]


def _check_compared(side: Side, names: Sequence[str]) -> None:
    """Require that a compared column of several values has one per question: else it is not clear which is compared."""
    if not names:
        return
    questions = grouped(side.rows, lambda row: (row.model, *(getattr(row, name) for name in QUESTION), row.sample))
    for rows in questions.values():
        for name in names if len(rows) > 1 else ():
            values = sorted({as_typed(getattr(row, name)) for row in rows})
            if len(values) > 1:
                raise UserError(
                    f"ambiguous: {side.name} has {len(values)} rows for one sample, with {name} "
                    f"{shortened(values, _LISTED)}; add {_or(f'{name}={value}' for value in values)} to it"
                )


def _refinement(a: Side, b: Side, shared: Sequence[str]) -> list[str]:
    """Return settings that tell rows of one side apart and that have a value in common with the other side."""
    names: set[str] = set()
    for side in (a, b):
        keys, experiments = _keys(side, shared), Experiments((CODE,), side.describe)
        same_place = grouped(side.rows, lambda row, keys=keys: (keys[row.cell], row.sample)).values()
        for cells in {frozenset(row.cell for row in rows) for rows in same_place if len(rows) > 1}:
            names |= differences([side.describe(cell) for cell in cells])
        for line in grouped(keys, keys.__getitem__).values():
            names |= {*experiments.differing(line)}
    settings = [name for name in sorted(names) if "." in name]
    of_a, of_b = (zip(*_keys(side, settings).values(), strict=True) for side in (a, b))
    return [name for name, in_a, in_b in zip(settings, of_a, of_b, strict=True) if {*in_a} & {*in_b}]


def _differing_tasks(a: Side, b: Side, shared: Sequence[str]) -> set[str]:
    """Return the settings of tasks that differ between cells of one line, as far as both describe them."""
    placed = []
    for side in (a, b):
        settings = Experiments((CODE,), side.describe).settings
        placed += [(key, settings(cell)) for cell, key in _keys(side, shared).items()]
    lines = grouped(placed, lambda cell: cell[0]).values()
    names = {name for (_, first), *others in lines for _, other in others for name in unlike(first, other)}
    return {name for name in names if name.startswith("task.")}


def _keys(side: Side, names: Sequence[str]) -> dict[str, tuple]:
    """Return the values of these columns and settings by cell."""

    def value(name: str, row: Row) -> Any:
        setting = getattr(row, name) if "." not in name else flat(side.describe(row.cell)).get(name)
        return setting if isinstance(setting, (str, int, float, bool, type(None))) else repr(setting)

    firsts = {row.cell: row for row in reversed(side.rows)}
    return {cell: tuple(value(name, row) for name in names) for cell, row in firsts.items()}


def _placed(side: Side, shared: Sequence[str]) -> dict[tuple, dict[int, Row]]:
    keys, experiments = _keys(side, shared), Experiments((CODE,), side.describe)
    placed: dict[tuple, dict[int, Row]] = {}
    firsts: dict[tuple, Row] = {}
    for row in side.rows:
        key = keys[row.cell]
        first = placed.setdefault(key, {}).setdefault(row.sample, row)
        if first is not row:
            raise UserError(f"ambiguous: {side.name} has two rows for sample {row.sample}: {_advice(side, first, row)}")
        cell = firsts.setdefault(key, row).cell
        if cell != row.cell and experiments.differ((cell, row.cell)):
            raise UserError(f"ambiguous: {side.name} has two cells on one line: {_advice(side, firsts[key], row)}")
    return placed


def _advice(side: Side, first: Row, second: Row) -> str:
    columns = [name for name in CELL if getattr(first, name) != getattr(second, name)]
    rows = (first, second)
    if columns:
        words = [",".join(f"{name}={as_typed(getattr(row, name))}" for name in columns) for row in rows]
    else:
        settings = [flat(side.describe(row.cell)) for row in rows]
        names = [name for name in sorted(differences(settings))[:_LISTED] if "." in name]
        words = [",".join(f"{name}={_pattern(leaves.get(name))}" for name in names) for leaves in settings]
        words = words if all(words) and words[0] != words[1] else [f"cell={row.cell}" for row in rows]
    return f"{_words(first)}; add {_or(words)} to it"


def _pattern(value: Any) -> str:
    """Return a value as a selection takes it, of a SHA-256 the beginning."""
    text = as_typed(value)
    return f"{text[:12]}*" if len(text) == 64 else text


def _match(key: Mapping[str, Any], a: Mapping[int, Row], b: Mapping[int, Row]) -> Match:
    rows, recorded_pairs, unpaired = [], [], []
    for sample in sorted({*a, *b}):
        row_a, row_b = a.get(sample), b.get(sample)
        problems = [
            Unpaired(sample, name, reason)
            for name, reason in (("A", _no_value(row_a)), ("B", _no_value(row_b)))
            if reason is not None
        ]
        unpaired += problems
        if row_a is not None and row_b is not None:
            recorded_pairs.append((row_a, row_b))
            if not problems and row_a.metric != row_b.metric:
                raise UserError(
                    f"task {row_a.task} was judged by {row_a.metric} on one side and by {row_b.metric} on the other: "
                    "their values cannot be compared; run one of them again with the same task.scorer"
                )
            rows += [] if problems else [(row_a, row_b)]
    return Match(key, tuple(rows), tuple(unpaired), tuple(recorded_pairs))


def _no_value(row: Row | None) -> str | None:
    """Why there is no value; None if there is one."""
    if row is None:
        return "absent"
    return None if row.value is not None else "failed" if row.error is not None else "no value"


def _sortable(value: Any) -> tuple:
    if value is None:
        return (0, 0.0, "")
    try:
        return (1, float(value), str(value))
    except (TypeError, ValueError):
        return (2, 0.0, str(value))


def _words(row: Row) -> str:
    values = (row.task, row.context_length, row.policy, row.score, row.budget)
    return " ".join(as_typed(value) for value in values if value is not None)


def _or(words: Iterable[str]) -> str:
    words = list(words)
    return " or ".join(words[:_LISTED]) + (" or ..." if len(words) > _LISTED else "")


def counted(unpaired: Sequence[Unpaired]) -> dict[tuple[str, str], list[int]]:
    """(side, reason) -> samples, in the order of first appearance."""
    groups = grouped(unpaired, lambda question: (question.side, question.reason))
    return {key: [question.sample for question in members] for key, members in groups.items()}


def sides(words: Sequence[str], results: str | None, warn: Warn) -> tuple[Side, Side]:
    """Return both sides with their rows, from the words of a command line.

    `DIR_A DIR_B`: all rows of two folders; with one selection, what it selects of both, by `UNSAID` columns not of
    answers from elsewhere; with two, what the first
    selects of A and the second of B. Two selections without folders are both of `results`, None if it was not named.
    Raises ValueError for words that are not two sides, FileNotFoundError where a folder has no rows, NothingSelected
    where a side has none.
    """
    folders = [word for word in words if not is_selection(word)]
    selections = [word for word in words if is_selection(word)]
    shape = (len(folders), len(selections))
    if (folders and results is not None) or shape not in ((0, 2), (2, 0), (2, 1), (2, 2)):
        named = f"got {' '.join(words)}" if words else "got nothing"
        raise UserError(
            f"compare takes two folders (DIR_A DIR_B, and up to two selections), or --results DIR and two selections "
            f"(policy=snapkv,score=attn policy=snapkv,score=caote); {named}"
        )
    if not folders:
        first, second = (side(text, results or "results/runs", text, warn) for text in selections)
    elif len(selections) == 1:
        first, second = (_side_of_both(folder, selections[0], warn) for folder in folders)
    else:
        chosen = selections or ["", ""]
        first, second = (
            side(f"{folder} {text}".strip(), folder, text, warn) for folder, text in zip(folders, chosen, strict=True)
        )
    return first, second


def _side_of_both(folder: str, selection: str, warn: Warn) -> Side:
    """Return the rows of one side that a selection of both selects. Raises what `sides` raises."""
    name = f"{folder} {selection}"
    try:
        return side(name, folder, selection, warn)
    except NothingSelected:
        said = {key: values for key, values in conditions(selection).items() if key not in UNSAID}
        elsewhere = side(name, folder, said, warn)
        if not elsewhere.answered_elsewhere:
            raise
        return elsewhere


def side(name: str, source: Source, selection: str | Where, warn: Warn) -> Side:
    """Return the rows of a folder or a frame that a selection selects. Raises what `sides` raises."""
    try:
        rows = load(source, warn, conditions(selection) if isinstance(selection, str) else selection)
    except NothingSelected as error:
        raise NothingSelected(f"{name}: {error}") from None
    return Side(name, rows, str(place_of(source) or id(source)), describer(source))
