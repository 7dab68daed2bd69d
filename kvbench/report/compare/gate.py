"""The gate: is the current run as good as the baseline, and the same experiment?

Rows are paired cell by cell and sample by sample. Six checks, of which the middle four look
at one row and its baseline (`kvbench.report.compare.gate`):

present     every row of the baseline that has a value has one in the current run
prompts     the text that was asked is the same (prompt_sha256)
tokens      it has as many tokens (prompt_tokens)
kept sets   the same pairs were kept (kept_sha256)
bytes       the cache holds no more than the baseline's did for the pairs it keeps
regression  no cell, and not all cells together, became worse by more than chance (`kvbench.report.stats.corrections`)

Cells and samples that only the current run has are noted.

What the gate checks row by row: the prompt, its tokens, the kept set and the bytes of a row and of its baseline.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from kvbench.records import Row
from kvbench.report.compare.compare import settings_that_differ
from kvbench.report.compare.paired_rows import Match, Side, counted, pair, shown
from kvbench.report.stats.corrections import ALPHA, Regressions, regressions
from kvbench.report.stats.paired import Paired, paired
from kvbench.support.errors import UserError
from kvbench.support.quantity import size

CHECKS = ("present", "prompts", "tokens", "kept sets", "bytes", "regression")
_KEY = ("model", "task", "context_length", "policy", "score", "budget", "variant", "layout", "schedule", "seed")
_LISTED = 5


@dataclass(frozen=True)
class Finding:
    """What is wrong, in one cell or (``where`` is "all cells") in all of them together, and for which samples."""

    check: str
    where: str
    samples: tuple[int, ...]
    text: str

    def __str__(self) -> str:
        return f"{self.where}: {self.text}{named(self.samples)}"


@dataclass(frozen=True)
class Test:
    """One test of the check for regressions. ``p`` is one-sided; means in the metric's own unit."""

    where: str
    n: int
    baseline: float
    current: float
    rate: bool
    p: float
    worse: bool


@dataclass(frozen=True)
class Gate:
    """What was compared, checked and found.

    ``cells`` are all cells of the baseline, ``checked`` for every check those in which it had something to look at.
    """

    baseline: str
    current: str
    cells: tuple[str, ...]
    checked: Mapping[str, tuple[str, ...]]
    tests: tuple[Test, ...]
    pooled: Test | None
    findings: tuple[Finding, ...]
    notes: tuple[str, ...]
    alpha: float

    @property
    def passed(self) -> bool:
        """Whether nothing was found."""
        return not self.findings


def check(baseline: Side, current: Side, alpha: float = ALPHA, kept: str = "fail") -> Gate:
    """Check a current run against a baseline, each of which has rows.

    ``alpha``: the chance that a run in which nothing became worse fails for a regression. ``kept``: whether changed
    kept sets "fail" or are worth a "note" (another machine or dtype, whose noise moves them).

    Raises ValueError where rows are ambiguous (`kvbench.report.compare.paired_rows.pair`) and for another value of
    `kept`.
    """
    if kept not in ("fail", "note"):
        raise UserError(f"kept={kept}: choose kept=fail or kept=note")
    found = pair(baseline, current, strict=True)
    names = _names(found.matches)
    findings: list[Finding] = []
    notes: list[str] = []
    expected = []
    checked: dict[str, list[str]] = {name: [] for name in CHECKS}
    for match, where in zip(found.matches, names, strict=True):
        if all(one.side == "A" and one.reason == "absent" for one in match.unpaired) and not match.both:
            notes.append(f"new: {where} ({len(match.unpaired)} samples), not in the baseline")
            continue
        expected.append(where)
        for name in CHECKS:
            if looked_at(name, match):
                checked[name].append(where)
        findings += _present(match, where, notes)
        for name, differs in BY_ROW.items():
            changed = [(row, other) for row, other in match.both if differs(row, other)]
            if changed:
                text = told(name, changed, len(match.both))
                finding = Finding(name, where, tuple(other.sample for _, other in changed), text)
                if name == "kept sets" and kept == "note":
                    notes.append(f"{name}: {finding}")
                else:
                    findings.append(finding)
    tests, pooled, worse = _regressions(found.matches, names, alpha)
    findings += worse
    notes += not_recorded(found.matches)
    notes += settings_that_differ(found, baseline, current, "baseline", "current run")
    findings.sort(key=lambda finding: CHECKS.index(finding.check))
    return Gate(
        baseline=baseline.name,
        current=current.name,
        cells=tuple(expected),
        checked={name: tuple(cells) for name, cells in checked.items()},
        tests=tuple(tests),
        pooled=pooled,
        findings=tuple(findings),
        notes=tuple(notes),
        alpha=alpha,
    )


