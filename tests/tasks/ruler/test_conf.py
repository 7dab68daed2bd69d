"""Every RULER file of conf/task describes a task that yields prompts of its length."""

from pathlib import Path

import pytest

from kvbench.cli.compose import options
from kvbench.tasks.sample import Task
from tests.tasks.ruler.conftest import make

NAMES = [name.removeprefix("ruler/") for name in options("task") if name.startswith("ruler/")]


@pytest.mark.parametrize("name", NAMES)
def test_the_file_makes_the_task_of_its_name(name: str, root: Path):
    task = make(name, root)
    assert isinstance(task, Task) and task.name == f"ruler/{name}"
    (sample,) = task.generate(lambda text: len(text) // 4, [0])
    assert len(sample.prompt) // 4 + task.max_new_tokens <= task.context_length


def test_all_needle_tasks_have_a_file():
    assert len([name for name in NAMES if name.startswith("niah_")]) == 8
