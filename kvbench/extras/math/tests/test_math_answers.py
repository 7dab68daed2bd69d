"""Boxed values: which one counts, and what equals what."""

import pytest

from kvbench.extras.math import math_problems as math_answers
from kvbench.extras.math.math_problems import boxed, same_value
from kvbench.support.errors import UserError


@pytest.mark.parametrize(
    ("answer", "value"),
    [
        (r"so \boxed{3}.", "3"),
        (r"\boxed{1} or rather \boxed{\frac{1}{2}}", r"\frac{1}{2}"),
        (r"\boxed{\{1, 2\}}", r"\{1, 2\}"),
        (r"\boxed{\left\{ x \mid x > 0 \right\}} done", r"\left\{ x \mid x > 0 \right\}"),
        (r"\boxed{a \\} b", r"a \\"),
        (r"\boxed{\frac{1}{2}", None),
        (r"\boxed{2} and then \boxed{3", None),
        (r"boxed{3}", None),
        (r"\fbox{3}", None),
        ("", None),
        (r"\boxed{}", ""),
    ],
)
def test_the_last_box_counts_with_balanced_braces(answer: str, value: str | None) -> None:
    assert boxed(answer) == value


@pytest.mark.parametrize(
    ("value", "reference", "score"),
    [
        (r"\left(3,\frac{\pi}{2}\right)", r"\left( 3, \frac{\pi}{2} \right)", 1),
        ("0.5", r"\frac{1}{2}", 1),
        (r"\dfrac12", r"\frac{1}{2}", 1),
        ("3, 2, 1", "1,2,3", 1),
        (r"11\sqrt{2}", r"11\sqrt2", 1),
        ("-q + p", "p - q", 1),
        (r"\text{Evelyn}", "Evelyn", 1),
        ("204", "204", 1),
        ("25", "025", 1),
        (r"\frac{1}{3}", r"\frac{1}{2}", 0),
        ("(1, 2)", "(2, 1)", 0),
        ("", "7", 0),
        ("nonsense }{", "7", 0),
        ("204.", "204", 1),
        ("204", "204.", 1),
        (r"\text{C}.", r"\text{C}", 1),
        ("2.", "20", 0),
        (r"75\%", r"\frac{3}{4}", 1),
        ("75%", "0.75", 1),
        (r"75 \%", "75", 1),
        ("0.75", r"75\%", 1),
        (r"75\%", r"75.0\%", 1),
        (r"75\%", r"0.75\%", 0),
        ("75", r"\frac{3}{4}", 0),
        (r"3,\frac{\pi}{2}", r"\left( 3, \frac{\pi}{2} \right)", 1),
        (r"\frac{\pi}{2},3", r"\left( 3, \frac{\pi}{2} \right)", 0),
    ],
)
def test_equal_values_are_equal_however_they_are_written(value: str, reference: str, score: float) -> None:
    assert same_value(rf"Thus \boxed{{{value}}}", reference) == score


def test_a_comparison_without_end_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its process is ended too; the next comparison has another."""
    assert same_value(r"\boxed{0.5}", r"\frac12") == 1
    monkeypatch.setattr(math_answers, "SECONDS", 0.0)
    assert same_value(r"\boxed{0.25}", r"\frac14") == 0
    monkeypatch.undo()
    assert same_value(r"\boxed{0.25}", r"\frac14") == 1


def test_another_release_of_math_verify_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(math_answers, "VERSION", "0.0.1")
    with pytest.raises(UserError, match=r"math-verify 0\.0\.1, installed is"):
        math_answers.check_package()
