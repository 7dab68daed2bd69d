import io
import json
from dataclasses import replace

import numpy as np
import pytest

from kvbench.records import Row
from kvbench.report.compare.beyond_chance import survivors
from kvbench.report.compare.compare import Comparison, compare, report_of
from kvbench.report.compare.paired_rows import Side
from kvbench.report.formats.emit import emitted
from kvbench.report.formats.text import write_text


def side(name: str, *cells: list[Row], source: str = "runs") -> Side:
    return Side(name, [row for cell in cells for row in cell], source)


def hits(n: int, right: int) -> list[float]:
    return [1.0] * right + [0.0] * (n - right)


def text(comparison: Comparison, format: str = "text", width: int | None = None) -> str:
    if width is None:
        return emitted(report_of(comparison), format)
    out = io.StringIO()
    write_text(report_of(comparison), out, width)
    return out.getvalue()


@pytest.fixture
def three(cell) -> Comparison:
    """Three tasks: B far worse, B the same on many, B unknown on few; one failure, one absent sample."""
    a, b = [], []
    for task, n, right_a, right_b in (("ruler/vt", 60, 50, 20), ("ruler/cwe", 900, 500, 500), ("ruler/fwe", 12, 7, 5)):
        a.append(cell(hits(n, right_a), task=task))
        b.append(cell(hits(n, right_b), "h2o", task=task))
    b[2][3] = replace(b[2][3], value=None, error="out of memory")
    return compare(side("snapkv", *a), side("h2o", *[*b[:2], b[2][:-1]]), resamples=999)


def test_verdicts_and_the_numbers_of_one_line(three: Comparison) -> None:
    verdicts = {line.key["task"]: line.verdict for line in three.lines}
    assert verdicts == {"ruler/vt": "worse", "ruler/cwe": "equivalent", "ruler/fwe": "inconclusive"}
    assert (three.overall.verdict, three.overall.n) == ("worse", 60 + 900 + 10)
    line = next(line for line in three.lines if line.key["task"] == "ruler/vt")
    assert (line.n, line.mean_a, line.mean_b) == (60, pytest.approx(5 / 6), pytest.approx(1 / 3))
    assert line.difference == pytest.approx(-0.5)
    assert (line.only_a, line.only_b) == (30, 0)
    assert line.p == pytest.approx(2 * 0.5**30) and line.mcnemar == pytest.approx(line.p)
    assert line.p_holm == pytest.approx(3 * line.p), "four lines, and the overall line comes first"
    assert line.low < -0.5 < line.high < 0


def test_the_direction_of_a_metric_decides_what_is_better(cell) -> None:
    nats = np.random.default_rng(0).normal(2, 0.1, 40)
    a = side("A", cell(nats.tolist(), metric="nll"))
    for shift, verdict in ((0.1, "worse"), (-0.1, "better")):
        b = side("B", cell((nats + shift).tolist(), "h2o", metric="nll"))
        assert compare(a, b).lines[0].verdict == verdict


