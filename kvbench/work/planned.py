"""The sweep that a command line asks for: its cells, built and checked, and a plan. Nothing is run or written."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import chain
from typing import Any

import pyarrow as pa

from kvbench.config.cells import CellBuilder, refuse_eviction
from kvbench.config.compose import at, combinations, resolved, with_members
from kvbench.config.entries import Tree
from kvbench.config.overrides import Override, parse
from kvbench.config.settings import build
from kvbench.config.validation import validated
from kvbench.records import Places, ResultsFolder, check_writable, file_sizes
from kvbench.records.rows import recorded, within
from kvbench.run.cell import Cell
from kvbench.run.launch.launcher import Launcher
from kvbench.run.plan import Plan, plan
from kvbench.run.settings import Results
from kvbench.run.shard import Shard
from kvbench.run.stale import SETTLED, Stale, settled
from kvbench.support.errors import MissingFile, UserError
from kvbench.support.grouped import grouped
from kvbench.support.plugins import faults
from kvbench.tasks.files import NoData, command, folder
from kvbench.tasks.task import Task

Tell = Callable[[str], None]
"""Tells the user something in a line."""
ONCE_PER_SWEEP = ("launcher", "logger")
"""Groups that say what happens around the work, and nothing about it."""


@dataclass(frozen=True)
class Sweep:
    """A plan, the folder of its rows, how far they were read, and how new ones are written.

    arguments: of the command without its launcher. part: what of it is to do, if not all. stale: what is done about
    rows of other code. quiet: only warnings and errors are printed. replaced: as in `Settled`.
    """

    plan: Plan
    results: ResultsFolder
    since: Places
    where: Results
    arguments: tuple[str, ...]
    launcher: Launcher
    retry: bool
    part: Shard | None
    quiet: bool = False
    stale: Stale = "stop"
    replaced: Mapping[tuple[str, int], int] = field(default_factory=dict)

    def rows(self, columns: Sequence[str], keep: bool = False) -> pa.Table:
        """Return these columns of its rows that are recorded now; their faults were told when they were planned.

        ``keep``: leave copies of what is parsed, as `recorded`.
        """
        return within(recorded(self.results, columns, lambda text: None, self.samples, keep), self.samples)

    @cached_property
    def samples(self) -> dict[str, int]:
        """How many samples each cell has, each answer counted."""
        return {cell.id: cell.task.num_answers for cell in self.plan.cells}

    @property
    def report(self) -> str:
        """The report of its tasks; where they have several, the usual one."""
        names = {cell.task.report for cell in self.plan.cells}
        return names.pop() if len(names) == 1 else Task.report


def plan_sweep(
    arguments: Sequence[str],
    tell: Tell,
    retry_errors: bool = False,
    part: Shard | None = None,
    quiet: bool = False,
    stale: Stale = "stop",
    methods: Sequence[Sequence[str]] = ((),),
) -> Sweep:
    """Plan what `arguments` ask for, or a part of it; rows with errors count as missing when they are retried.

    methods: settings of which each stands beside `arguments` once: the cells of all of them are one plan.

    Raises UserError for bad input, for a folder that cannot be written, and for rows of other code, as `settled`.
    """
    for fault in () if quiet else faults():
        tell(f"warning: {fault}")
    lines = [parse([*arguments, *words]) for words in methods]
    overrides = lines[0]
    launcher = around("launcher", overrides)
    by_line = [checked(line, tell) for line in lines]
    where, cells = by_line[0][0], [cell for _, of_line in by_line for cell in of_line]
    named = {override.key for override in overrides}
    policies = {cell.policy.name: cell.policy for cell in cells if cell.model.runs_here}
    for policy in {} if quiet else policies.values():
        ignored = [name for name in ("score", "budget") if name in named and name not in policy.accepts]
        if ignored:
            many = "one cell for all values of" if len(ignored) == 2 else "the same cell for every"
            tell(f"{policy.name} takes no {' and no '.join(ignored)}: {many} {' and '.join(ignored)}")
    cells = [*with_reference(cells)] if _once("reference", overrides) == "full" else cells
    own = [word for word in chain(arguments, *methods) if parse([word])[0].root not in ONCE_PER_SWEEP]
    return sweep_of(cells, where, launcher, tell, own, retry_errors, part, quiet, stale)


def sweep_of(
    cells: Sequence[Cell],
    where: Results,
    launcher: Launcher,
    tell: Tell,
    arguments: Sequence[str],
    retry: bool = False,
    part: Shard | None = None,
    quiet: bool = False,
    stale: Stale = "stop",
) -> Sweep:
    """Return the sweep of these cells, with what their folder has of them. Raises UserError as `settled`."""
    since, results = file_sizes(where.dir), ResultsFolder(where.dir)
    rows = recorded(results, SETTLED, lambda warning: tell(f"warning: {warning}"), {cell.id for cell in cells})
    done, replaced = settled(rows, cells, results, retry, stale, lambda text: None if quiet else tell(text))
    planned = plan(cells, done) if part is None else part.part_of(plan(cells, done))
    return Sweep(planned, results, since, where, tuple(arguments), launcher, retry, part, quiet, stale, replaced)


def with_reference(cells: Iterable[Cell]) -> Iterator[Cell]:
    """Yield the cells, and before the first of each task the full cache: the cell that `policy=full` names.

    Cells without a full cache get none: the full cache of a server is another server, or another start.
    """
    cells = list(cells)
    if not any(cell.has_full_cache for cell in cells):
        yield from cells
        return
    (tree,) = combinations(parse(["policy=full"]))
    full, added = CellBuilder().cell(tree), set[str]()
    for cell in cells:
        if cell.has_full_cache:
            held = full.with_method(holder=cell.model.holder)
            reference = replace(held, model=cell.model, task=cell.task, schedule=cell.schedule.once, seed=cell.seed)
            if (name := repr(reference)) not in added:
                added.add(name)
                yield reference
        yield cell


def checked(overrides: Sequence[Override], tell: Tell) -> tuple[Results, list[Cell]]:
    """Return where rows go and the cells of a command line, built and checked.

    What a pattern of policies or scores matches and cannot be run is left out and reported. Raises UserError for the
    first cell that is not allowed, or where none is left; MissingFile where a task lacks its data.
    """
    trees, builder = combinations(overrides), CellBuilder()
    refuse_eviction(overrides, trees)
    cells: list[Cell] = []
    allowed: list[Tree] = []
    refused: dict[tuple[str, str], dict[str, None]] = {}
    for tree in trees:
        try:
            cell = builder.cell(tree)
            cell.check()
        except ValueError as error:
            if not _matched(tree, overrides) or (tree is trees[-1] and not cells):
                raise
            refused.setdefault((str(error), tree["score"]["name"]), {})[tree["policy"]["name"]] = None
        else:
            cells.append(cell)
            allowed.append(tree)
    where = results_of((builder.results(tree) for tree in allowed or trees), "a sweep")
    check_data(cells)
    check_unaltered(cells, verifies(overrides), tell)
    check_writable(where.dir)
    for (error, score), policies in refused.items():
        tell(f"left out score {score} on {', '.join(policies)}: {error}")
    return where, cells


def one_tree(words: Sequence[str]) -> Tree:
    """Compose the settings of a line. Raises UserError for a line with lists."""
    overrides = with_members(parse(words))
    for override in overrides:
        if len(override.values) > 1:
            combinations(overrides)  # names a value that does not exist first
            raise UserError(f"{override.text} lists {len(override.values)} values: name one")
    return combinations(overrides)[0]


def cells_of(overrides: Sequence[Override], unused: set[str]) -> tuple[Results, list[Cell]]:
    """Return where rows go and the distinct cells of a command line, models and tasks varying slowest; none is left
    out.

    Settings that no combination has are added to `unused`. Raises UserError for the first cell that is not allowed.
    """
    trees, builder = combinations(overrides, unused=unused), CellBuilder()
    cells = list({repr(cell): cell for cell in map(builder.cell, trees)}.values())
    cells = [*chain(*grouped(cells, lambda cell: (repr(cell.model), repr(cell.task), cell.seed)).values())]
    for cell in cells:
        cell.check()
    return results_of(map(builder.results, trees), "an item"), cells


def results_of(trees: Iterable[Results], scope: str) -> Results:
    """Return the results settings that all trees of a command have. Raises UserError where they differ."""
    distinct = list(dict.fromkeys(trees))
    for name, noun in (("dir", "folders"), ("kept", "values"), ("lease_seconds", "values")):
        values = list(dict.fromkeys(str(getattr(results, name)) for results in distinct))
        if len(values) != 1:
            raise UserError(f"results.{name} lists {len(values)} {noun}: {', '.join(values)}; {scope} has one")
    return distinct[0]


def refuse_around(overrides: Iterable[Override], command: str) -> None:
    """Raise UserError for a launcher or logger of a command that works in its own process alone."""
    for override in overrides:
        if override.root in ONCE_PER_SWEEP:
            raise UserError(f"{override.text}: {command} runs in this process only: leave {override.root} out")


def _matched(tree: Tree, overrides: Sequence[Override]) -> bool:
    """Return whether a pattern rather than a name brought a policy or score into a combination."""
    return any(
        override.key in ("policy", "score")
        and tree[override.key]["name"] not in {value.text for value in override.values}
        and tree[override.key]["_target_"] not in {value.text for value in override.values}
        and (override.key == "policy" or "score" in tree["policy"]["accepts"])
        for override in overrides
    )


def around(group: str, overrides: Sequence[Override]) -> Any:
    """Build a group of `ONCE_PER_SWEEP`: one object for the whole sweep. Raises UserError for lists."""
    return build(group, resolved({group: _once(group, overrides)}, group))


def verifies(overrides: Sequence[Override]) -> bool:
    """Return whether a command refuses data files that differ from the lock. Raises UserError for a list."""
    return validated(bool, "data.verify", _once("data.verify", overrides))


def _once(name: str, overrides: Sequence[Override]) -> Any:
    """Return a part or a setting that a command has once. Raises UserError for a list of values."""
    settings = [override for override in overrides if name in (override.key, override.root)]
    for override in settings:
        if len(override.values) > 1:
            raise UserError(f"{override.text} lists {len(override.values)} values: a sweep has one {name}; name one")
    (tree,) = combinations(settings)
    return at(tree, name.split("."))


def check_data(cells: Iterable[Cell]) -> None:
    """Raise MissingFile where a task of these cells lacks data: names all of them at once, and what can be done.

    A group such as `task=longbench` means all of its tasks: those that have data are named, not run instead.
    """
    tasks = {cell.task.name: cell.task for cell in cells}
    missing = lacking_data(tasks.values())
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


def lacking_data(tasks: Iterable[Task]) -> dict[str, NoData]:
    """Return what each task lacks of its data, by its name; tasks that lack nothing are left out."""
    missing: dict[str, NoData] = {}
    for task in {task.name: task for task in tasks}.values():
        try:
            task.identity()
        except NoData as error:
            missing[task.name] = error
    return missing


def check_unaltered(cells: Iterable[Cell], verify: bool, tell: Callable[[str], object]) -> None:
    """Raise MissingFile where a task reads files that differ from the lock or their download; without `verify`
    only tell.
    """
    for task in {cell.task.name: cell.task for cell in cells}.values():
        if differing := task.identity().get("data_altered"):
            root = getattr(task, "root", None)
            more = f" and {len(differing) - 1} more" if differing[1:] else ""
            family = differing[0].partition("/")[0]
            text = f"{folder(root) / differing[0]}{more} of {task.name} differs from what was locked or pulled"
            if verify:
                again = f"{command(root, family)} --replace fetches it again"
                raise MissingFile(f"{text}: {again}; data.verify=false reads it as it is")
            tell(f"warning: {text}: its rows say so, and count as another task's")
