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


def test_equal_texts_have_the_interval_of_their_mean() -> None:
    nll = [2.0, 2.5, 3.25, 2.125]
    mean, low, high = perplexity(nll, [64.0] * 4)
    theirs = stats.t.interval(0.95, 3, statistics.fmean(nll), stats.sem(nll))
    assert (mean, low, high) == pytest.approx((math.exp(statistics.fmean(nll)), *map(math.exp, theirs)))
    assert perplexity(nll, [64.0, 64.0, 64.0, 64.000001]) == pytest.approx((mean, low, high))


def test_unknown_numbers_of_tokens_weigh_the_same() -> None:
    assert perplexity([2.0, 3.0], [math.nan, 100.0]) == perplexity([2.0, 3.0], [1.0, 1.0])


def test_one_text_has_no_interval_and_a_huge_loss_is_a_number() -> None:
    assert perplexity([1.0], [5.0]) == (math.e, None, None)
    assert perplexity([1e4], [5.0])[0] == math.exp(700)


def test_a_cell_of_losses_is_summarised_as_perplexity(cell) -> None:
    rows = [row for nll in ([2.0, 3.0],) for row in cell(nll, metric="nll", new_tokens=10)]
    (line,) = summaries(rows)
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


def test_rows_that_say_nothing_are_shares_unless_a_value_is_outside(cell) -> None:
    assert [line.rate for line in summaries(cell([0.0, 1.0], metric="edits"))] == [True]
    assert [line.rate for line in summaries(cell([0.0, 7.0], metric="edits"))] == [False]


def test_earlier_rows_beside_later_ones_are_read_like_them(cell) -> None:
    rows = cell([0.0, 1.0], **(EDITS | {"unit": None, "better": None})) + cell([1.0, 0.0], "h2o", **EDITS)
    assert {(line.rate, line.higher) for line in summaries(rows)} == {(False, False)}


def test_rows_of_one_metric_in_two_units_are_refused(cell) -> None:
    rows = cell([0.0, 1.0], **EDITS) + cell([1.0, 0.0], "h2o", **(EDITS | {"unit": "words"}))
    with pytest.raises(UserError, match="rows of edits differ in unit: characters, words: select some"):
        summaries(rows)
