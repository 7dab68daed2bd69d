"""Settings that every task has."""

import pytest

from kvbench.tasks.task import TaskSettings


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"stop": ("\n", "")}, r"task\.stop lists an empty text"),
        ({"min_new_tokens": -1}, r"task\.min_new_tokens=-1: 0 or more"),
    ],
)
def test_what_no_protocol_can_mean_is_refused(fields: dict, message: str):
    with pytest.raises(ValueError, match=message):
        TaskSettings(**fields)


def test_a_truncation_needs_a_length():
    for truncation in ("middle", "left", "right"):
        with pytest.raises(ValueError, match=rf"task\.truncation={truncation} needs a limit: set task\.max_prompt_"):
            TaskSettings(truncation=truncation)
    with pytest.raises(ValueError, match=r"task\.max_prompt_tokens=1: at least 2"):
        TaskSettings(truncation="middle", max_prompt_tokens=1)


def test_samples_have_contexts_of_their_own_unless_a_task_knows_better():
    assert [TaskSettings().context_of(sample) for sample in (0, 7)] == [0, 7]
