"""The gate: whether the current run is as good as the baseline, and the same experiment.

Rows are paired cell by cell and sample by sample. There are six checks; the middle four compare one row with its
baseline:

present     every row of the baseline that has a value has one in the current run, and every value a baseline
prompts     the prompt is the same (prompt_sha256)
tokens      it has as many tokens (prompt_tokens)
kept sets   the same KV pairs were kept (kept_sha256)
bytes       the cache holds no more than the baseline's did for the KV pairs it keeps
regression  no cell, and not all cells together, became worse (`kvbench.report.compare.losses`)

A check that finds something fails. A check that could not have found anything leaves the gate inconclusive: rows that
the baseline lacks, and losses that so few prompts would not show. `kvbench.report.compare.gate_formats` writes a gate.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from kvbench.records import Row
from kvbench.report.compare.compare import settings_that_differ
from kvbench.report.compare.losses import (
    ALARM,
    MIN_EFFECT,
    Effects,
    LossTest,
    is_tested,
    large_losses,
    loss_tests,
)
from kvbench.report.compare.paired_rows import Match, Side, counted, pair
from kvbench.report.selection import as_typed
from kvbench.report.stats.paired_tests import ALPHA
from kvbench.report.stats.verdicts import INCONCLUSIVE
from kvbench.support.errors import UserError
from kvbench.support.grouped import grouped
from kvbench.support.quantity import count_noun, numbered, size

CHECKS = ("present", "prompts", "tokens", "kept sets", "bytes", "regression")
PASSED, FAILED = "passed", "failed"


@dataclass(frozen=True)
class Finding:
    """A problem, or a blind spot, in one cell, a group of cells or all cells together, and for which samples."""

    check: str
    where: str
    samples: tuple[int, ...]
    text: str

    @property
    def message(self) -> str:
        """The text and the samples."""
        return f"{self.text}{_named(self.samples)}"

    def __str__(self) -> str:
        return f"{self.where}: {self.message}"


@dataclass(frozen=True)
class Gate:
    """``cells``: all that the baseline or the run has. ``groups``: the test in which a cell stands, if not its own.

    ``checked``: for every check, the cells in which it had something to compare. ``findings`` make the gate fail,
    ``undecided`` leave it undecided. ``without_baseline``: rows of the run for which the baseline has no value.
    ``timed``: cells of seconds, which no test judges. ``allows``: whether an undecided gate is accepted.
    """

    baseline: str
    current: str
    cells: tuple[str, ...]
    groups: Mapping[str, str]
    checked: Mapping[str, tuple[str, ...]]
    tests: tuple[LossTest, ...]
    pooled: LossTest | None
    findings: tuple[Finding, ...]
    undecided: tuple[Finding, ...]
    without_baseline: int
    timed: int
    notes: tuple[str, ...]
    alpha: float
    allows: bool = False

    @property
    def verdict(self) -> str:
        """``PASSED``, ``FAILED`` or ``INCONCLUSIVE``."""
        return FAILED if self.findings else INCONCLUSIVE if self.undecided else PASSED

    @property
    def is_accepted(self) -> bool:
        """Whether the run may go on: it passed, or is undecided and that is allowed."""
        return self.verdict == PASSED or (self.verdict == INCONCLUSIVE and self.allows)

    def verdict_of(self, where: str) -> str:
        """Return the verdict on one cell, one group with its cells, or "all cells"."""
        places = {where, self.groups.get(where, where)}
        places |= {cell for cell, group in self.groups.items() if group == where}
        if any(finding.where in places for finding in self.findings):
            return FAILED
        return INCONCLUSIVE if any(finding.where in places for finding in self.undecided) else PASSED

    @property
    def all_tests(self) -> tuple[LossTest, ...]:
        """The tests, with the test of all cells first."""
        return (*([self.pooled] if self.pooled else []), *self.tests)


def check(
    baseline: Side,
    current: Side,
    alpha: float = ALPHA,
    kept: str = "fail",
    *,
    min_effect: Effects = MIN_EFFECT,
    alarm: Effects = ALARM,
    by: Sequence[str] = (),
    allows: bool = False,
) -> Gate:
    """Check a current run against a baseline, each of which has rows.

    ``alpha``: the chance that a run in which nothing became worse fails by a test. ``kept``: whether changed kept sets
    "fail" or only deserve a "note" (another machine or dtype, whose noise moves them). ``min_effect``: losses that a
    test must be able to find. ``alarm``: losses that fail whatever their test says. ``by``: columns; cells with the
    same values in them are one test.

    Raises UserError as `kvbench.report.compare.paired_rows.pair` does, and for an unknown column.
    """
    if kept not in ("fail", "note"):
        raise UserError(f"kept={kept}: allowed: kept=fail, kept=note")
    pairing = pair(baseline, current, strict=True)
    names = _names(pairing.matches)
    cells = list(zip(names, pairing.matches, strict=True))
    groups = _groups(pairing.matches, names, by)
    findings: list[Finding] = []
    undecided: list[Finding] = []
    notes: list[str] = []
    without_baseline = 0
    for where, match in cells:
        lost, new, gone = _presence(match, where)
        findings += lost
        undecided += new
        notes += gone
        without_baseline += sum(len(finding.samples) for finding in new)
        if not (match.rows or lost or new):
            undecided.append(Finding("present", where, (), "no row has a value on both sides"))
        for name in _COLUMNS:
            if changed := [(row, other) for row, other in match.both if _fails(name, row, other)]:
                samples = tuple(other.sample for _, other in changed)
                finding = Finding(name, where, samples, _describe_change(name, changed, len(match.both)))
                if name == "kept sets" and kept == "note":
                    notes.append(f"{name}: {finding}")
                else:
                    findings.append(finding)
    by_test = grouped(cells, lambda cell: groups.get(cell[0], cell[0]))
    members = [(where, [match for _, match in tested]) for where, tested in by_test.items()]
    tests, pooled = loss_tests(members, alpha, min_effect, alarm)
    for test in [*tests, *([pooled] if pooled else [])]:
        if test.is_worse or test.is_large:
            findings.append(Finding("regression", test.where, test.lost, _loss(test)))
        elif test.is_undecided:
            undecided.append(Finding("regression", test.where, (), _blind(test)))
    if groups:
        failing = {finding.where for finding in findings}
        findings += [
            Finding("regression", test.where, test.lost, _loss(test))
            for test in large_losses(cells, alpha, alarm)
            if not {test.where, groups[test.where]} & failing
        ]
    rows = [row for match in pairing.matches for row, _ in match.both if row.error is None]
    for name in _COLUMNS.values():
        if count := sum(getattr(row, name) is None for row in rows):
            notes.append(f"not checked: {count} rows of the baseline have no {name}")
    if timed := sum(bool(match.rows) and not is_tested(match) for match in pairing.matches):
        notes.append(
            f"not tested: {count_noun(timed, 'cell')} of seconds, which vary from run to run: compare several runs"
        )
    notes += settings_that_differ(pairing, baseline, current, "baseline", "current run")
    return Gate(
        baseline=baseline.name,
        current=current.name,
        cells=tuple(names),
        groups=groups,
        checked={name: tuple(where for where, match in cells if _applies(name, match)) for name in CHECKS},
        tests=tuple(tests),
        pooled=pooled,
        findings=tuple(sorted(findings, key=lambda finding: CHECKS.index(finding.check))),
        undecided=tuple(sorted(undecided, key=lambda finding: CHECKS.index(finding.check))),
        without_baseline=without_baseline,
        timed=timed,
        notes=tuple(notes),
        alpha=alpha,
        allows=allows,
    )


def _named(samples: Sequence[int]) -> str:
    return f" ({numbered(samples)})" if samples else ""


def _names(matches: Sequence[Match]) -> list[str]:
    """Task, length, policy, score and budget of every cell, and what else tells them apart."""
    always = ("task", "context_length", "policy", "score", "budget")
    keys = list(matches[0].key)
    varying = [name for name in keys if len({repr(match.key[name]) for match in matches}) > 1 and name not in always]
    names = []
    for match in matches:
        core = [as_typed(match.key[name]) for name in always if match.key.get(name) is not None]
        names.append(" ".join([*core, *(f"{name}={as_typed(match.key[name])}" for name in varying)]))
    return names


def _groups(matches: Sequence[Match], names: Sequence[str], by: Sequence[str]) -> dict[str, str]:
    """Return the name of each cell's group: its values of these columns."""
    columns = list(matches[0].key)
    if unknown := [name for name in by if name not in columns]:
        raise UserError(f"by={','.join(by)}: cells have no column {unknown[0]!r}; allowed: {', '.join(columns)}")
    values = [[as_typed(match.key[column]) for column in by if match.key[column] is not None] for match in matches]
    return {name: " ".join(texts) for name, texts in zip(names, values, strict=True)} if by else {}


