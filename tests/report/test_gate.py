import xml.etree.ElementTree as ET
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from kvbench.records import Row
from kvbench.report.compare import gate_formats as gates
from kvbench.report.compare.gate import CHECKS, Gate, check
from kvbench.report.compare.losses import Effects
from kvbench.report.compare.paired_rows import Side

Change = Callable[[Row], Row | None]


@pytest.fixture
def rows(cell) -> list[Row]:
    """Three cells of 160 samples with everything that a gate looks at; one sample of the baseline failed."""
    baseline = []
    for policy, share in (("full", 1.0), ("snapkv", 0.1), ("h2o", 0.1)):
        values = ["too long" if sample == 39 else float(sample % 4 != 0) for sample in range(160)]
        for row in cell(values, policy):
            tokens = 300 + row.sample
            measured = {
                "prompt_tokens": tokens,
                "kept_fraction": share,
                "cache_bytes": int(512 * tokens * share),
                "full_cache_bytes": 512 * tokens,
                "prompt_sha256": f"{row.sample:064x}",
                "kept_sha256": f"{row.sample:063x}{policy[0]}",
            }
            baseline.append(replace(row, **measured))
    return baseline


def gate(rows: list[Row], change: Change, extra: tuple[Row, ...] = (), **settings: object) -> Gate:
    current = [changed for row in rows if (changed := change(row)) is not None]
    return check(Side("before", rows, "one"), Side("after", [*current, *extra], "two"), **settings)


def only(policy: str, samples: range = range(160), **columns: object) -> Change:
    return lambda row: replace(row, **columns) if row.policy == policy and row.sample in samples else row


def findings(gate: Gate) -> list[tuple[str, str, int]]:
    """(check, policy, samples) of what was found in single cells."""
    cells = [finding for finding in gate.findings if finding.where != "all cells"]
    return [(finding.check, finding.where.split()[2], len(finding.samples)) for finding in cells]


def test_the_same_rows_pass(rows: list[Row]) -> None:
    same = gate(rows, lambda row: row)
    assert same.verdict == "passed" and same.findings == same.undecided == ()
    assert len(same.cells) == 3 and len(same.tests) == 3 and same.pooled.n == 477
    assert any("failed in the baseline" in note for note in same.notes)
    assert gate(rows, lambda row: row if row.error else replace(row, value=1.0)).verdict == "passed", "a better run"


def test_bytes_may_shrink_with_what_is_kept_and_never_grow(rows: list[Row]) -> None:
    def scaled(row: Row, factor: float) -> Row:
        if row.policy != "h2o":
            return row
        return replace(row, kept_fraction=factor * row.kept_fraction, cache_bytes=int(factor * row.cache_bytes))

    assert gate(rows, lambda row: scaled(row, 0.5)).verdict == "passed"
    assert gate(rows, lambda row: scaled(row, 2)).verdict == "failed"
    failed = gate(rows, lambda row: replace(row, cache_bytes=row.cache_bytes + 1) if row.policy == "full" else row)
    assert "first: 153600 B -> 153601 B at 100.0 %" in failed.findings[0].text, "to the byte"


