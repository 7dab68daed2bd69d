"""KVzip's scores on cases worked out by hand from its results/metric.py."""

import pytest

from kvbench.tasks import kvzip

CASES = [
    (kvzip.inclusion, "It is The  Red-Fox, twice!", "a redfox", 1.0),
    (kvzip.inclusion, "one of them", "1", 1.0),
    (kvzip.inclusion, "someone", "1", 0.0),
    (kvzip.inclusion, "anything", "the", 1.0),
    (kvzip.inclusion, " \n", "the", 0.0),
    (kvzip.first_line, "Blue\nor red", "red", 0.0),
    (kvzip.first_line, "\nred", "red", 0.0),
    (kvzip.first_line, "Dark red, yes\nblue", "RED", 1.0),
    (kvzip.share, "VAR AB and XY", "AB, XY, QQ, ab", 0.5),
    (kvzip.share, "", "AB", 0.0),
    (kvzip.exact, "42", "42", 1.0),
    (kvzip.exact, " 42", "42", 0.0),
    (kvzip.exact, "42.", "42", 0.0),
    (kvzip.option, "(B) anything", "(B) blue", 1.0),
    (kvzip.option, "(A) blue", "(B) blue", 0.0),
    (kvzip.option, "It is blue.", "(B) Blue", 1.0),
    (kvzip.option, "B", "(B) blue", 0.0),
    (kvzip.option, "blue (dark", "(B) blue (dark) sky", 1.0),
    (kvzip.option, "", "(B) blue", 0.0),
    (kvzip.f1_or_inclusion, "red fox jumps", "red dog", 2 / 5),
    (kvzip.f1_or_inclusion, "red fox jumps", "fox", 1.0),
    (kvzip.f1_or_inclusion, "blue", "red", 0.0),
    (kvzip.solution, "6*12 = 72. The answer is $36.", "There were 72 rolls. #### 36", 1.0),
    (kvzip.solution, "The answer is 36. No, the answer is 37.", "#### 36", 0.0),
    (kvzip.solution, "36, I think", "#### 36", 1.0),
    (kvzip.solution, "The answer is 360", "#### 36", 1.0),
    (kvzip.solution, "The answer is 1000", "#### 1,000", 0.0),
    (kvzip.summary, "red fox", "red dog", 0.5),
    (kvzip.summary, " ", "red dog", 0.0),
]


@pytest.mark.parametrize(
    ("metric", "prediction", "reference", "worth"),
    CASES,
    ids=[f"{i}-{case[0].__name__}" for i, case in enumerate(CASES)],
)
def test_an_answer_is_worth_what_kvzip_says(metric, prediction: str, reference: str, worth: float) -> None:
    if metric is kvzip.summary:
        pytest.importorskip("rouge")
    assert metric(prediction, reference) == pytest.approx(worth, abs=1e-7 if metric is kvzip.summary else 1e-12)


def test_an_option_without_its_bracket_is_refused() -> None:
    with pytest.raises(ValueError, match="its closing bracket is missing"):
        kvzip.option("(A", "(A")
