"""LongBench's averages in tables: the numbers that papers state, and what is refused rather than averaged."""

import json
import math
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import fmean, variance

import pytest

from kvbench.cli.main import main
from kvbench.records import Row
from kvbench.report.tables.average import averaged
from kvbench.report.tables.summary import summaries
from kvbench.tasks.longbench_averages import ALL, CHINESE
from tests.tasks.longbench.test_averages import CAOTE, LAVA

ENGLISH = [member for member in ALL if member not in CHINESE]
Make = Callable[..., list[Row]]


def longbench(cell: Make, means: dict[str, Sequence[float | str | None]], policy: str = "full", **columns) -> list[Row]:
    """Rows of a policy, a cell a task."""
    columns = {"context_length": None, "metric": "qa_f1_score"} | columns
    return [row for name, values in means.items() for row in cell(values, policy, task=f"longbench/{name}", **columns)]


def papers(members: Sequence[str], means: Sequence[float]) -> dict[str, list[float]]:
    """Two samples a task, whose mean is the one printed."""
    return {member: [mean / 100 - 0.001, mean / 100 + 0.001] for member, mean in zip(members, means, strict=True)}


@pytest.mark.parametrize(
    ("name", "members", "means", "stated", "counted"),
    [("lava", ALL, LAVA, 45.07, 20), ("caote", ENGLISH, CAOTE, 49.20, 16)],
)
def test_the_averages_that_papers_state(name, members, means, stated, counted, cell: Make):
    """LAVa's table 2 and CAOTE's table 2, full cache."""
    other = cell([1.0], "full", task="ruler/vt")
    (line,) = averaged(summaries(longbench(cell, papers(members, means)) + other), name).lines
    assert line.mean is not None and round(100 * line.mean, 2) == stated
    assert (line.n, line.rate, line.metric) == (2 * counted, True, f"longbench_{name}")
    assert line.task == f"longbench, average {name} of {counted} tasks"


def test_the_interval_is_that_of_a_sum_of_means(cell: Make):
    values = {member: [0.1, 0.2, 0.3 + number / 100] for number, member in enumerate(ENGLISH)}
    (line,) = averaged(summaries(longbench(cell, values)), "caote").lines
    half = 1.959964 * math.sqrt(sum(variance(scores) / 3 for scores in values.values())) / 16
    assert line.mean == pytest.approx(fmean(fmean(scores) for scores in values.values()))
    assert (line.low, line.high) == pytest.approx((line.mean - half, line.mean + half), rel=1e-5)
    alone = {member: scores[:1] for member, scores in values.items()}
    assert averaged(summaries(longbench(cell, alone)), "caote").lines[0].low is None


def test_what_is_not_complete_is_refused(cell: Make):
    whole = papers(ENGLISH, CAOTE)
    for broken, message in (
        ({member: values for member, values in whole.items() if member != "lcc"}, "full 1.0: the .* lacks lcc"),
        (whole | {"trec": [0.5, "too long"], "lcc": [None]}, r"without a number in lcc \(1\), trec \(1\)"),
    ):
        with pytest.raises(ValueError, match=message):
            averaged(summaries(longbench(cell, broken)), "caote")
    twice = longbench(cell, whole) + longbench(cell, {"lcc": [0.1]}, task_version="another")
    with pytest.raises(ValueError, match="several cells of lcc; select cells of one setting"):
        averaged(summaries(twice), "caote")
    with pytest.raises(ValueError, match=r"--average lava .* no selected row is of one"):
        averaged(summaries(cell([1.0])), "lava")
    with pytest.raises(ValueError, match="average mean: allowed: official, lava, caote"):
        averaged(summaries(longbench(cell, whole)), "mean")


def test_the_command_prints_a_line_a_setting(cell: Make, results, capsys: pytest.CaptureFixture[str], tmp_path: Path):
    half = {member: [0.25, 0.25] for member in ENGLISH}
    folder = results(longbench(cell, papers(ENGLISH, CAOTE)), longbench(cell, half, "snapkv", kept_fraction=0.1))
    table = ["report", "table", "--results", str(folder), "--average", "caote"]
    assert main(table) == 0
    text = capsys.readouterr().out
    assert "longbench, average caote of 16 tasks" in text and "longbench_caote in %" in text
    assert "49.2" in text and "25.0" in text and "  32  " in text and "kept 10.0 %" in text
    out = tmp_path / "table.json"
    assert main([*table, "--out", str(out)]) == 0
    assert [round(line["mean"], 4) for line in json.loads(out.read_text())] == [0.492, 0.25]
    assert main([*table, "against=full"]) == 2
    assert "--average and against= do not go together" in capsys.readouterr().err