def test_another_policy_is_no_partner(rows: list[Row], cell) -> None:
    """Where compare would compare two policies, a gate misses one of them."""
    failed = check(Side("before", cell([1.0] * 9), "one"), Side("after", cell([1.0] * 9, "h2o"), "two"))
    assert [finding.check for finding in failed.findings] == ["present"]
    assert "the cell is missing, 9 rows" in failed.findings[0].text and failed.pooled is None
    other = gate(rows, lambda row: replace(row, seed=43))
    assert "in order" not in gates.text(other) and {finding.check for finding in other.findings} == {"present"}


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (only("h2o", prompt_sha256="f" * 64), ("prompts", "h2o", 159)),
        (only("h2o", range(3), prompt_tokens=7), ("tokens", "h2o", 3)),
        (only("snapkv", range(8, 9), kept_sha256="0" * 64), ("kept sets", "snapkv", 1)),
        (only("snapkv", range(8, 9), kept_sha256=None), ("kept sets", "snapkv", 1)),
        (only("h2o", range(5), cache_bytes=999_999), ("bytes", "h2o", 5)),
        (only("h2o", range(5), cache_bytes=None), ("bytes", "h2o", 5)),
        (only("h2o", range(5), kept_fraction=0.05), ("bytes", "h2o", 5)),
        (only("snapkv", range(2), value=None, error="out of memory"), ("present", "snapkv", 2)),
        (only("snapkv", range(2), value=None), ("present", "snapkv", 2)),
        (lambda row: None if row.policy == "h2o" else row, ("present", "h2o", 159)),
        (lambda row: None if row.policy == "h2o" and row.sample == 11 else row, ("present", "h2o", 1)),
        (only("snapkv", range(30), value=0.0), ("regression", "snapkv", 22)),
    ],
    ids=lambda case: case[0] if isinstance(case, tuple) else "",
)
def test_every_change_is_found_where_it_is_and_nowhere_else(rows: list[Row], change: Change, expected: tuple) -> None:
    failed = gate(rows, lambda row: row if row.error else change(row))
    assert findings(failed) == [expected]


def test_kept_sets_can_be_a_note(rows: list[Row]) -> None:
    noted = gate(rows, only("snapkv", kept_sha256="0" * 64), kept="note")
    assert "in order: present, prompts, tokens, bytes, regression" in gates.text(noted)
    assert noted.verdict == "passed" and any("kept sets of 159 of 160 rows changed" in note for note in noted.notes)
    with pytest.raises(ValueError, match="kept=maybe: allowed: kept=fail, kept=note"):
        gate(rows, lambda row: row, kept="maybe")


def test_values_without_a_baseline_are_undecided(rows: list[Row], cell) -> None:
    mended = only("full", range(39, 40), value=1.0, error=None)
    noted = gate(rows, mended)
    assert (noted.verdict, noted.without_baseline) == ("inconclusive", 1)
    assert [finding.text for finding in noted.undecided] == ["1 row failed in the baseline"]
    assert sum(note.startswith("failed in the baseline, as now: ") for note in noted.notes) == 2
    more = gate(rows, mended, tuple(cell([1.0] * 4, "tova")))
    assert (more.verdict, more.without_baseline) == ("inconclusive", 5)
    assert "5 rows without a baseline" in gates.headline(more)
    missing = check(Side("half", [row for row in rows if row.sample >= 60], "one"), Side("all", rows, "two"))
    assert (missing.verdict, missing.without_baseline, missing.is_accepted) == ("inconclusive", 180, False)
    assert replace(missing, allows=True).is_accepted


def test_a_verdict_needs_prompts_and_not_rows(cell) -> None:
    """Sixty questions about four contexts are four prompts; so are 64 cells on four prompts."""
    questions = [replace(row, context_sha256=f"{row.sample % 4:064x}") for row in cell([1.0] * 60)]
    cells = [row for i in range(64) for row in cell([1.0] * 4, budget=f"{i + 1}")]
    for rows in (questions, cells):
        blind = check(Side("before", rows, "one"), Side("after", rows, "two"))
        assert blind.verdict == "inconclusive" and {test.prompts for test in blind.all_tests} == {4}
        assert {test.smallest for test in blind.all_tests} == {None}
    for n, verdict in ((60, "inconclusive"), (230, "passed")):
        apart = check(Side("before", cell([1.0] * n), "one"), Side("after", cell([1.0] * n), "two"))
        assert apart.verdict == verdict, "one cell is all cells"
        assert apart.tests[0].min_effect == 0.05 and 9 < apart.tests[0].smallest * n < 12


