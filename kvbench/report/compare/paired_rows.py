"""Which row of one side answers the same question as which row of the other, and which rows have no partner.

A question is a sample of a task at a context length and a seed. Of the columns that describe a cell, those with a value
on both sides must agree within a pair; those that have no value in common are what is being compared. Where that leaves
two rows for one place, the settings in which their descriptions differ are added by the same rule; what then still
stands twice is refused, with the words that would tell it apart.

The two sides of a comparison from the words of a command line.

`DIR_A DIR_B`, all rows of two folders; with one selection, what it selects of both; with two, what the first selects of
A and the second of B. Two selections without folders: both of one folder. A selection is `key=value[,value][,key=...]`:
a comma begins the next condition where `key=` follows it, and another value of the same key where none does.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from kvbench.records import Row
from kvbench.report.rows import describer, load
from kvbench.report.selection import NothingSelected, Where, conditions, differences, flat, is_selection
from kvbench.support.errors import UserError

QUESTION = ("task", "context_length", "seed")
CELL = ("model", "task_version", "policy", "score", "budget", "variant", "layout", "schedule")
Describe = Callable[[str], Mapping[str, Any] | None]
_LISTED = 6


@dataclass(frozen=True)
class Side:
    """The rows of one side, what they are called, where they stand, and the descriptions of their cells."""

    name: str
    rows: Sequence[Row]
    source: str
    describe: Describe = lambda cell: None


@dataclass(frozen=True)
class Unpaired:
    """A row without a partner: ``side`` ("A" or "B") has it not, or has no value for it."""

    sample: int
    side: str
    reason: str  # "absent" | "failed" | "no value"


@dataclass(frozen=True)
class Match:
    """One comparison: what both sides share, the pairs that have two values, sorted by sample, and the others."""

    key: Mapping[str, Any]
    pairs: tuple[tuple[Row, Row], ...]
    unpaired: tuple[Unpaired, ...]
    both: tuple[tuple[Row, Row], ...]  # with the pairs of which a side failed


@dataclass(frozen=True)
class Pairing:
    """All comparisons of two sides. ``compared``: column -> (values of A, values of B), none of them in common."""

    matches: tuple[Match, ...]
    compared: Mapping[str, tuple[tuple[str, ...], tuple[str, ...]]]


@dataclass(frozen=True)
class _Column:
    """A column of the row, or a setting of its cell."""

    name: str

    def of(self, row: Row, side: Side) -> Any:
        if "." not in self.name:
            return getattr(row, self.name)
        value = flat(side.describe(row.cell)).get(self.name)
        return value if isinstance(value, (str, int, float, bool, type(None))) else repr(value)


def pair(a: Side, b: Side, strict: bool = False) -> Pairing:
    """Pair the rows of two sides, each of which has some.

    ``strict``: every column must agree but the version of the task; nothing else is what is being compared.

    Raises ValueError where they have no question in common, where both hold the same row, and where a row has more
    than one possible partner.
    """
    assert a.rows and b.rows
    _check_apart(a, b)
    shared, compared = [], {}
    for name in (*QUESTION, *CELL):
        values = [{getattr(row, name) for row in side.rows} for side in (a, b)]
        if values[0] & values[1] or (strict and name != "task_version"):
            shared.append(_Column(name))
            continue
        texts = tuple(tuple(sorted(map(shown, found))) for found in values)
        if name in QUESTION:
            raise UserError(
                f"nothing to pair: {a.name} has {name} {_some(texts[0])}, {b.name} has {_some(texts[1])}; two sides "
                "are paired by the samples of the same task, context length and seed"
            )
        compared[name] = texts
    for side in (a, b):
        _check_compared(side, list(compared))
    shared += _refinement(a, b, shared)
    left, right = _placed(a, shared), _placed(b, shared)
    return Pairing(tuple(_matches(left, right, [column.name for column in shared])), compared)


def _check_apart(a: Side, b: Side) -> None:
    if a.source != b.source:
        return
    known = {(row.cell, row.sample) for row in a.rows}
    for row in b.rows:
        if (row.cell, row.sample) in known:
            raise UserError(
                f"{a.name} and {b.name} both select cell {row.cell} ({_words(row)}): a row compared with itself tells "
                "nothing; make the selections exclude each other"
            )


def _check_compared(side: Side, names: Sequence[str]) -> None:
    """A compared column may have one value a question, or nobody could say which of them is compared."""
    seen: dict[tuple, dict[str, set[str]]] = {}
    for row in side.rows:
        question = (row.model, *(getattr(row, name) for name in QUESTION), row.sample)
        for name in names:
            seen.setdefault(question, {}).setdefault(name, set()).add(shown(getattr(row, name)))
    for question in seen.values():
        for name, values in question.items():
            if len(values) > 1:
                raise UserError(
                    f"ambiguous: {side.name} has {len(values)} rows for one sample, with {name} "
                    f"{_some(sorted(values))}; add {_or(f'{name}={value}' for value in sorted(values))} to it"
                )


def _refinement(a: Side, b: Side, shared: Sequence[_Column]) -> list[_Column]:
    """Settings that tell rows of one side apart and that the other side knows too."""
    names: set[str] = set()
    for side in (a, b):
        cells: dict[tuple, set[str]] = {}
        for row in side.rows:
            cells.setdefault((*(column.of(row, side) for column in shared), row.sample), set()).add(row.cell)
        for group in {frozenset(group) for group in cells.values() if len(group) > 1}:
            names |= differences([side.describe(cell) for cell in sorted(group)])
    found = []
    for name in sorted(name for name in names if "." in name):
        column = _Column(name)
        values = [{column.of(row, side) for row in {row.cell: row for row in side.rows}.values()} for side in (a, b)]
        if values[0] & values[1]:
            found.append(column)
    return found


def _placed(side: Side, shared: Sequence[_Column]) -> dict[tuple, dict[int, Row]]:
    cells: dict[str, tuple] = {}
    placed: dict[tuple, dict[int, Row]] = {}
    for row in side.rows:
        if row.cell not in cells:
            cells[row.cell] = tuple(column.of(row, side) for column in shared)
        known = placed.setdefault(cells[row.cell], {}).setdefault(row.sample, row)
        if known is not row:
            raise UserError(f"ambiguous: {side.name} has two rows for sample {row.sample}: {_advice(side, known, row)}")
    return placed


def _advice(side: Side, first: Row, second: Row) -> str:
    columns = [name for name in CELL if getattr(first, name) != getattr(second, name)]
    rows = (first, second)
    if columns:
        words = [",".join(f"{name}={shown(getattr(row, name))}" for name in columns) for row in rows]
    elif first.cell == second.cell:
        return f"cell {first.cell} was recorded twice; remove one of the two"
    else:
        told = [flat(side.describe(row.cell)) for row in rows]
        names = sorted(differences(told))[:_LISTED]
        words = [",".join(f"{name}={shown(known.get(name))}" for name in names if "." in name) for known in told]
        words = words if all(words) and words[0] != words[1] else [f"cell={row.cell}" for row in rows]
    return f"{_words(first)}; add {_or(words)} to it"


def _matches(
    left: Mapping[tuple, dict[int, Row]], right: Mapping[tuple, dict[int, Row]], names: list[str]
) -> list[Match]:
    """Sorted by key, so that the same rows in any order and from either side give the same lines."""
    found = []
    order = {name: i for i, name in enumerate(("model", "task", "context_length", *CELL[1:], "seed"))}
    columns = sorted(range(len(names)), key=lambda i: order.get(names[i], len(order)))
    for key in sorted({*left, *right}, key=lambda key: [_sortable(key[i]) for i in columns]):
        a, b = left.get(key, {}), right.get(key, {})
        pairs, both, unpaired = [], [], []
        for sample in sorted({*a, *b}):
            row, other = a.get(sample), b.get(sample)
            problems = [
                Unpaired(sample, name, "absent" if one is None else "failed" if one.error is not None else "no value")
                for name, one in (("A", row), ("B", other))
                if one is None or one.value is None
            ]
            unpaired += problems
            if row is not None and other is not None:
                both.append((row, other))
                if not problems:
                    _check_metric(row, other)
                    pairs.append((row, other))
        found.append(Match({names[i]: key[i] for i in columns}, tuple(pairs), tuple(unpaired), tuple(both)))
    return found


def _check_metric(a: Row, b: Row) -> None:
    if a.metric != b.metric:
        raise UserError(
            f"task {a.task} was judged by {a.metric} on one side and by {b.metric} on the other: their values cannot "
            "be compared; run one of them again with the same task.scorer"
        )


def _sortable(value: Any) -> tuple:
    if value is None:
        return (0, 0.0, "")
    try:
        return (1, float(value), str(value))
    except (TypeError, ValueError):
        return (2, 0.0, str(value))


def shown(value: Any) -> str:
    """A value as it is asked for on the command line."""
    if value is None:
        return "null"
    return str(value).lower() if isinstance(value, bool) else str(value)


def _words(row: Row) -> str:
    values = (row.task, row.context_length, row.policy, row.score, row.budget)
    return " ".join(shown(value) for value in values if value is not None)


def _some(texts: Sequence[str]) -> str:
    return ", ".join(texts[:_LISTED]) + (f" and {len(texts) - _LISTED} more" if len(texts) > _LISTED else "")


def _or(words: Iterable[str]) -> str:
    words = list(words)
    return " or ".join(words[:_LISTED]) + (" or ..." if len(words) > _LISTED else "")


def counted(unpaired: Sequence[Unpaired]) -> dict[tuple[str, str], list[int]]:
    """(side, reason) -> samples, in the order of first appearance."""
    samples: dict[tuple[str, str], list[int]] = {}
    for one in unpaired:
        samples.setdefault((one.side, one.reason), []).append(one.sample)
    return samples


Warn = Callable[[str], None]


def sides(words: Sequence[str], results: str | None, warn: Warn) -> tuple[Side, Side]:
    """Both sides with their rows. ``results``: the folder of two selections, None where it was not named.

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
        folder = results or "results/runs"
        first, second = (side(text, folder, text, warn) for text in selections)
        return first, second
    asked = selections if len(selections) == 2 else (selections or [""]) * 2
    first, second = (
        side(f"{folder} {text}".strip(), folder, text, warn) for folder, text in zip(folders, asked, strict=True)
    )
    return first, second


def side(name: str, folder: str, selection: str, warn: Warn) -> Side:
    """What a selection selects of a folder. Raises what `sides` raises."""
    where: Where = conditions(selection)
    try:
        rows = load(folder, warn, where)
    except NothingSelected as error:
        raise NothingSelected(f"{name}: {error}") from None
    return Side(name, rows, folder, describer(folder))
