"""Several drawn answers to each prompt: avg@k, pass@k and their intervals."""

import csv
import io
from collections.abc import Callable
from dataclasses import replace
from itertools import combinations
from statistics import fmean
from typing import Any

import numpy as np
import pytest

from kvbench.records import ResultsFolder, Row
from kvbench.report.stats.intervals import mean_interval, wilson
from kvbench.report.stats.pass_at import pass_at
from kvbench.report.tables.observation_note import answers_text
from kvbench.report.tables.summary import summaries
from kvbench.report.tables.table import View, print_table
from kvbench.support.errors import UserError
from tests.cells import name_of

VALUES = ([1.0, 0.0, 0.0, 1.0], [0.0, 0.0, 0.0, 0.0], [1.0, 1.0, 1.0, 0.0])


def description(answers: int = 4) -> dict[str, Any]:
    return {"task": {"temperature": 0.6, "top_p": 0.95, "samples_per_prompt": answers}}


@pytest.fixture
def answers(cell: Callable[..., list[Row]]) -> list[Row]:
    """Four answers to each of three prompts."""
    rows = cell([value for values in VALUES for value in values])
    return [replace(row, context_sha256=f"{row.sample // 4:064}") for row in rows]


@pytest.mark.parametrize("k", [1, 2, 3, 4])
def test_pass_at_k_is_the_share_of_subsets_with_a_right_answer(answers: list[Row], k: int) -> None:
    rows = pass_at(answers, k, lambda cell: description())
    expected = [fmean(max(subset) for subset in combinations(values, k)) for values in VALUES]
    assert [row.value for row in rows] == pytest.approx(expected, abs=1e-15)
    assert [(row.sample, row.metric) for row in rows] == [(prompt, f"pass@{k}") for prompt in range(3)]


def test_a_table_of_pass_at_k_is_over_prompts(answers: list[Row], results) -> None:
    task = description()
    folder = results([replace(row, cell=name_of(task)) for row in answers])
    ResultsFolder(folder).write_cell(name_of(task), task)
    out = io.StringIO()
    print_table(folder, "csv", out, View(pass_at=2))
    (line,) = csv.DictReader(io.StringIO(out.getvalue()))
    assert (line["n"], line["metric"]) == ("3", "pass@2")
    assert float(line["mean"]) == pytest.approx((5 / 6 + 0 + 1) / 3)
    with pytest.raises(UserError, match="--pass-at goes without --average and against="):
        View(pass_at=2, against="full")


def test_answers_without_a_value_are_left_out_or_reported_and_what_has_no_pass_at_k_refused(answers: list[Row]) -> None:
    failed = [replace(row, value=None, error="too long") if row.sample in (4, 5, 6) else row for row in answers]
    rows = pass_at(failed, 2, lambda cell: description())
    assert rows[1].value is None and rows[1].error == "1 of 2 answers have a value: too long"
    assert pass_at(failed, 1, lambda cell: description())[1].value == 0.0
    with pytest.raises(UserError, match=r"pass@5 of snapkv 0\.1 .* per prompt are 4; run it with .*_prompt=5 or more"):
        pass_at(answers, 5, lambda cell: description())
    with pytest.raises(UserError, match="answers per prompt are 1"):
        pass_at(answers, 2, lambda cell: None)
    with pytest.raises(UserError, match=r"right or wrong: string_match_all has the value 0\.5"):
        pass_at([replace(answers[0], value=0.5)], 1, lambda cell: description())
    with pytest.raises(UserError, match="pass@0"):
        pass_at(answers, 0, lambda cell: description())


def test_the_interval_of_avg_at_k_has_prompts_as_units(answers: list[Row]) -> None:
    (apart,) = summaries([replace(row, context_sha256=None) for row in answers])
    (together,) = summaries(answers)
    assert (apart.low, apart.high) == wilson(5, 12) and apart.mean == together.mean
    assert together.low is not None and apart.low is not None and together.low < apart.low - 0.1
    (prompts,) = summaries([replace(row, context_sha256=None, prompt_sha256=row.context_sha256) for row in answers])
    assert (prompts.low, prompts.high) == (together.low, together.high)
    (nothing,) = summaries([replace(row, value=0.0) for row in answers])
    assert (nothing.low, nothing.high) == wilson(0, 3)


def test_intervals_of_drawn_answers_hold_the_truth() -> None:
    """30 prompts of unequal difficulty, 4 answers each: 95 % within noise, where independence would hold it 70 %."""
    generator, truth, cluster = np.random.default_rng(0), 0.4, np.repeat(np.arange(30), 4)
    inside = alone = 0
    for _ in range(2000):
        chance = generator.beta(0.5 * truth, 0.5 * (1 - truth), size=30)
        values = (generator.random((30, 4)) < chance[:, None]).astype(float).ravel()
        _, low, high = mean_interval(values.tolist(), True, cluster)
        assert low is not None and high is not None
        inside += low <= truth <= high
        low, high = wilson(values.sum(), len(values))
        alone += low <= truth <= high
    assert 0.935 <= inside / 2000 <= 0.975 and alone / 2000 < 0.85


def test_headers_say_how_answers_were_drawn() -> None:
    assert answers_text([{"task": {}}, None, {"task": {"name": "a"}}]) == ""
    text = "4 answers per prompt (their mean: avg@4) drawn at temperature 0.6, top_p 0.95"
    assert answers_text([description(), description()]) == text
    assert answers_text([{"task": {"name": "a"}}, description()]) == f"greedy answers or {text}"
