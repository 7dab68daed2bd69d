import math
import statistics

import pytest
from scipy import stats

from kvbench.report.stats.intervals import perplexity
from kvbench.report.tables.summary import summaries


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
