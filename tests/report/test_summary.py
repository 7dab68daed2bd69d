import random
from dataclasses import replace

import numpy as np
import pandas
import pytest

from kvbench.report.stats.intervals import student, wilson
from kvbench.report.tables.summary import COLUMNS, budget_key, summaries, summary_frame


def test_one_cell(cell) -> None:
    rows = cell([1.0, 0.0, 1.0, 1.0], kept_fraction=0.1, cache_bytes=100, prefill_seconds=2.0, new_tokens=5)
    (line,) = summaries(rows)
    assert (line.n, line.errors, line.mean, line.low, line.high) == (4, 0, 0.75, *wilson(3, 4))
    assert (line.kept_fraction, line.cache_bytes, line.prefill_seconds, line.new_tokens) == (0.1, 100.0, 2.0, 5.0)
    assert line.evict_seconds is None and line.full_cache_bytes is None


def test_failed_samples_are_counted_named_and_in_no_mean(cell) -> None:
    rows = cell([1.0, "too long", 0.0, "too long", "NaN in the cache", None], cache_bytes=10)
    (line,) = summaries(rows)
    assert (line.n, line.errors, line.mean) == (2, 3, 0.5)
    assert line.failures == {"too long": (1, 3), "NaN in the cache": (4,)}
    (line,) = summaries(cell(["too long"] * 3))
    assert (line.n, line.errors, line.mean, line.low, line.high, line.cache_bytes) == (0, 3, None, None, None, None)


def test_measures_are_means_over_the_samples_of_a_cell_that_have_them(cell) -> None:
    a, b, c = cell([1.0, 1.0, 1.0], cache_bytes=10), cell([1.0] * 3, cache_bytes=20), cell([1.0] * 3)
    (line,) = summaries([a[0], b[1], c[2]])
    assert line.cache_bytes == 15.0
    lines = summaries(cell([1.0, 1.0], cell="ab") + cell([0.0, 0.0], cell="cd"))  # which look alike
    assert [(line.cell, line.mean) for line in lines] == [("ab", 1.0), ("cd", 0.0)]


def test_a_metric_beyond_one_is_no_rate_in_any_cell(cell) -> None:
    low, high = cell([0.2, 0.4, 0.9], metric="edits", cell="ab"), cell([2.0, 3.0, 1.0], metric="edits", cell="cd")
    lines = summaries(low + high)
    assert [line.rate for line in lines] == [False, False]
    assert (lines[0].low, lines[0].high) == student([0.2, 0.4, 0.9])
    assert summaries(low)[0].rate
    assert not summaries(cell([0.5], metric="perplexity"))[0].rate


def test_the_order_of_rows_changes_nothing(cell) -> None:
    scores = {"tova": "attn", "full": None, "duo_attention": None, "h2o": "attn"}
    rows = [
        row
        for policy, score in scores.items()
        for budget in ("1024", "0.2", "0.05", "256")
        for row in cell([0.3, 0.9, 1.0, "x"], policy, budget=budget, score=score)
    ]
    expected = summaries(rows)
    random.Random(0).shuffle(rows)
    assert summaries(rows) == expected
    assert [line.policy for line in expected[::4]] == ["full", "duo_attention", "h2o", "tova"]
    assert [line.budget for line in expected[:4]] == ["0.05", "0.2", "256", "1024"]


def test_budgets_are_ordered_as_numbers() -> None:
    budgets = ["1024", "threshold:-4", "2MiB", "0.4", "1e-2", "threshold:0.5", "600KiB", "64", "0.05"]
    ordered = ["1e-2", "0.05", "0.4", "64", "1024", "600KiB", "2MiB", "threshold:0.5", "threshold:-4"]
    assert sorted(budgets, key=budget_key) == ordered


def test_the_frame_has_a_line_a_cell_and_missing_stays_missing(cell) -> None:
    frame = summary_frame(summaries(cell([1.0, 0.0]) + cell(["too long"], "streaming_llm", context_length=None)))
    assert list(frame.columns) == list(COLUMNS)
    first = "model task context_length policy score budget n mean low high kept_fraction cache_bytes"
    assert " ".join(COLUMNS).startswith(first), "others rely on them"
    assert frame["policy"].tolist() == ["streaming_llm", "snapkv"]
    assert frame["n"].tolist() == [0, 2] and frame["errors"].tolist() == [1, 0]
    assert pandas.isna(frame.loc[0, "mean"]) and pandas.isna(frame.loc[0, "context_length"])
    assert pandas.isna(frame.loc[0, "score"]) and frame.loc[1, "context_length"] == 512
    assert frame["mean"].dtype == "float64" and frame["cache_bytes"].isna().all()
    assert summary_frame(summaries([])).empty


def test_a_mean_over_contexts_weighs_each_alike(cell) -> None:
    """Three questions about one context, one about another: (1/3 + 1) / 2, not 2/4."""
    contexts = ["a" * 64, "a" * 64, "a" * 64, "b" * 64]
    rows = [replace(row, context_sha256=sha) for row, sha in zip(cell([1.0, 0.0, 0.0, 1.0]), contexts, strict=True)]
    (questions,), (of_contexts,) = summaries(rows), summaries(rows, over="contexts")
    assert (questions.n, questions.mean, questions.contexts) == (4, 0.5, 2)
    assert (of_contexts.n, of_contexts.mean, of_contexts.contexts) == (4, pytest.approx(2 / 3), 2)
    low, high = student([1 / 3, 1.0])
    assert (of_contexts.low, of_contexts.high) == (max(low, 0.0), min(high, 1.0))
    assert of_contexts.variance / of_contexts.n == pytest.approx(np.var([1 / 3, 1.0], ddof=1) / 2)
    rows[1] = replace(rows[1], value=None, error="too long")  # leaves its context to the others
    (line,) = summaries(rows, over="contexts")
    assert (line.n, line.errors, line.mean, line.contexts) == (3, 1, 0.75, 2)
    apart = cell([0.25, 1.0, 0.5])
    assert summaries(apart) == summaries(apart, over="contexts")