def test_cells_of_one_method_can_be_one_test(cell) -> None:
    """Ten cells on six prompts each, no prompt twice, tell together what none tells alone."""
    before = [
        replace(row, sample=6 * i + row.sample, prompt_sha256=f"{6 * i + row.sample:064x}")
        for i in range(10)
        for row in cell([1.0] * 6, budget=f"{i + 1}")
    ]
    sides = Side("before", before, "one"), Side("after", before, "two")
    assert check(*sides).verdict == "inconclusive"
    together = check(*sides, by=("policy",), min_effect=Effects(0.2, 0.2))
    assert together.verdict == "passed" and [test.where for test in together.tests] == ["snapkv"]
    lost = [replace(row, value=0.0) if row.sample % 6 == 0 else row for row in before]
    failed = check(sides[0], Side("after", lost, "two"), by=("policy",))
    assert [finding.where for finding in failed.findings] == ["snapkv"]
    assert {failed.verdict_of(where) for where in failed.cells} == {"failed"}
    broken = [replace(row, value=0.0) if row.budget == "1" else row for row in before]
    hidden = check(sides[0], Side("after", broken, "two"), by=("policy",), min_effect=Effects(0.2, 0.2))
    assert not hidden.tests[0].is_large and [finding.where.split()[-1] for finding in hidden.findings] == ["1"]
    assert [hidden.verdict_of(where) for where in hidden.cells] == ["failed"] + ["passed"] * 9
    assert hidden.verdict_of("snapkv") == "failed"
    with pytest.raises(ValueError, match="cells have no column 'polcy'; allowed: model, task"):
        check(*sides, by=("polcy",))


def test_a_large_loss_is_an_alarm_whatever_its_p(cell) -> None:
    before = cell([1.0] * 5)
    for lost, verdict in ((1, "inconclusive"), (2, "failed")):
        after = [replace(row, value=float(row.sample >= lost)) for row in before]
        judged = check(Side("before", before, "one"), Side("after", after, "two"))
        assert judged.verdict == verdict and not judged.tests[0].is_worse
    assert "more than 20 points: an alarm whatever p is" in judged.findings[0].text


def test_lower_is_better_for_nll(cell) -> None:
    nats = np.random.default_rng(0).normal(2, 0.1, 30)
    before = cell(nats.tolist(), metric="nll")
    for shift, verdict in ((-0.05, "passed"), (0.05, "failed")):
        after = cell((nats + shift).tolist(), metric="nll")
        assert check(Side("before", before, "one"), Side("after", after, "two")).verdict == verdict


def test_a_loss_too_thin_for_a_cell_is_seen_in_all_of_them(cell) -> None:
    before = [row for i in range(12) for row in cell([1.0] * 80, task=f"ruler/{i}")]
    after = [replace(row, value=0.0) if row.sample == i % 7 else row for i, row in enumerate(before)]
    failed = check(Side("before", before, "one"), Side("after", after, "two"))
    assert [finding.where for finding in failed.findings] == ["all cells"]
    assert failed.pooled.current < 1.0


def test_what_was_not_recorded_is_not_said_to_be_in_order(rows: list[Row]) -> None:
    bare = [replace(row, kept_sha256=None) for row in rows]
    passed = gate(bare, lambda row: row)
    assert "not checked: 477 rows of the baseline have no kept_sha256" in passed.notes
    assert "in order: present, prompts, tokens, bytes, regression" in gates.text(passed)
    suites = {suite.get("name"): suite for suite in ET.fromstring(gates.junit(passed))}
    assert [name for name, suite in suites.items() if suite.get("skipped") != "0"] == ["kept sets"]
    assert (suites["kept sets"].get("skipped"), suites["kept sets"].get("failures")) == ("3", "0")


