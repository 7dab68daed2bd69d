"""The gate: whether the current run is as good as the baseline, and the same experiment.

Rows are paired cell by cell and sample by sample. There are six checks; the middle four compare one row with its
baseline:

present     every row of the baseline that has a value has one in the current run
prompts     the prompt is the same (prompt_sha256)
tokens      it has as many tokens (prompt_tokens)
kept sets   the same KV pairs were kept (kept_sha256)
bytes       the cache holds no more than the baseline's did for the KV pairs it keeps
regression  no cell, and not all cells together, became worse beyond chance (`kvbench.report.stats.paired_tests`)

Cells and samples that only the current run has become notes. A gate is written as text, as a Markdown summary, as
annotations of GitHub and as JUnit XML.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from kvbench.records import Row
from kvbench.report.compare.compare import settings_that_differ
from kvbench.report.compare.paired_rows import Match, Side, counted, pair
from kvbench.report.junit import Case, Outcome, junit_xml
from kvbench.report.selection import as_typed
from kvbench.report.stats.paired import Paired
from kvbench.report.stats.paired_tests import ALPHA, regressions
from kvbench.report.tables.grid import escaped, markdown_table
from kvbench.support.errors import UserError
from kvbench.support.grouped import grouped
from kvbench.support.quantity import numbered, plural, size
from kvbench.support.text import printable

ANNOTATED = 10  # what GitHub shows of one step
_LISTED = 40  # lines of a table in a summary
CHECKS = ("present", "prompts", "tokens", "kept sets", "bytes", "regression")


@dataclass(frozen=True)
class Finding:
    """What is wrong in one cell, or (``where`` is "all cells") in all of them together, and for which samples."""

    check: str
    where: str
    samples: tuple[int, ...]
    text: str

    @property
    def what(self) -> str:
        """The text and the samples."""
        return f"{self.text}{_named(self.samples)}"

    def __str__(self) -> str:
        return f"{self.where}: {self.what}"


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

    @classmethod
    def of(cls, where: str, paired: Paired, p: float, worse: bool) -> "Test":
        """The result of a test of paired values."""
        return cls(where, paired.n, float(paired.a.mean()), float(paired.b.mean()), paired.rate, p, worse)

    @property
    def figures(self) -> tuple[str, str, str]:
        """Baseline, current run and change as text, rates in points."""
        factor, digits = (100.0, 1) if self.rate else (1.0, 4)
        baseline, current = factor * self.baseline, factor * self.current
        change = factor * (self.current - self.baseline)
        return f"{baseline:.{digits}f}", f"{current:.{digits}f}", f"{change:+.{digits}f}"


@dataclass(frozen=True)
class Gate:
    """``cells``: all of the baseline. ``checked``: for every check, the cells in which it had something to compare."""

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
    kept sets "fail" or only deserve a "note" (another machine or dtype, whose noise moves them).
    """
    if kept not in ("fail", "note"):
        raise UserError(f"kept={kept}: allowed: kept=fail, kept=note")
    pairing = pair(baseline, current, strict=True)
    names = _names(pairing.matches)
    findings: list[Finding] = []
    notes: list[str] = []
    expected: list[tuple[Match, str]] = []
    for match, where in zip(pairing.matches, names, strict=True):
        if not match.both and all((row.side, row.reason) == ("A", "absent") for row in match.unpaired):
            notes.append(f"new: {where} ({len(match.unpaired)} samples), not in the baseline")
            continue
        expected.append((match, where))
        findings += _present(match, where, notes)
        for name in _COLUMNS:
            if changed := [(row, other) for row, other in match.both if _fails(name, row, other)]:
                samples = tuple(other.sample for _, other in changed)
                finding = Finding(name, where, samples, _describe_change(name, changed, len(match.both)))
                if name == "kept sets" and kept == "note":
                    notes.append(f"{name}: {finding}")
                else:
                    findings.append(finding)
    tests, pooled, worse = _regressions(pairing.matches, names, alpha)
    rows = [row for match in pairing.matches for row, _ in match.both if row.error is None]
    for name in _COLUMNS.values():
        if count := sum(getattr(row, name) is None for row in rows):
            notes.append(f"not checked: {count} rows of the baseline have no {name}")
    notes += settings_that_differ(pairing, baseline, current, "baseline", "current run")
    return Gate(
        baseline=baseline.name,
        current=current.name,
        cells=tuple(where for _, where in expected),
        checked={name: tuple(where for match, where in expected if _applies(name, match)) for name in CHECKS},
        tests=tuple(tests),
        pooled=pooled,
        findings=tuple(sorted([*findings, *worse], key=lambda finding: CHECKS.index(finding.check))),
        notes=tuple(notes),
        alpha=alpha,
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


def _present(match: Match, where: str, notes: list[str]) -> list[Finding]:
    groups = counted(match.unpaired)
    bad = {sample for (side, _), samples in groups.items() if side == "A" for sample in samples}
    findings = []
    for (side, reason), samples in groups.items():
        if side == "A":
            gone = {"absent": "new", "failed": "failed in the baseline", "no value": "without a value in the baseline"}
            notes.append(f"{gone[reason]}: {where}{_named(samples)}")
            continue
        lost = tuple(sample for sample in samples if sample not in bad)
        if not lost:
            continue
        count = plural(len(lost), "row")
        if reason == "absent":
            text = f"{count} missing" if match.both else f"the cell is missing, {count}"
        else:
            row = next(other for _, other in match.both if other.sample == lost[0])
            text = f"{count} failed: {' '.join(row.error.split())[:200]}" if row.error else f"{count} without a value"
        findings.append(Finding("present", where, lost, text))
    return findings


def _regressions(
    matches: Sequence[Match], names: Sequence[str], alpha: float
) -> tuple[list[Test], Test | None, list[Finding]]:
    tested = [(match, where, Paired.of(match.rows)) for match, where in zip(matches, names, strict=True) if match.rows]
    rates = [match.rows for match, _, paired in tested if paired.rate]
    together = Paired.of([pair for rows in rates for pair in rows]) if len(rates) > 1 else None
    results = regressions([paired for _, _, paired in tested], together, alpha)
    tests, findings = [], []
    for (match, where, paired), p, worse in zip(tested, results.cells, results.worse, strict=True):
        tests.append(Test.of(where, paired, p, worse))
        if worse:
            losses = paired.gain().difference < 0
            samples = tuple(row.sample for (row, _), is_loss in zip(match.rows, losses, strict=True) if is_loss)
            findings.append(Finding("regression", where, samples, _loss(tests[-1], results.threshold)))
    if together is None or results.pooled is None:
        return tests, None, findings
    pooled = Test.of("all cells", together, results.pooled, results.pooled_worse)
    if pooled.worse:
        findings.append(Finding("regression", "all cells", (), _loss(pooled, results.pooled_threshold)))
    return tests, pooled, findings


def _loss(test: Test, threshold: float) -> str:
    before, after, change = test.figures
    p = f"one-sided p {test.p:.2g}, threshold {threshold:.2g}"
    return f"worse: {before} -> {after} ({change}{' points' if test.rate else ''}, n {test.n}, {p})"


_COLUMNS = {
    "prompts": "prompt_sha256",
    "tokens": "prompt_tokens",
    "kept sets": "kept_sha256",
    "bytes": "cache_bytes",
}
"""The column that a check compares."""


def _fails(name: str, a: Row, b: Row) -> bool:
    """Whether a row that did not fail has another value than its baseline, or none any more.

    Bytes fail above those that the baseline held; if the current run keeps fewer KV pairs (``full_cache_bytes`` x
    ``kept_fraction``), in proportion to them. So keeping more pairs fails, keeping them in a wider type fails, and
    keeping fewer without freeing their memory fails too.
    """
    before, after = getattr(a, _COLUMNS[name]), getattr(b, _COLUMNS[name])
    if name != "bytes" or None in (before, after):
        return b.error is None and before is not None and before != after
    allowed = float(before)
    if None not in (a.full_cache_bytes, a.kept_fraction, b.full_cache_bytes, b.kept_fraction):
        needed = [float(row.full_cache_bytes or 0) * float(row.kept_fraction or 0) for row in (a, b)]
        if 0 < needed[1] < needed[0]:
            allowed *= needed[1] / needed[0]
    return b.error is None and after > allowed * (1 + 1e-6)


def _applies(name: str, match: Match) -> bool:
    """Whether a check has anything to compare in a cell."""
    if name not in _COLUMNS:
        return name == "present" or bool(match.rows)
    return any(b.error is None and getattr(a, _COLUMNS[name]) is not None for a, b in match.both)


def _describe_change(name: str, changed: Sequence[tuple[Row, Row]], n: int) -> str:
    """The text about the rows of a cell that fail a check, of ``n`` that were compared."""
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


def text(gate: Gate) -> str:
    """What failed and where, what was checked, and the notes."""
    lines = [_verdict(gate)]
    width = max(map(len, CHECKS))
    lines += [f"  {finding.check:{width}}  {finding}" for finding in folded(gate.findings)]
    mentioned = {finding.check for finding in gate.findings} | {note.partition(":")[0] for note in gate.notes}
    passed = [name for name in CHECKS if name not in mentioned and gate.checked[name]]
    if passed:
        lines.append(f"  in order: {', '.join(passed)}")
    if test := gate.pooled:
        before, after, change = test.figures
        figures = f"{change}{' points' if test.rate else ''}, n {test.n}, one-sided p {test.p:.2g}"
        lines.append(f"  all cells: {before} -> {after} ({figures})")
    lines += [f"  {note}" for note in gate.notes]
    return "\n".join(map(printable, lines)) + "\n"


def markdown(gate: Gate) -> str:
    """A summary with a table of findings and one of tests, worst first."""
    lines = [f"## {escaped(_verdict(gate))}", ""]
    findings = folded(gate.findings)
    if findings:
        table = [[finding.check, escaped(finding.where), escaped(finding.what)] for finding in findings[:_LISTED]]
        lines += markdown_table(["check", "where", "what"], *table, align="lll")
        lines += ["", f"and {len(findings) - _LISTED} more findings"] if len(findings) > _LISTED else []
        lines.append("")
    tests = [*([gate.pooled] if gate.pooled else []), *sorted(gate.tests, key=lambda test: test.p)]
    if tests:
        table = [
            [escaped(test.where), str(test.n), *test.figures, f"{test.p:.2g}", "**worse**" if test.worse else ""]
            for test in tests[:_LISTED]
        ]
        heads = ["cell", "n", "baseline", "current", "change", "one-sided p", ""]
        lines += markdown_table(heads, *table, align="lrrrrrl")
        lines += ["", f"and {len(tests) - _LISTED} more cells with larger p"] if len(tests) > _LISTED else []
        lines.append("")
    lines += [f"- {escaped(note)}" for note in gate.notes]
    return "\n".join(lines).rstrip() + "\n"


def junit(gate: Gate) -> str:
    """The gate as JUnit XML: one suite per check, one test case per cell."""
    pooled = ["all cells"] if gate.pooled else []
    wheres = {check: [*gate.cells, *(pooled if check == "regression" else [])] for check in CHECKS}
    return junit_xml(
        "kvbench gate", {check: [_case(gate, check, where) for where in wheres[check]] for check in CHECKS}
    )


def _case(gate: Gate, check: str, where: str) -> Case:
    outcomes = []
    for finding in gate.findings:
        if (finding.check, finding.where) == (check, where):
            samples = f"\nsamples: {' '.join(map(str, finding.samples))}" if finding.samples else ""
            outcomes.append(Outcome("failure", finding.text, check, f"{finding}{samples}"))
    if not outcomes and where in gate.cells and where not in gate.checked[check]:
        outcomes.append(Outcome("skipped", "nothing to check"))
    return Case(f"kvbench.gate.{check.replace(' ', '_')}", where, outcomes)


def annotations(gate: Gate) -> Iterator[str]:
    """Workflow commands: one error per finding, as many as GitHub shows of one step; a notice if the gate passed."""
    if gate.passed:
        yield f"::notice title=kvbench gate::{_data(_verdict(gate))}"
        return
    findings = folded(gate.findings)
    shown = findings if len(findings) <= ANNOTATED else findings[: ANNOTATED - 1]
    for finding in shown:
        yield f"::error title=kvbench gate%3A {finding.check}::{_data(str(finding))}"
    if len(shown) < len(findings):
        yield f"::error title=kvbench gate::{_data(f'and {len(findings) - len(shown)} more: see the log')}"


def folded(findings: Sequence[Finding]) -> list[Finding]:
    """The findings; those with the same text about the same samples of several cells become one."""
    groups = grouped(findings, lambda finding: (finding.check, finding.text, finding.samples))
    return [
        first if not others else replace(first, where=f"{first.where} and {plural(len(others), 'cell')} more")
        for first, *others in groups.values()
    ]


def as_tree(gate: Gate) -> dict[str, Any]:
    """The gate as plain values for JSON."""
    return {"passed": gate.passed} | asdict(gate)


def _verdict(gate: Gate) -> str:
    sides = f"{gate.current} against {gate.baseline}"
    if gate.passed:
        return f"gate passed: {sides}, {plural(len(gate.cells), 'cell')}"
    checks = [name for name in CHECKS if any(finding.check == name for finding in gate.findings)]
    return f"gate FAILED ({', '.join(checks)}): {sides}, {plural(len(gate.cells), 'cell')}"


def _data(text: str) -> str:
    return printable(text).replace("%", "%25")