def named(samples: Sequence[int]) -> str:
    """`` (samples 1, 4, 7, ...)``."""
    if not samples:
        return ""
    listed = ", ".join(map(str, samples[:_LISTED])) + (", ..." if len(samples) > _LISTED else "")
    return f" (sample{'s' * (len(samples) != 1)} {listed})"


def _names(matches: Sequence[Match]) -> list[str]:
    """Task, length, policy, score and budget of every cell, and what else tells them apart."""
    always = ("task", "context_length", "policy", "score", "budget")
    keys = list(matches[0].key)
    varying = [name for name in keys if len({repr(match.key[name]) for match in matches}) > 1 and name not in always]
    names = []
    for match in matches:
        core = [shown(match.key[name]) for name in always if match.key.get(name) is not None]
        names.append(" ".join([*core, *(f"{name}={shown(match.key[name])}" for name in varying)]))
    return names


def _present(match: Match, where: str, notes: list[str]) -> list[Finding]:
    groups = counted(match.unpaired)
    bad = {sample for (side, _), samples in groups.items() if side == "A" for sample in samples}
    findings = []
    for (side, reason), samples in groups.items():
        if side == "A":
            gone = {"absent": "new", "failed": "failed in the baseline", "no value": "without a value in the baseline"}
            notes.append(f"{gone[reason]}: {where}{named(samples)}")
            continue
        lost = tuple(sample for sample in samples if sample not in bad)
        if not lost:
            continue
        if reason == "absent" and not match.both:
            findings.append(Finding("present", where, lost, f"the cell is missing, {_rows(lost)}"))
        elif reason == "absent":
            findings.append(Finding("present", where, lost, f"{_rows(lost)} missing"))
        else:
            row = next(other for _, other in match.both if other.sample == lost[0])
            why = f"failed: {' '.join(row.error.split())[:200]}" if row.error else "without a value"
            findings.append(Finding("present", where, lost, f"{_rows(lost)} {why}"))
    return findings


def _rows(samples: Sequence[int]) -> str:
    return f"{len(samples)} row{'s' * (len(samples) != 1)}"


def _regressions(
    matches: Sequence[Match], names: Sequence[str], alpha: float
) -> tuple[list[Test], Test | None, list[Finding]]:
    tested = [(match, where) for match, where in zip(matches, names, strict=True) if match.pairs]
    cells = [paired(match.pairs) for match, _ in tested]
    rates = [match.pairs for (match, _), pairs in zip(tested, cells, strict=True) if pairs.rate]
    together = paired([pair for pairs in rates for pair in pairs]) if len(rates) > 1 else None
    found = regressions(cells, together, alpha)
    tests = [
        _test(where, pairs, p, worse)
        for (_, where), pairs, p, worse in zip(tested, cells, found.cells, found.worse, strict=True)
    ]
    findings = [
        Finding("regression", test.where, _losers(match), _loss(test, found))
        for (match, _), test in zip(tested, tests, strict=True)
        if test.worse
    ]
    pooled = None
    if together is not None and found.pooled is not None:
        pooled = _test("all cells", together, found.pooled, found.pooled_worse)
        if pooled.worse:
            findings.append(Finding("regression", "all cells", (), _loss(pooled, found)))
    return tests, pooled, findings


def _test(where: str, pairs: Paired, p: float, worse: bool) -> Test:
    return Test(where, pairs.n, float(pairs.a.mean()), float(pairs.b.mean()), pairs.rate, p, worse)


