"""A gate as text, as a Markdown summary, as annotations of GitHub and as JUnit XML."""

from collections.abc import Iterator, Sequence
from dataclasses import asdict, replace
from typing import Any

from kvbench.report.compare.gate import CHECKS, Finding, Gate
from kvbench.report.junit import Case, Outcome, junit_xml
from kvbench.report.tables.grid import escaped, markdown_table
from kvbench.support.quantity import plural
from kvbench.support.text import printable

ANNOTATED = 10  # what GitHub shows of one step
_LISTED = 40


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
    suites = {}
    for check in CHECKS:
        is_pooled = check == "regression" and gate.pooled
        suites[check] = [_case(gate, check, where) for where in (*gate.cells, *(["all cells"] if is_pooled else []))]
    return junit_xml("kvbench gate", suites)


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
    groups: dict[tuple, list[Finding]] = {}
    for finding in findings:
        groups.setdefault((finding.check, finding.text, finding.samples), []).append(finding)
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
