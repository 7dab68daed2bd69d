import math
import statistics

import pytest
from scipy import stats

from kvbench.report.stats.intervals import perplexity
from kvbench.report.stats.paired import Paired
from kvbench.report.tables.summary import summaries
from kvbench.support.errors import UserError


def test_perplexity_is_over_tokens_not_over_texts() -> None:
    mean, low, high = perplexity([2.0, 3.0], [300.0, 100.0])
    assert mean == pytest.approx(math.exp(2.25))
    assert low is not None and high is not None and low < mean < high
    assert perplexity([2.0, 3.0], [math.nan, 100.0]) == perplexity([2.0, 3.0], [1.0, 1.0]), "unknown numbers are equal"
    assert perplexity([1.0], [5.0]) == (math.e, None, None) and perplexity([1e4], [5.0])[0] == math.exp(700)


def test_equal_texts_have_the_interval_of_their_mean() -> None:
    nll = [2.0, 2.5, 3.25, 2.125]
    mean, low, high = perplexity(nll, [64.0] * 4)
    theirs = stats.t.interval(0.95, 3, statistics.fmean(nll), stats.sem(nll))
    assert (mean, low, high) == pytest.approx((math.exp(statistics.fmean(nll)), *map(math.exp, theirs)))
    assert perplexity(nll, [64.0, 64.0, 64.0, 64.000001]) == pytest.approx((mean, low, high))


def test_a_cell_of_losses_is_summarised_as_perplexity(cell) -> None:
    (line,) = summaries(cell([2.0, 3.0], metric="nll", new_tokens=10))
    assert (line.metric, line.rate, line.n) == ("perplexity", False, 2)
    assert line.mean == pytest.approx(math.exp(2.5))


EDITS = {"metric": "edits", "unit": "characters", "better": "lower"}


def test_rows_say_which_values_are_better(cell) -> None:
    few, many = (
        [cell(values, policy, **EDITS) for policy in ("snapkv", "h2o")] for values in ([0.0, 1.0], [0.5, 0.75])
    )
    (line,) = summaries(few[0])
    assert (line.rate, line.higher) == (False, False), "values in 0..1 of a metric that is no share"
    paired = Paired.of([*zip(few[0], many[1], strict=True)])
    assert not paired.rate and not paired.higher
    for value, is_rate in ((1.0, True), (7.0, False)):  # of rows that say nothing, a value outside tells
        assert [line.rate for line in summaries(cell([0.0, value], metric="edits"))] == [is_rate]
    earlier = cell([0.0, 1.0], metric="edits") + cell([1.0, 0.0], "h2o", **EDITS)
    assert {(line.rate, line.higher) for line in summaries(earlier)} == {(False, False)}, "read like the later ones"


def test_rows_of_one_metric_in_two_units_are_refused(cell) -> None:
    rows = cell([0.0, 1.0], **EDITS) + cell([1.0, 0.0], "h2o", **(EDITS | {"unit": "words"}))
    with pytest.raises(UserError, match="rows of edits differ in unit: characters, words: select some"):
        summaries(rows)
