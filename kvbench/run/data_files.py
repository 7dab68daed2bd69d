"""Whether the data of a sweep's tasks are there, and are what was locked or pulled."""

from collections.abc import Callable, Iterable

from kvbench.run.plan import Cell
from kvbench.support.errors import MissingFile
from kvbench.tasks.data.record import altered_files
from kvbench.tasks.files import NoData, command, folder


def check_data(cells: Iterable[Cell]) -> None:
    """Raise MissingFile where a task of these cells lacks data: names all of them at once, and what can be done.

    A group such as `task=longbench` means all of its tasks: those that have data are named, not run instead.
    """
    tasks = {cell.task.name: cell.task for cell in cells}
    missing: dict[str, NoData] = {}
    for name, task in tasks.items():
        try:
            task.identity()
        except NoData as error:
            missing[name] = error
    if not missing:
        return
    if len(tasks) == 1:
        raise next(iter(missing.values()))
    families = {error.name.partition("/")[0]: error for error in reversed(missing.values())}
    able = [name for name in tasks if name not in missing]
    instead = f"; or run the {len(able)} that have data: task={','.join(able)}" if able else ""
    raise MissingFile(
        f"no data for {len(missing)} of {len(tasks)} tasks: {', '.join(missing)}; "
        f"{'; '.join(str(error) for error in reversed(families.values()))}{instead}"
    )


def check_unaltered(cells: Iterable[Cell], verify: bool, tell: Callable[[str], object]) -> None:
    """Raise MissingFile where a task reads files that differ from the lock or their download; without `verify`
    only tell.
    """
    for task in {cell.task.name: cell.task for cell in cells}.values():
        if differing := altered_files(task):
            root = getattr(task, "root", None)
            more = f" and {len(differing) - 1} more" if differing[1:] else ""
            family = differing[0].partition("/")[0]
            text = f"{folder(root) / differing[0]}{more} of {task.name} differs from what was locked or pulled"
            if verify:
                again = f"{command(root, family)} --replace fetches it again"
                raise MissingFile(f"{text}: {again}; data.verify=false reads it as it is")
            tell(f"warning: {text}: its rows say so, and count as another task's")
