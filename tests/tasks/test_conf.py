"""Every task file of conf/task describes a task that yields prompts of its length."""

from pathlib import Path

import pytest
from omegaconf import OmegaConf

from kvbench import paths
from kvbench.tasks.ruler.niah import Niah
from kvbench.tasks.sample import Task

FOLDER = paths.conf() / "task" / "ruler"
FILES = sorted(FOLDER.glob("niah_*.yaml"))


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_the_file_makes_the_task_of_its_name(file: Path):
    config = OmegaConf.create({"seed": 42, "task": OmegaConf.load(file)})
    fields = OmegaConf.to_container(config, resolve=True)["task"]  # type: ignore[index]
    target = fields.pop("_target_")
    assert target == f"{Niah.__module__}.{Niah.__qualname__}"
    task = Niah(**fields)  # type: ignore[arg-type]
    assert isinstance(task, Task) and task.name == f"ruler/{file.stem}"
    (sample,) = task.generate(lambda text: len(text) // 4, [0])
    assert len(sample.prompt) // 4 + task.max_new_tokens <= task.context_length


def test_there_are_task_files():
    assert len(FILES) >= 3
