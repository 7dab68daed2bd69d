"""A file of printed means, `means.csv`, as comparisons: every method with its host, the best of a column with the next.

Needed columns are ``COLUMNS``, others may be there (``OPTIONAL``). A line whose host is itself or blank is a host.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from kvbench.extras.audit.pairs import OF_POLICIES, OF_SCORES, Pair
from kvbench.extras.audit.scores import Scores, kind_of_longbench, rows_of_longbench, scores_of
from kvbench.extras.audit.table import NEVER, Compared
from kvbench.support.errors import MissingFile, UserError
from kvbench.support.grouped import grouped
from kvbench.support.text import closest
from kvbench.tasks.csv_rows import csv_rows

COLUMNS = ("method", "host", "task", "mean", "n")
SHARED = ("task", "model", "context_length", "budget")
"""What a method and its host have in common."""
OPTIONAL = ("unit", "scores", "prompts", "contexts", "model", "context_length", "budget", "sd", "decimals")
SCALES = {"percent": 100.0, "rate": 1.0}
EXAMPLE = "method,host,task,mean,n"


@dataclass(frozen=True)
class MeanLine:
    """One line. number: of the line in the file. n: prompts of a task, None if it is not known; tasks: as in `Pair`."""

    number: int
    texts: Mapping[str, str]
    mean: float
    n: int | None
    tasks: int
    unit: str
    half: float
    scores: Scores
    sd: float | None
    texts_behind: int | None

    @property
    def method(self) -> str:
        return self.texts["method"]

    @property
    def host(self) -> str:
        return self.texts["host"] or self.method

    @property
    def place(self) -> dict[str, str]:
        """Place that the line shares with its host."""
        return {key: self.texts.get(key, "") for key in SHARED}

    @property
    def column(self) -> tuple[str, ...]:
        """The same as a key."""
        return tuple(self.place.values())

    @property
    def reads(self) -> str:
        """The name of its prompts: their set, else task and length."""
        return self.texts.get("prompts") or "/".join(
            filter(None, (self.texts["task"], self.texts.get("context_length")))
        )

    @property
    def scale(self) -> float:
        return SCALES.get(self.unit, 1.0)


def comparisons(file: Path) -> tuple[list[Compared], list[Compared], list[str]]:
    """Methods with their hosts, the best of each column with its runner-up, and notes.

    Raises MissingFile without the file, and UserError, naming the line, for whatever cannot be read as printed means.
    """
    lines = _lines(file)
    hosts = {(line.method, line.column): line for line in lines if line.host == line.method}
    pairs = []
    for line in lines:
        if line.host == line.method:
            continue
        host = hosts.get((line.host, line.column))
        if host is None:
            place = ", ".join(filter(None, line.column))
            raise UserError(
                f"{file}, line {line.number}: host {line.host} has no line of its own for {place}: "
                "add one whose host is blank"
            )
        pairs.append(_compared(file, host, line))
    if not pairs and len(lines) < 2:
        raise UserError(f"{file} has nothing to compare: a method needs a line of its host for the same task")
    bests = []
    for members in grouped(lines, lambda line: line.column).values():
        ranked = sorted(members, key=lambda line: -line.mean)
        if len(ranked) > 2 and ranked[0].unit in SCALES:
            bests.append(_compared(file, ranked[1], ranked[0]))
    if not pairs:
        raise UserError(f"{file} has no method with a host: name in the column host what a method is compared with")
    return pairs, bests, _copies(lines)


def _compared(file: Path, a: MeanLine, b: MeanLine) -> Compared:
    for name in ("n", "tasks", "unit", "scores", "texts_behind", "reads"):
        if getattr(a, name) != getattr(b, name):
            raise UserError(
                f"{file}, lines {a.number} and {b.number} differ in {name.replace('texts_behind', 'contexts')}: "
                f"{getattr(a, name)} and {getattr(b, name)}; only means over the same prompts are compared"
            )
    spread = None if a.sd is None or b.sd is None else (a.sd / a.scale, b.sd / b.scale)
    pair = Pair(
        a=a.mean / a.scale,
        b=b.mean / b.scale,
        n=b.n or NEVER,
        half=b.half / b.scale,
        parts=None if spread is not None or b.unit not in SCALES else b.scores.parts,
        factor=b.scores.factor,
        rho=OF_SCORES if a.host == b.host else OF_POLICIES,
        texts=b.texts_behind,
        tasks=b.tasks,
        prompts=b.reads,
        spread=spread,
        bounded=b.unit in SCALES,
    )
    place = {key: value for key, value in b.place.items() if value}
    reason = "" if pair.bounded or spread else f"{b.unit} has no bounds: it needs sd"
    return Compared(
        b.method, a.method, place, pair, b.n is not None, "as the file says" if b.n else "", b.scale, reason
    )


def _copies(lines: Sequence[MeanLine]) -> list[str]:
    """Methods that have the means of another one throughout, in three places or more."""
    means = grouped(lines, lambda line: line.method if line.host == line.method else f"{line.method} on {line.host}")
    of = {name: tuple((line.column, line.mean) for line in members) for name, members in means.items()}
    alike = [names for names in grouped(of, lambda name: of[name]).values() if len(names) > 1 and len(of[names[0]]) > 2]
    return [f"{' and '.join(names)} have the same means throughout: one of them is a copy" for names in alike]


def _lines(file: Path) -> list[MeanLine]:
    if not file.is_file():
        raise MissingFile(f"{file}: no such file; kvbench audit reads a CSV file with the columns {EXAMPLE}")
    try:
        rows = [*csv_rows(file)]
    except UserError as error:
        raise UserError(f"{file}: {error}") from None
    names = list(rows[0]) if rows else []
    if not rows:
        raise UserError(f"{file} has no line below its header: one line is one printed mean, {EXAMPLE}")
    if missing := [name for name in COLUMNS if name not in names]:
        raise UserError(f"{file} lacks the column {', '.join(missing)}: needed: {EXAMPLE}")
    if unknown := [name for name in names if name not in (*COLUMNS, *OPTIONAL)]:
        raise UserError(f"{file} has the column {unknown[0]}: {closest(unknown[0], (*COLUMNS, *OPTIONAL))}")
    return _with_units(file, [{name: value.strip() for name, value in row.items()} for row in rows])


def _with_units(file: Path, rows: Sequence[dict[str, str]]) -> list[MeanLine]:
    """Return the lines with units and digits. Where no unit stands, means are rates if all of them are at most 1.

    The digits are the most that a mean of the task has: 0.33 beside 0.332 is 0.330.
    """
    means = [_number(file, at, row, "mean") for at, row in enumerate(rows, 2)]
    bare = [mean for mean, row in zip(means, rows, strict=True) if not row.get("unit")]
    usual = "rate" if all(mean <= 1 for mean in bare) else "percent"
    units = [row.get("unit") or usual for row in rows]
    digits: dict[str, int] = {}
    for row in rows:
        digits[row["task"]] = max(digits.get(row["task"], 0), len(row["mean"].partition(".")[2]))
    lines = [_line(file, *values, digits) for values in zip(range(2, len(rows) + 2), rows, means, units, strict=True)]
    seen: dict[tuple[str, ...], int] = {}
    for line in lines:
        key = line.method, line.host, *line.column
        if key in seen:
            place = ", ".join(dict.fromkeys(filter(None, key)))
            raise UserError(f"{file}, lines {seen[key]} and {line.number} are both of {place}: leave one out")
        seen[key] = line.number
    return lines


def _line(file: Path, at: int, row: dict[str, str], mean: float, unit: str, digits: Mapping[str, int]) -> MeanLine:
    if not row["method"] or not row["task"]:
        raise UserError(f"{file}, line {at}: method and task cannot be blank")
    scale = SCALES.get(unit)
    if scale is not None and not 0 <= mean <= scale:
        fix = "; unit=percent is for 0 to 100" if unit == "rate" else ""
        raise UserError(f"{file}, line {at}: mean={row['mean']} is no {unit}: allowed: 0 to {scale:g}{fix}")
    n, tasks = _size(file, at, row["n"])
    sd = None if not row.get("sd") else _number(file, at, row, "sd")
    if sd is not None and sd < 0:
        raise UserError(f"{file}, line {at}: sd={row['sd']}: allowed: 0 or more, in the unit of the mean")
    decimals = digits[row["task"]] if not row.get("decimals") else _whole(file, at, row, "decimals", 0)
    texts = _whole(file, at, row, "contexts", 1) if row.get("contexts") else _texts_of(row["task"], n)
    if texts is not None and n is not None and texts > n:
        raise UserError(f"{file}, line {at}: contexts={texts} of n={n}: allowed: at most one text for each prompt")
    half = 0.5 * 10.0**-decimals
    return MeanLine(at, row, mean, n, tasks, unit, half, _scores(file, at, row), sd, texts)


def _texts_of(task: str, n: int | None) -> int | None:
    """Distinct texts of a task of LongBench that is read as a whole."""
    if not task.startswith("longbench/"):
        return None
    rows, texts = rows_of_longbench(task)
    return texts if n == rows else None


def _scores(file: Path, at: int, row: Mapping[str, str]) -> Scores:
    """Return the kind of scores that the line states, else the task's name; else right or wrong."""
    if row.get("scores"):
        try:
            return scores_of(row["scores"])
        except UserError as error:
            raise UserError(f"{file}, line {at}: {error}") from None
    kind = kind_of_longbench(row["task"]) if row["task"].startswith("longbench/") else None
    return scores_of(kind or "binary")


def _number(file: Path, at: int, row: Mapping[str, str], column: str) -> float:
    try:
        value = float(row[column])
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise UserError(f"{file}, line {at}: {column}={row[column]}: allowed: a number")
    return value


def _whole(file: Path, at: int, row: Mapping[str, str], column: str, least: int) -> int:
    text = row[column]
    if not text.isdecimal() or int(text) < least:
        raise UserError(f"{file}, line {at}: {column}={text}: allowed: a whole number, {least} or more")
    return int(text)


def _size(file: Path, at: int, text: str) -> tuple[int | None, int]:
    """n and tasks: `200`, `13x500` for the mean of 13 tasks of 500 prompts, blank if n is not known."""
    tasks, times, n = text.rpartition("x")
    if not text:
        return None, 1
    if not n.isdecimal() or int(n) < 2 or (times and (not tasks.isdecimal() or int(tasks) < 1)):
        raise UserError(
            f"{file}, line {at}: n={text}: allowed: a whole number, 2 or more; 13x500 for a mean of 13 tasks of 500; "
            f"blank if it is not known"
        )
    return int(n), int(tasks or 1)
