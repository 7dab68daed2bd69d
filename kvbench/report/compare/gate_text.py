"""A gate in words: for a terminal, as Markdown summary, as annotations of GitHub."""

from collections.abc import Iterator, Sequence
from dataclasses import asdict, replace
from typing import Any

from kvbench.report.compare.gate import CHECKS, Finding, Gate, Test
from kvbench.report.tables.grid import escaped, markdown_line
from kvbench.support.printable import printable

ANNOTATED = 10  # what GitHub shows of one step
_LISTED = 40


def text(gate: Gate) -> str:
    """What failed and where, what was checked, and the notes."""
    out = [_verdict(gate)]
    width = max(map(len, CHECKS))
    out += [f"  {finding.check:{width}}  {finding}" for finding in folded(gate.findings)]
    told = {finding.check for finding in gate.findings} | {note.partition(":")[0] for note in gate.notes}
    passed = [name for name in CHECKS if name not in told and gate.checked[name]]
    if passed:
        out.append(f"  in order: {', '.join(passed)}")
    if gate.pooled is not None:
        out.append(f"  all cells: {_means(gate.pooled)}")
    out += [f"  {note}" for note in gate.notes]
    return "\n".join(map(printable, out)) + "\n"


def markdown(gate: Gate) -> str:
    """A summary with a table of findings and one of tests, worst first."""
    out = [f"## {escaped(_verdict(gate))}", ""]
    found = folded(gate.findings)
    if found:
        out += [markdown_line(["check", "where", "what"]), markdown_line([":--"] * 3)]
        for finding in found[:_LISTED]:
            what = f"{finding}"[len(finding.where) + 2 :]
            out.append(markdown_line([finding.check, escaped(finding.where), escaped(what)]))
        if len(found) > _LISTED:
            out += ["", f"and {len(found) - _LISTED} more findings"]
        out.append("")
    tests = [*([gate.pooled] if gate.pooled else []), *sorted(gate.tests, key=lambda test: test.p)]
    if tests:
        out += [markdown_line(["cell", "n", "baseline", "current", "change", "one-sided p", ""])]
        out.append(markdown_line([":--", *["--:"] * 5, ":--"]))
        for test in tests[:_LISTED]:
            before, after, change = _figures(test)
            row = [escaped(test.where), str(test.n), before, after, change, f"{test.p:.2g}"]
            out.append(markdown_line([*row, "**worse**" if test.worse else ""]))
        if len(tests) > _LISTED:
            out += ["", f"and {len(tests) - _LISTED} more cells with larger p"]
        out.append("")
    out += [f"- {escaped(note)}" for note in gate.notes]
    return "\n".join(out).rstrip() + "\n"


def annotations(gate: Gate) -> Iterator[str]:
    """Workflow commands: an error a finding, as many as GitHub shows of one step; a notice where all is well."""
    if gate.passed:
        yield f"::notice title=kvbench gate::{_data(_verdict(gate))}"
        return
    found = folded(gate.findings)
    shown = found if len(found) <= ANNOTATED else found[: ANNOTATED - 1]
    for finding in shown:
        yield f"::error title={_property(f'kvbench gate: {finding.check}')}::{_data(str(finding))}"
    if len(shown) < len(found):
        yield f"::error title=kvbench gate::{_data(f'and {len(found) - len(shown)} more: see the log')}"


def folded(findings: Sequence[Finding]) -> list[Finding]:
    """The findings, with those told once that say the same about the same samples of several cells."""
    groups: dict[tuple, list[Finding]] = {}
    for finding in findings:
        groups.setdefault((finding.check, finding.text, finding.samples), []).append(finding)
    return [
        first if not others else replace(first, where=f"{first.where} and {_count(others)} more")
        for first, *others in groups.values()
    ]


def as_tree(gate: Gate) -> dict[str, Any]:
    """The gate as plain values for JSON."""
    return {"passed": gate.passed} | asdict(gate)


def _verdict(gate: Gate) -> str:
    sides = f"{gate.current} against {gate.baseline}"
    if gate.passed:
        return f"gate passed: {sides}, {_count(gate.cells)}"
    checks = [name for name in CHECKS if any(finding.check == name for finding in gate.findings)]
    return f"gate FAILED ({', '.join(checks)}): {sides}, {_count(gate.cells)}"


def _count(cells: Sequence[object]) -> str:
    return f"{len(cells)} cell{'s' * (len(cells) != 1)}"


def _figures(test: Test) -> tuple[str, str, str]:
    factor, digits = (100.0, 1) if test.rate else (1.0, 4)
    numbers = test.baseline, test.current, test.current - test.baseline
    before, after, change = (
        f"{factor * number:{sign}.{digits}f}" for number, sign in zip(numbers, ("", "", "+"), strict=True)
    )
    return before, after, change


def _means(test: Test) -> str:
    before, after, change = _figures(test)
    return f"{before} -> {after} ({change}{' points' if test.rate else ''}, n {test.n}, one-sided p {test.p:.2g})"


def _data(text: str) -> str:
    return printable(text).replace("%", "%25")


def _property(text: str) -> str:
    return _data(text).replace(":", "%3A").replace(",", "%2C")