def _presence(match: Match, where: str) -> tuple[list[Finding], list[Finding], list[str]]:
    """Return what the run lost of the baseline, what the baseline lacks of the run, and a note on what both lack."""
    groups = counted(match.unpaired)
    lacking = {name: {sample for (side, _), each in groups.items() if side == name for sample in each} for name in "AB"}
    lost: list[Finding] = []
    new: list[Finding] = []
    notes = []
    for (side, reason), samples in groups.items():
        if side == "B":
            of_run = tuple(sample for sample in samples if sample not in lacking["A"])
            if of_run:
                lost.append(Finding("present", where, of_run, _lost_text(match, reason, of_run)))
            continue
        of_baseline = tuple(sample for sample in samples if reason == "absent" or sample not in lacking["B"])
        if of_baseline:
            count = count_noun(len(of_baseline), "row")
            if reason != "absent":
                text = f"{count} {_GONE[reason]}"
            else:
                text = f"no baseline of {count}" if match.both else f"the baseline has no such cell, {count}"
            new.append(Finding("present", where, of_baseline, text))
        both = [sample for sample in samples if sample in lacking["B"]]
        notes += [f"{_GONE[reason]}, as now: {where}{_named(both)}"] if both and reason in _GONE else []
    return lost, new, notes


def _lost_text(match: Match, reason: str, samples: Sequence[int]) -> str:
    count = count_noun(len(samples), "row")
    if reason == "absent":
        return f"{count} missing" if match.both else f"the cell is missing, {count}"
    row = next(other for _, other in match.both if other.sample == samples[0])
    return f"{count} failed: {' '.join(row.error.split())[:200]}" if row.error else f"{count} without a value"


