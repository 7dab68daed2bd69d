"""A gate as text, as a Markdown summary, as JUnit XML, as annotations of GitHub, and as plain values."""

from collections.abc import Iterator, Sequence
from dataclasses import asdict, replace
from typing import Any

from kvbench.report.compare.gate import CHECKS, FAILED, PASSED, Finding, Gate
from kvbench.report.compare.losses import ALL_CELLS
from kvbench.report.formats.markdown import escaped, markdown_table, table_lines
from kvbench.report.formats.table import Table, TableRow
from kvbench.report.formats.text import plain_lines
from kvbench.report.junit import Case, Outcome, junit_xml
from kvbench.report.stats.power import CORRELATION
from kvbench.report.stats.verdicts import INCONCLUSIVE
from kvbench.support.grouped import grouped
from kvbench.support.quantity import count_noun
from kvbench.support.text import printable

ANNOTATED = 10  # what GitHub shows of one step
_LISTED = 40  # lines of a table
_WORST = (FAILED, INCONCLUSIVE, PASSED)


def text(gate: Gate) -> str:
    """Return the verdict, what failed and what is undecided, a line for every test, and the notes."""
    lines = [headline(gate)]
    width = max(map(len, CHECKS))
    lines += [f"  {finding.check:{width}}  {finding}" for finding in folded(gate.findings)]
    lines += [f"  {finding.check:{width}}  {INCONCLUSIVE}: {finding}" for finding in folded(gate.undecided)]
    mentioned = {finding.check for finding in (*gate.findings, *gate.undecided)}
    mentioned |= {note.partition(":")[0] for note in gate.notes}
    passed = [name for name in CHECKS if name not in mentioned and gate.checked[name]]
    if passed:
        lines.append(f"  in order: {', '.join(passed)}")
    if gate.all_tests:
        lines += ["", *(f"  {line}" for line in plain_lines(_table(gate))), *_more(gate, "  ")]
        lines += ["", *(f"  {line}" for line in _legend(gate))]
    lines += [f"  {note}" for note in gate.notes]
    return "\n".join(map(printable, lines)) + "\n"


def markdown(gate: Gate) -> str:
    """Return a summary with a table of findings and one of tests, worst first."""
    lines = [f"## {escaped(headline(gate))}", ""]
    for findings, prefix in ((folded(gate.findings), ""), (folded(gate.undecided), f"{INCONCLUSIVE}: ")):
        if findings:
            table = [[each.check, escaped(each.where), escaped(prefix + each.message)] for each in findings[:_LISTED]]
            lines += markdown_table(["check", "where", "what"], *table, align="lll")
            lines += ["", f"and {len(findings) - _LISTED} more"] if len(findings) > _LISTED else []
            lines.append("")
    if gate.all_tests:
        lines += [*table_lines(_table(gate)), "", *_more(gate, ""), *(f"- {line}" for line in _legend(gate))]
    lines += [f"- {escaped(note)}" for note in gate.notes]
    return "\n".join(lines).rstrip() + "\n"


def _table(gate: Gate) -> Table:
    """Return all cells, then the tests with the worst verdict and the smallest p first."""
    first = [gate.pooled] if gate.pooled else []
    tests = sorted(gate.tests, key=lambda test: (_WORST.index(gate.verdict_of(test.where)), test.p))
    heads = ["n", "prompts", "baseline", "current", "change", "one-sided p", "shows from", "verdict"]
    lines = []
    for test in [*first, *tests][:_LISTED]:
        smallest = "nothing" if test.smallest is None else test.number(test.smallest)
        numbers = [str(test.n), str(test.prompts), *test.figures, f"{test.p:.2g}", smallest]
        lines.append(TableRow.of([test.where], [*numbers, gate.verdict_of(test.where)]))
    return Table.of(["cell"], heads, lines, align="rrrrrrrl")


def _more(gate: Gate, indent: str) -> list[str]:
    unlisted = len(gate.all_tests) - _LISTED
    return [f"{indent}and {unlisted} more, none with a worse verdict or a smaller p"] if unlisted > 0 else []


def _legend(gate: Gate) -> list[str]:
    """Return how to read the table, and how much the test of all cells can find."""
    test = gate.tests[0] if gate.tests else None
    lines = [
        "shows from: the smallest loss that these prompts show four times in five; "
        + (f"asked for {test.amount(test.min_effect)}" if test else "")
        + (f", of all cells {gate.pooled.amount(gate.pooled.min_effect)}." if gate.pooled else ".")
    ]
    if gate.pooled and gate.pooled.power is not None:
        lines.append(
            f"power: a loss of {gate.pooled.amount(gate.pooled.min_effect)} in all cells is shown by "
            f"{100 * gate.pooled.power:.0f} of 100 such runs, if answers to one prompt correlate by {CORRELATION:g}."
        )
    return lines


