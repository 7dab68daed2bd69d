"""The sweep that a command line asks for, planned against the rows that there are; nothing is run or written."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import chain

import pyarrow as pa

from kvbench.config.cells import Cells
from kvbench.config.compose import combinations
from kvbench.config.overrides import parse
from kvbench.config.sweep import ONCE_PER_SWEEP, Tell, around, checked, reference_of
from kvbench.records import Places, ResultsFolder, file_sizes
from kvbench.records.rows import recorded, within
from kvbench.run.launch.local import Launcher
from kvbench.run.plan import Cell, Plan, Shard, plan
from kvbench.run.settings import Results
from kvbench.run.stale import SETTLED, Stale, settled
from kvbench.tasks.task import Task


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
    lines = [parse([*arguments, *words]) for words in methods]
    overrides = lines[0]
    launcher = around("launcher", overrides)
    by_line = [checked(line, tell) for line in lines]
    where, cells = by_line[0][0], [cell for _, of_line in by_line for cell in of_line]
    named = {override.key for override in overrides}
    for policy in {} if quiet else {cell.policy.name: cell.policy for cell in cells}.values():
        ignored = [name for name in ("score", "budget") if name in named and name not in policy.accepts]
        if ignored:
            many = "one cell for all values of" if len(ignored) == 2 else "the same cell for every"
            tell(f"{policy.name} takes no {' and no '.join(ignored)}: {many} {' and '.join(ignored)}")
    cells = [*with_reference(cells)] if reference_of(overrides) == "full" else cells
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
    full, added = Cells().cell(tree), set[str]()
    for cell in cells:
        if cell.has_full_cache:
            parts = {"model": cell.model, "holder": cell.model.holder, "task": cell.task, "seed": cell.seed}
            reference = replace(full, **parts, schedule=cell.schedule.once)
            if (name := repr(reference)) not in added:
                added.add(name)
                yield reference
        yield cell