def _losers(match: Match) -> tuple[int, ...]:
    gains = paired(match.pairs).gain().difference
    return tuple(row.sample for (row, _), gain in zip(match.pairs, gains, strict=True) if gain < 0)


def _loss(test: Test, found: Regressions) -> str:
    factor, unit, digits = (100, " points", 1) if test.rate else (1, "", 4)
    means = f"{factor * test.baseline:.{digits}f} -> {factor * test.current:.{digits}f}"
    change = f"{factor * (test.current - test.baseline):+.{digits}f}{unit}"
    limit = found.pooled_threshold if test.where == "all cells" else found.threshold
    return f"worse: {means} ({change}, n {test.n}, one-sided p {test.p:.2g}, held against {limit:.2g})"


_COLUMNS = {
    "prompts": "prompt_sha256",
    "tokens": "prompt_tokens",
    "kept sets": "kept_sha256",
    "bytes": "cache_bytes",
}
"""The column that a check looks at."""


def _differ(a: Row, b: Row, name: str) -> bool:
    """Whether a row that did not fail has another value than its baseline, or none any more."""
    return b.error is None and getattr(a, name) is not None and getattr(a, name) != getattr(b, name)


def _above(a: Row, b: Row) -> bool:
    """Whether more bytes are held than the budget of the baseline allows.

    The budget in bytes is what the baseline held; where the current run keeps fewer pairs (``full_cache_bytes`` x
    ``kept_fraction``), it shrinks with them. So keeping more pairs fails, keeping them in a wider type fails, and
    keeping fewer without letting go of their memory fails too.
    """
    if b.error is not None or a.cache_bytes is None:
        return False
    if b.cache_bytes is None:
        return True
    allowed = float(a.cache_bytes)
    if None not in (a.full_cache_bytes, a.kept_fraction, b.full_cache_bytes, b.kept_fraction):
        needed = [float(row.full_cache_bytes or 0) * float(row.kept_fraction or 0) for row in (a, b)]
        if 0 < needed[1] < needed[0]:
            allowed *= needed[1] / needed[0]
    return b.cache_bytes > allowed * (1 + 1e-6)


BY_ROW: Mapping[str, Callable[[Row, Row], bool]] = {
    **{name: partial(_differ, name=column) for name, column in _COLUMNS.items() if name != "bytes"},
    "bytes": _above,
}
"""For every check whether a row of the current run fails it, given that of the baseline."""


def looked_at(name: str, match: Match) -> bool:
    """Whether a check has anything to look at in a cell."""
    if name not in _COLUMNS:
        return name == "present" or bool(match.pairs)
    return any(b.error is None and getattr(a, _COLUMNS[name]) is not None for a, b in match.both)


def told(name: str, changed: Sequence[tuple[Row, Row]], n: int) -> str:
    """What is said of the rows of a cell that fail a check, of ``n`` that were compared."""
    a, b = changed[0]
    before, after = (getattr(row, _COLUMNS[name]) for row in (a, b))
    if after is None:
        return f"{len(changed)} of {n} rows no longer record {_COLUMNS[name]}"
    if name in ("tokens", "bytes"):
        if name == "bytes":
            short = [size([count]) for count in (before, after)]
            before, after = short if short[0] != short[1] else [f"{count} B" for count in (before, after)]
        kept = f" at {100 * (a.kept_fraction or 0):.1f} % -> {100 * (b.kept_fraction or 0):.1f} % kept"
        first = f"; first: {before} -> {after}{kept if name == 'bytes' else ''}"
        return f"{name} of {len(changed)} of {n} rows {'are above budget' if name == 'bytes' else 'changed'}{first}"
    return f"{name} of {len(changed)} of {n} rows changed"


def not_recorded(matches: Sequence[Match]) -> list[str]:
    """Columns that the baseline does not have, so that nothing could be checked."""
    rows = [row for match in matches for row, _ in match.both if row.error is None]
    counts = {name: sum(getattr(row, name) is None for row in rows) for name in _COLUMNS.values()}
    return [f"not checked: {count} rows of the baseline have no {name}" for name, count in counts.items() if count]
