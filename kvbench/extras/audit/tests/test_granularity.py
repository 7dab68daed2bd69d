"""Whether the printed numbers can be means of their items' samples; expected counts are computed by hand."""

from dataclasses import replace
from fractions import Fraction

import pytest

from kvbench.extras.audit.granularity import answers_of, impossible, is_possible, parts_of, step_of
from kvbench.papers.cells import cells_of_item
from kvbench.papers.item import Item, item_of, names
from kvbench.support import paths


def tasks_of(*settings: str):
    """The tasks of these settings, each once."""
    words = ("model=reference", "policy=full", *settings)
    return [entry.cell.task for entry in cells_of_item(Item("x/y", "t", settings=words), []).entries]


@pytest.mark.parametrize(
    ("value", "step", "possible"),
    [
        ("67.2", Fraction(100, 229), True),  # 154 / 229 = 67.249 %
        ("67.2", Fraction(100, 50), False),  # 66 or 68
        ("67.8", Fraction(100, 229), False),  # 155 / 229 = 67.686 %, 156 / 229 = 68.122 %
        ("6.5", Fraction(100, 200), True),
        ("6.6", Fraction(100, 200), False),
        ("0.174", Fraction(1, 500), True),
        ("0.174", Fraction(1, 60), False),  # 10 / 60 = 0.167, 11 / 60 = 0.183
        ("94.37", Fraction(100, 100), False),
        ("0.125", Fraction(1, 8), True),
        ("0.12", Fraction(1, 8), True),  # 0.125 rounds to it or to 0.13
        ("0.13", Fraction(1, 8), True),
        ("0.11", Fraction(1, 8), False),
        ("50", Fraction(100, 3), False),  # 33 or 67
        ("0", Fraction(1, 3), True),
    ],
)
def test_a_number_is_possible_if_a_multiple_of_the_step_rounds_to_it(value: str, step: Fraction, possible: bool):
    assert is_possible(value, step) is possible


def test_scores_are_counted_in_parts():
    """RULER: 1 value, 4 values, 5 variables, 10 words, 3 words, one of several answers; a needle's 11 words; F1."""
    names = ["niah_single_2", "niah_multivalue", "vt", "cwe", "fwe", "qa_1"]
    for family in ("ruler", "ruler_published"):
        tasks = tasks_of("task=" + ",".join(f"{family}/{name}" for name in names), "task.context_length=4096")
        assert [parts_of(task) for task in tasks] == [1, 4, 5, 10, 3, 1]
    needles = [tasks_of("task=needle/official", f"task.scorer={scorer}")[0] for scorer in ("words", "inclusion")]
    assert [parts_of(task) for task in needles] == [11, 1]
    (rouge,) = tasks_of("task=needle/official", "task.scorer=rouge1")
    assert parts_of(rouge) is None
    book = "infinitebench/longbook_"
    others = tasks_of(f"task={book}choice_eng,{book}sum_eng,longbench/trec")
    assert [parts_of(task) for task in others] == [1, None, None]


def test_a_mean_of_means_has_the_common_denominator():
    """(a / 20 + b / 80 + c / 60) / 3 = (12 a + 3 b + 4 c) / 720."""
    tasks = tasks_of("task=ruler/niah_single_1,ruler/niah_multivalue,ruler/fwe", "task.samples=20")
    assert step_of(tasks) == Fraction(1, 720)
    assert step_of([*tasks, *tasks_of("task=longbench/qasper")]) is None and step_of([]) is None
    (task,) = tasks_of("task=infinitebench/longbook_choice_eng", "task.samples=500")
    assert answers_of(task) == 229 and answers_of(replace(task, samples=50)) == 50, "no more answers than rows"


REASONS = {  # CAKE lost some rows: 154 of 227 and 13 of 197 would give its numbers
    ("lava/table12", "67.8"): "not_of_all_rows",
    ("lava/table12", "6.6"): "not_of_all_rows",
    ("kvpress/chunkkv", "76.85"): "copy_of_niah_multiquery;model_not_stated",  # of qa_2, which has one part
    ("triattention/aime", "31.4"): "not_of_all_rows",  # between 75 and 76 of 240
    ("triattention/math500", "65.5"): "not_of_all_rows",  # between 327 and 328 of 500
    ("triattention/math500", "76.9"): "not_of_all_rows",
}


@pytest.mark.parametrize("name", [name for name in names() if item_of(name).published])
def test_printed_numbers_are_means_of_the_items_samples_or_say_why_not(name: str):
    lacking = impossible(item_of(name), paths.papers())
    found = {(one.item, one.number.value): one.number.flag for one in lacking}
    expected = {place: flag for place, flag in REASONS.items() if place[0] == name}
    assert found == expected, "\n".join(map(str, lacking))


@pytest.mark.parametrize(
    ("name", "settings", "count"),
    [
        ("lava/table12", ("task.samples=50",), 12),  # every choice and dialogue
        ("caote/table13", ("task.context_length=1000,2000,3000,4000,5000,6000",), 14),  # 0.3, 0.32, 0.33, 0.27: k / 60
    ],
)
def test_another_number_of_samples_is_noticed(name: str, settings: tuple[str, ...], count: int):
    item = item_of(name)
    other = replace(item, settings=(*item.settings, *settings))
    assert len(impossible(other, paths.papers())) == count


def test_questions_of_kvzip_are_no_samples():
    """94.37, 94.45, 94.25 and 32.15 of 100 questions."""
    item = item_of("kvzip/repeat_prompt")
    questions = replace(item, mean_over="questions", settings=(*item.settings, "task.samples=100"))
    assert [one.number.value for one in impossible(questions, paths.papers())] == ["94.37", "94.45", "94.25", "32.15"]
    assert item.mean_over == "contexts" and impossible(item, paths.papers()) == []


def test_the_reason_is_told():
    (choice, _) = impossible(item_of("lava/table12"), paths.papers())
    assert str(choice).endswith("longbook_choice_eng: 67.8 is no multiple of 0.4367 (not of all rows)")
