"""Settings that every task has."""

from dataclasses import dataclass, replace
from typing import Literal

import pytest

from kvbench.tasks.task import Sample, TaskSettings
from tests.questions import Questions, answered


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"stop": ("\n", "")}, r"task\.stop lists an empty text"),
        ({"min_new_tokens": -1}, r"task\.min_new_tokens=-1: allowed: 0 or more"),
        ({"temperature": -0.5}, r"task\.temperature=-0\.5: allowed: 0 \(the most likely token\) or more"),
        ({"temperature": float("inf")}, r"task\.temperature=inf"),
        ({"temperature": 1.0, "top_p": 0.0}, r"task\.top_p=0\.0: allowed: above 0 and at most 1"),
        ({"temperature": 1.0, "samples_per_prompt": 0}, r"task\.samples_per_prompt=0: allowed: an integer above 0"),
        ({"samples_per_prompt": 4}, r"samples_per_prompt=4 .* are for drawn answers: set task\.temperature above 0"),
    ],
)
def test_what_no_protocol_can_mean_is_refused(fields: dict, message: str):
    with pytest.raises(ValueError, match=message):
        TaskSettings(**fields)


def test_a_truncation_needs_a_length():
    for truncation in ("middle", "left", "right"):
        with pytest.raises(ValueError, match=rf"task\.truncation={truncation} needs a limit: set task\.max_prompt_"):
            TaskSettings(truncation=truncation)
    with pytest.raises(ValueError, match=r"task\.max_prompt_tokens=1: allowed: 2 or more"):
        TaskSettings(truncation="middle", max_prompt_tokens=1)


def test_answers_to_a_prompt_are_samples_with_numbers_of_their_own():
    task = Questions(temperature=1.0, samples_per_prompt=3)
    assert task.num_answers == 18
    samples = answered(task, [7, 0, 8, 17])
    assert [sample.id for sample in samples] == [0, 7, 8, 17]
    prompts = {sample.id: sample for sample in task.generate(len, range(6))}
    assert all(replace(sample, id=sample.id // 3) == prompts[sample.id // 3] for sample in samples)


def test_an_answer_that_ended_within_its_reasoning_has_the_worst_value():
    """Zero, or that of an empty answer where less is better."""

    @dataclass(frozen=True)
    class Errors(Questions):
        better: Literal["higher", "lower"] = "lower"

        def score(self, prediction: str, sample: Sample) -> float:
            return 1 - super().score(prediction, sample)

    (sample,) = answered(Questions(), [0])
    assert Questions().value(None, sample) == 0 and Questions().value("x" * 20, sample) == 0.2
    assert Errors().value(None, sample) == 1 and Errors().value("x" * 20, sample) == 0.8