def test_junit_has_a_case_for_every_cell_and_check(rows: list[Row]) -> None:
    failed = gate(rows, only("snapkv", range(3), kept_sha256="0" * 64))
    root = ET.fromstring(gates.junit(failed))
    assert [suite.get("name") for suite in root] == list(CHECKS)
    assert [len(suite) for suite in root] == [3, 3, 3, 3, 3, 4]
    assert (root.get("tests"), root.get("failures")) == ("19", "1")
    (failure,) = root.iter("failure")
    assert failure.get("type") == "kept sets" and "samples: 0 1 2" in failure.text
    hostile = gate(rows, only("h2o", range(1), value=None, error="bad \x00\x1b[0m <&>"))
    assert gates.junit(hostile).count("<failure") == 1


def test_annotations_are_escaped_and_few(rows: list[Row]) -> None:
    failed = gate(rows, only("h2o", range(1), value=None, error="100% gone\nfor good"))
    (line,) = gates.annotations(failed)
    assert line.startswith("::error title=kvbench gate%3A present::") and "100%25 gone for good" in line
    many = gate(rows, lambda row: replace(row, prompt_tokens=row.prompt_tokens + len(row.policy) + row.sample % 2))
    texts = list(gates.annotations(replace(many, findings=many.findings * 9)))
    assert len(texts) <= gates.ANNOTATED
    (notice,) = gates.annotations(gate(rows, lambda row: row))
    assert notice.startswith("::notice")


def test_more_findings_than_annotations_end_with_how_many_are_in_the_log(rows: list[Row]) -> None:
    failed = gate(rows, only("h2o", range(1), value=None, error="gone"))
    (finding,) = failed.findings
    texts = [replace(finding, text=f"fault {number}") for number in range(14)]
    *shown, more = gates.annotations(replace(failed, findings=tuple(texts)))
    assert len(shown) == gates.ANNOTATED - 1 and more == "::error title=kvbench gate::and 5 more: see the log"


def test_a_cell_that_failed_on_both_sides_decides_nothing(rows: list[Row]) -> None:
    failed = [replace(row, value=None, error="too long") if row.policy == "h2o" else row for row in rows]
    same = gate(failed, lambda row: row)
    (undecided,) = [each for each in same.undecided if each.check == "present"]
    assert undecided.where.split()[2] == "h2o" and undecided.text == "no row has a value on both sides"
    assert same.verdict == "inconclusive" and not same.findings


def test_half_an_answer_is_a_quarter_of_the_noise_of_a_whole_one(cell) -> None:
    """Twenty answers that move by a half each way hide as large a loss as five that turn round each way."""
    smallest = []
    for changed, size in ((5, 1.0), (20, 0.5), (20, 1.0)):
        before = cell([1.0] * changed + [0.0] * changed + [0.5] * (160 - 2 * changed))
        after = cell([1 - size] * changed + [size] * changed + [0.5] * (160 - 2 * changed))
        (test,) = check(Side("before", before, "one"), Side("after", after, "two")).tests
        smallest.append(test.smallest)
    assert smallest[0] == smallest[1] < smallest[2]


def test_seconds_are_not_tested(rows: list[Row], cell) -> None:
    seconds = cell([0.5] * 160, "timed", metric="seconds_per_token", unit="seconds", better="lower")
    slower = gate([*rows, *seconds], only("timed", value=5.0))
    assert slower.timed == 1 and slower.verdict == "passed" and len(slower.tests) == 3
    assert any(note.startswith("not tested: 1 cell of seconds") for note in slower.notes)


def test_text_and_markdown_say_what_and_where(rows: list[Row]) -> None:
    failed = gate(rows, only("snapkv", range(30), value=0.0))
    for report in (gates.text(failed), gates.markdown(failed)):
        assert "gate FAILED (regression)" in report and "ruler/niah_single_1 512 snapkv attn 0.1" in report
        assert "samples 1, 2, 3, 5, 6, ..." in report
    every = gate(rows, lambda row: replace(row, prompt_sha256="e" * 64))
    assert "and 2 cells more: prompts of 159 of 160 rows changed" in gates.text(every)
    assert "in order: present, tokens, kept sets, bytes, regression" in gates.text(every)
