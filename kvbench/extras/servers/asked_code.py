"""The code of a cell that a server answers: nothing is evicted here, and no model runs."""

from kvbench.run.code import EXTRAS, TASKS, Code, component_sha256, modules_of, package_sha256
from kvbench.support.syntax import NoSource
from kvbench.tasks.task import Task

ASKING, PROMPTS = __name__.rpartition(".")[0], "kvbench.models.prompts"
"""Packages whose code counts; this one has another name in a plugin."""
OF_TASKS = (TASKS, EXTRAS)


def asked_code(task: Task) -> Code:
    """Return the code of what asks and builds prompts, and of the task with its metric."""
    try:
        parts = {name.rpartition(".")[2]: package_sha256(name) for name in (ASKING, PROMPTS)}
        if modules := frozenset(modules_of(task, OF_TASKS)):
            parts[f"task {task.name}"] = component_sha256(modules, OF_TASKS)
    except NoSource:
        return Code(None)
    return Code(parts)