def junit(gate: Gate) -> str:
    """Return the gate as JUnit XML: one suite per check, one test case per cell, with one outcome at most.

    A failed case is a failure; an undecided one an error, or skipped where that is allowed.
    """
    groups = [test.where for test in gate.tests if test.where not in gate.cells]
    pooled = [ALL_CELLS] if gate.pooled else []
    wheres = {check: [*gate.cells, *((*groups, *pooled) if check == "regression" else ())] for check in CHECKS}
    return junit_xml(
        "kvbench gate", {check: [_case(gate, check, where) for where in wheres[check]] for check in CHECKS}
    )


def _case(gate: Gate, check: str, where: str) -> Case:
    """Of a cell in a group, the test of the group has a case of its own."""

    def of_case(findings: Sequence[Finding]) -> list[Finding]:
        return [finding for finding in findings if (finding.check, finding.where) == (check, where)]

    outcomes: list[Outcome] = []
    if findings := of_case(gate.findings):
        outcomes.append(_outcome("failure", findings, check))
    elif findings := of_case(gate.undecided):
        outcomes.append(_outcome("skipped" if gate.allows else "error", findings, INCONCLUSIVE))
    elif where in gate.cells and (where not in gate.checked[check] or (check == "regression" and where in gate.groups)):
        outcomes.append(Outcome("skipped", "nothing to check"))
    return Case(f"kvbench.gate.{check.replace(' ', '_')}", where, outcomes)


def _outcome(tag: str, findings: Sequence[Finding], type: str) -> Outcome:
    lines = []
    for finding in findings:
        lines += [str(finding), *([f"samples: {' '.join(map(str, finding.samples))}"] if finding.samples else [])]
    return Outcome(tag, "; ".join(finding.text for finding in findings), type, "\n".join(lines))


def annotations(gate: Gate) -> Iterator[str]:
    """Workflow commands, as many as GitHub shows of one step: an error per finding, a warning per undecided place.

    What is undecided and not allowed is an error. A gate that passed is one notice.
    """
    if gate.verdict == PASSED:
        yield f"::notice title=kvbench gate::{_data(headline(gate))}"
        return
    marked = [("error", "", finding) for finding in folded(gate.findings)]
    level = "warning" if gate.allows else "error"
    marked += [(level, f"{INCONCLUSIVE}: ", finding) for finding in folded(gate.undecided)]
    shown = marked if len(marked) <= ANNOTATED else marked[: ANNOTATED - 1]
    for command, prefix, finding in shown:
        yield f"::{command} title=kvbench gate%3A {finding.check}::{_data(f'{prefix}{finding}')}"
    if len(shown) < len(marked):
        yield f"::{marked[0][0]} title=kvbench gate::{_data(f'and {len(marked) - len(shown)} more: see the log')}"


def folded(findings: Sequence[Finding]) -> list[Finding]:
    """Return the findings; those with the same text about the same samples of several cells become one."""
    groups = grouped(findings, lambda finding: (finding.check, finding.text, finding.samples))
    return [
        first if not others else replace(first, where=f"{first.where} and {count_noun(len(others), 'cell')} more")
        for first, *others in groups.values()
    ]


def as_tree(gate: Gate) -> dict[str, Any]:
    """Return the gate as plain values for JSON."""
    verdicts = {"passed": gate.verdict == PASSED, "verdict": gate.verdict, "accepted": gate.is_accepted}
    tests = [asdict(test) | {"verdict": gate.verdict_of(test.where)} for test in gate.all_tests]
    tree = asdict(gate) | {"cells": {where: gate.verdict_of(where) for where in gate.cells}}
    pooled = tests.pop(0) if gate.pooled else None
    return verdicts | {"correlation": CORRELATION} | tree | {"tests": tests, "pooled": pooled}


def headline(gate: Gate) -> str:
    """Return the verdict, why, and of what."""
    sides = f"{gate.current} against {gate.baseline}, {count_noun(len(gate.cells), 'cell')}"
    if gate.verdict == PASSED:
        return f"gate passed: {sides}{f'; seconds of {gate.timed} of them not tested' if gate.timed else ''}"
    findings = gate.findings or gate.undecided
    checks = ", ".join(name for name in CHECKS if any(finding.check == name for finding in findings))
    num_new = gate.without_baseline
    counted = [f"{count_noun(num_new, 'row')} without a baseline"] if num_new else []
    count = sum(gate.verdict_of(test.where) == INCONCLUSIVE for test in gate.tests)
    counted += [f"{count} of {count_noun(len(gate.tests), 'test')} {INCONCLUSIVE}"] if count else []
    allowed = ["which is allowed"] if gate.verdict == INCONCLUSIVE and gate.allows else []
    words = "FAILED" if gate.verdict == FAILED else INCONCLUSIVE.upper()
    return "; ".join([f"gate {words} ({checks}): {sides}", *counted, *allowed])


def _data(text: str) -> str:
    return printable(text).replace("%", "%25")
