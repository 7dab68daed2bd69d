"""Tasks whose data is not there, found before anything runs: all of them at once, and what can be done about it."""

from collections.abc import Iterable

from kvbench.run.plan import Cell
from kvbench.support.errors import MissingFile
from kvbench.tasks.files import FromFiles, NoData


def check_data(cells: Iterable[Cell]) -> None:
    """Raise FileNotFoundError where a task of these cells lacks data.

    A group such as `task=longbench` means all of its tasks: those that are there are not run instead, but named.
    """
    tasks = {cell.task.name: cell.task for cell in cells}
    missing: dict[str, NoData] = {}
    for name, task in tasks.items():
        try:
            _ = task.data_sha256 if isinstance(task, FromFiles) else None
        except NoData as error:
            missing[name] = error
    if not missing:
        return
    first = next(iter(missing.values()))
    if len(tasks) == 1:
        raise first
    families = {error.name.partition("/")[0]: error for error in reversed(missing.values())}
    there = [name for name in tasks if name not in missing]
    instead = f"; or run the {len(there)} that have data: task={','.join(there)}" if there else ""
    raise MissingFile(
        f"no data for {len(missing)} of {len(tasks)} tasks: {', '.join(missing)}; "
        f"{'; '.join(str(error) for error in reversed(families.values()))}{instead}"
    )