def _loss(test: LossTest) -> str:
    before, after, change = test.figures
    points = " points" if test.rate else ""
    pairs = f"n {test.n}" if test.n == test.prompts else f"n {test.n} over {count_noun(test.prompts, 'prompt')}"
    p = f"one-sided p {test.p:.2g}, threshold {test.threshold:.2g}"
    size = f"; more than {test.amount(test.alarm)}: an alarm whatever p is" if test.is_large else ""
    return f"worse: {before} -> {after} ({change}{points}, {pairs}, {p}{size})"


def _blind(test: LossTest) -> str:
    """Return which loss its prompts could not show."""
    prompts = count_noun(test.prompts, "independent prompt")
    if test.smallest is None:
        return f"{prompts} cannot show any loss"
    return f"{prompts} show no loss below {test.amount(test.smallest)}, asked for {test.amount(test.min_effect)}"


_GONE = {"failed": "failed in the baseline", "no value": "without a value in the baseline"}

_COLUMNS = {
    "prompts": "prompt_sha256",
    "tokens": "prompt_tokens",
    "kept sets": "kept_sha256",
    "bytes": "cache_bytes",
}
"""The column that a check compares."""


def _fails(name: str, a: Row, b: Row) -> bool:
    """Return whether a row that did not fail has another value than its baseline, or none any more.

    Bytes fail above those that the baseline held; if the current run keeps fewer KV pairs (``full_cache_bytes`` x
    ``kept_fraction``), in proportion to them. So keeping more pairs fails, keeping them in a wider type fails, and
    keeping fewer without freeing their memory fails too.
    """
    before, after = getattr(a, _COLUMNS[name]), getattr(b, _COLUMNS[name])
    if name != "bytes" or None in (before, after):
        return b.error is None and before is not None and before != after
    allowed = float(before)
    if None not in (a.full_cache_bytes, a.kept_fraction, b.full_cache_bytes, b.kept_fraction):
        pair_bytes = [float(row.full_cache_bytes or 0) * float(row.kept_fraction or 0) for row in (a, b)]
        if 0 < pair_bytes[1] < pair_bytes[0]:
            allowed *= pair_bytes[1] / pair_bytes[0]
    return b.error is None and after > allowed * (1 + 1e-6)


def _applies(name: str, match: Match) -> bool:
    """Return whether a check has anything to compare in a cell."""
    if name not in _COLUMNS:
        return name == "present" or is_tested(match)
    return any(b.error is None and getattr(a, _COLUMNS[name]) is not None for a, b in match.both)


def _describe_change(name: str, changed: Sequence[tuple[Row, Row]], n: int) -> str:
    """Return the text about the rows of a cell that fail a check, of ``n`` that were compared."""
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