def test_questions_about_one_context_do_not_make_a_difference_sure(cell, monkeypatch) -> None:
    """Eight questions about each of five texts, all changed alike: five differences, and no test can refuse on five."""
    monkeypatch.setattr("kvbench.report.stats.paired.context_of", lambda row: row.sample // 8)
    a, b = cell([1.0] * 40), cell([0.0] * 40, "h2o")
    line = compare(side("A", a), side("B", b)).lines[0]
    assert (line.n, line.clusters, line.p, line.mcnemar) == (40, 5, 2 / 2**5, None)
    assert line.verdict == "inconclusive"


def test_noise_is_counted_where_the_dtype_is_known(cell) -> None:
    a = [replace(row, top2_margin=0.01 * row.sample) for row in cell([1.0] * 30)]
    b = [replace(row, top2_margin=9.0) for row in cell([1.0] * 30, "h2o")]
    described = {"model": {"dtype": "bfloat16"}}
    known = compare(Side("A", a, "runs", lambda cell: described), Side("B", b, "runs", lambda cell: described))
    assert known.lines[0].noisy == 13
    assert compare(Side("A", a, "runs"), Side("B", b, "runs")).lines[0].noisy is None


def test_lines_that_differ_in_more_than_their_columns_say_so_and_have_no_overall(cell) -> None:
    """Both sides answer with 128 tokens at one budget and with 24 at the other."""
    sides: list[Side] = []
    settings: dict[str, dict] = {}
    for score in ("attn", "caote"):
        cells = [cell([1.0, 0.0], score=score, budget=budget) for budget in ("0.1", "0.2")]
        for (row, _), tokens in zip(cells, (128, 24), strict=True):
            settings[row.cell] = {"task": {"max_new_tokens": tokens}, "score": {"name": score}, "budget": row.budget}
        sides.append(Side(score, [row for rows in cells for row in rows], "runs", settings.get))
    found = compare(sides[0], sides[1])
    assert [line.key["setting"] for line in found.lines] == ["task.max_new_tokens=128", "task.max_new_tokens=24"]
    assert found.overall is None and any("No overall line" in note for note in found.notes)


def test_other_prompts_and_settings_are_told(cell) -> None:
    a = [replace(row, prompt_sha256="a" * 64) for row in cell([1.0] * 5)]
    b = [replace(row, prompt_sha256=("b" if row.sample else "a") * 64) for row in cell([1.0] * 5, "h2o")]
    settings = {
        a[0].cell: {"policy": {"name": "snapkv", "window": 16}},
        b[0].cell: {"policy": {"name": "h2o", "window": 8}},
    }
    notes = compare(Side("A", a, "runs", settings.get), Side("B", b, "runs", settings.get)).notes
    assert notes[0].startswith("4 of 5 questions have different prompts")
    assert notes[1] == "Settings that differ between A and B: policy.window."


def test_metrics_without_a_common_unit_have_no_overall_line(cell) -> None:
    a = cell(hits(20, 9)), cell([2.0] * 20, task="pg19", metric="nll")
    b = cell(hits(20, 8), "h2o"), cell([2.5] * 20, "h2o", task="pg19", metric="nll")
    comparison = compare(side("A", *a), side("B", *b))
    assert comparison.overall is None and "different units" in comparison.notes[0]
    assert "0.5000" in text(comparison)


def test_every_format_holds_verdicts_and_missing_pairs(three: Comparison) -> None:
    printed = text(three)
    assert "B: 1 failed (sample 3): ruler/fwe" in printed and "B: 1 absent (sample 11): ruler/fwe" in printed
    lines = text(three, width=60).splitlines()
    assert any("ruler/fwe" in line and "inconclusive" in line for line in lines), "whole on a narrow screen"
    table = [line for line in text(three, "markdown").splitlines() if line.startswith("|")]
    assert len({line.count("|") for line in table}) == 1 and len(table) == 6 and "**worse**" in table[-1]
    tree = json.loads(text(three, "json"))
    assert [line["task"] for line in tree["lines"]] == ["ruler/cwe", "ruler/fwe", "ruler/vt"]
    assert tree["lines"][1]["unpaired"] == [
        {"sample": 3, "side": "B", "reason": "failed"},
        {"sample": 11, "side": "B", "reason": "absent"},
    ]
    head, *lines = text(three, "csv").splitlines()
    assert len(lines) == 4 and lines[-1].startswith("overall,")
    vt = dict(zip(head.split(","), lines[2].split(","), strict=True))
    assert (vt["task"], vt["n"], vt["verdict"]) == ("ruler/vt", "60", "worse")
    assert float(vt["difference"]) == pytest.approx(tree["lines"][2]["difference"])


def test_the_same_rows_in_any_order_give_the_same_comparison(cell) -> None:
    generator = np.random.default_rng(2)
    a, b = cell(generator.random(40).tolist()), cell(generator.random(40).tolist(), "h2o")
    assert compare(side("A", a), side("B", b)) == compare(side("A", a[::-1]), side("B", b[::-1]))


def test_cells_of_one_side_are_named_once_and_have_no_line(cell) -> None:
    shared = cell([1.0] * 4), cell([1.0] * 3)
    a = [*shared[0], *(row for budget in ("0.2", "0.4") for row in cell([0.0] * 4, budget=budget))]
    b = [*shared[1], *cell([1.0] * 4, "h2o")]
    comparison = compare(side("A", a), Side("B", b, "other"))
    table, _, lacking = text(comparison, width=80).partition("Not compared:\n")
    assert "h2o" not in table and "0.4" not in table and len(comparison.lines) == 4
    assert lacking.splitlines() == [
        "  B: 1 absent (sample 3): snapkv budget 0.1",
        "  only in A: snapkv budget 0.2, snapkv budget 0.4",
        "  only in B: h2o budget 0.1",
    ]
    assert max(map(len, table.splitlines())) <= 80 and "verdict" in table
    assert len(json.loads(text(comparison, "json"))["lines"]) == 4, "programs see all lines"


def test_survivors_are_marked_against_their_baseline(cell) -> None:
    base = cell(hits(50, 40), "full"), cell(hits(50, 40), "full", task="ruler/vt")
    worse, same = cell(hits(50, 5)), cell(hits(50, 38), "h2o")
    there = cell(hits(50, 50), task="ruler/vt")
    rows = [row for rows in (*base, worse, same, there) for row in rows]
    marks = survivors(rows, lambda row: row.policy == "full")
    assert set(marks) == {worse[0].cell, same[0].cell, there[0].cell}
    assert (marks[worse[0].cell].survives, marks[worse[0].cell].better) == (True, False)
    assert (marks[worse[0].cell].won, marks[worse[0].cell].lost) == (0, 35)
    assert (marks[same[0].cell].survives, marks[same[0].cell].p_holm) == (False, pytest.approx(0.5))
    assert (marks[there[0].cell].survives, marks[there[0].cell].baseline) == (True, base[1][0].cell)


def test_questions_about_one_context_survive_as_one(cell) -> None:
    """Thirty lost answers about three contexts are three losses, of which none is beyond chance."""
    answers = {"full": cell([1.0] * 30, "full"), "snapkv": cell([0.0] * 30)}
    for contexts, p in ((30, 2.0**-29), (3, 0.25)):
        rows = [
            replace(row, context_sha256=f"{row.sample % contexts:064x}") for each in answers.values() for row in each
        ]
        (mark,) = survivors(rows, lambda row: row.policy == "full").values()
        assert (mark.p_holm, mark.survives, mark.lost) == (pytest.approx(p), contexts == 30, 30)


def test_a_baseline_with_the_same_budget_is_preferred_and_two_are_refused(cell) -> None:
    bases = cell([1.0] * 9, "h2o"), cell([0.0] * 9, "h2o", budget="0.2")
    mine = cell([1.0] * 9, budget="0.2")
    rows = [row for rows in (*bases, mine) for row in rows]
    assert survivors(rows, lambda row: row.policy == "h2o")[mine[0].cell].baseline == bases[1][0].cell
    other = cell([1.0] * 9, "h2o", budget="0.2", score="caote")
    with pytest.raises(ValueError, match="has 2 baselines"):
        survivors([*rows, *other], lambda row: row.policy == "h2o")


@pytest.mark.parametrize(
    ("schedule", "nearest"),
    [("prompt", 0), ("context", 1), ("prompt decode_every=16", 0), ("context prefill_block=64", 1), (None, 2)],
)
def test_among_baselines_of_several_schedules_the_nearest_is_taken(cell, schedule: str | None, nearest: int) -> None:
    bases = [cell([1.0] * 9, "full", budget="1.0", schedule=text) for text in ("prompt", "context", None)]
    mine = cell([1.0] * 9, schedule=schedule)
    marks = survivors([row for rows in (*bases, mine) for row in rows], lambda row: row.policy == "full")
    assert marks[mine[0].cell].baseline == bases[nearest][0].cell


@pytest.mark.parametrize(("margin", "needed"), [(0.1, "750"), (0.05, "3,000")])
def test_prompts_that_a_margin_needs_are_counted_in_whole_numbers(cell, margin: float, needed: str) -> None:
    """To two digits, never as 7.5e+02."""
    values = hits(20, 10)
    both = side("A", cell(values)), side("B", cell(values[::-1], "h2o"))
    comparison = compare(*both, resamples=99, relevant=margin)
    said = [line for line in text(comparison).splitlines() if "points need about" in line]
    assert [line.split("about ")[1] for line in said] == [f"{needed} prompts."]


def test_the_header_says_which_cells_differ_in_their_windows(cell) -> None:
    """Sides with one window share it in the header; others are named there, above the table."""
    policies = {
        f"{name}{size}": {"policy": {"name": name, "accepts": ["budget"], "window": size, "recent": size}}
        for name, size in (("snapkv", 16), ("h2o", 16), ("pyramidkv", 8))
    }

    for other, said in (
        ("h2o16", "window 16, recent 16 where a policy has them"),
        ("pyramidkv8", "cells differ in window 8 (pyramidkv), 16 (snapkv); recent 8"),
    ):
        sides = [
            Side(name, [replace(row, cell=name, policy=name) for row in cell(values)], "runs", policies.get)
            for name, values in (("snapkv16", [1.0] * 12), (other, [0.0] * 12))
        ]
        for format, lines in (("text", "McNemar"), ("markdown", "McNemar"), ("json", '"lines"')):
            assert said in text(compare(*sides), format).split(lines)[0], format
