"""The sweep that a command line asks for: parsed, composed, checked and planned; nothing is run or written."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property

from kvbench.cli.launching import launcher_of, logger_of, without_launcher
from kvbench.cli.terminal import tell, warn
from kvbench.config.cells import Cells
from kvbench.config.compose import Tree, combinations
from kvbench.config.missing import check_data
from kvbench.config.overrides import Asked, parse
from kvbench.config.settings import Results
from kvbench.records import Places, ResultsFolder, Row, check_writable, done, places, read_rows
from kvbench.report.loggers import Logger, NoLogger
from kvbench.run.launch import Launcher
from kvbench.run.plan import Cell, Plan, Shard, plan
from kvbench.support.errors import UserError

RETRY = "--retry-errors"
"""The flag that makes rows again which have an error: once the machine has more memory, say."""


@dataclass(frozen=True)
class Sweep:
    """A plan, the folder its rows are in, the rows that are there already and how far that was read, and how new ones
    are written. `arguments` are those of the command without its launcher. `part`: what of it is to do, if not all.
    `quiet`: nothing but warnings and errors is said.
    """

    plan: Plan
    results: ResultsFolder
    rows: list[Row]
    since: Places
    where: Results
    arguments: tuple[str, ...]
    launcher: Launcher
    retry: bool
    part: Shard | None
    logger: Logger = field(default_factory=NoLogger)
    quiet: bool = False

    def holds(self, row: Row) -> bool:
        """Whether a row of the folder belongs to this sweep."""
        return row.sample < self.samples.get(row.cell, 0)

    @cached_property
    def samples(self) -> dict[str, int]:
        """How many samples each cell has."""
        return {cell.id: cell.task.samples for cell in self.plan.cells}


def sweep(
    arguments: Sequence[str], retry_errors: bool = False, part: Shard | None = None, quiet: bool = False
) -> Sweep:
    """Plan what `arguments` ask for, or a part of it; rows with errors count as missing when they are retried.

    Raises ValueError for bad input and for a folder that cannot be written.
    """
    asked = parse(arguments)
    launcher, logger = launcher_of(asked), logger_of(asked)
    where, cells = checked(asked)
    if not quiet:
        _notice(cells, asked)
    since = places(where.dir)
    rows = read_rows(where.dir, warn=warn)
    planned = plan(cells, done(rows, retry_errors))
    if part is not None:
        planned = part.part_of(planned)
    alone = tuple(without_launcher(arguments))
    return Sweep(
        planned, ResultsFolder(where.dir), rows, since, where, alone, launcher, retry_errors, part, logger, quiet
    )


def checked(asked: Sequence[Asked], everywhere: bool = False) -> tuple[Results, list[Cell]]:
    """Where rows go and the cells of a command line, built and found legal; `everywhere` as in `combinations`.

    What a pattern of policies or scores matches and cannot be run is left out, which is said on stderr. Raises
    ValueError for the first cell that is not legal, or where none is left.
    """
    configs, build = combinations(asked, everywhere), Cells()
    cells, legal = [], []
    refused: dict[str, dict[str, list[str]]] = {}
    for config in configs:
        try:
            one = build.cell(config)
            one.check()
            cells.append(one)
            legal.append(config)
        except ValueError as error:
            if everywhere and len(configs) > 1:
                named = f"policy={config['policy']['name']} score={config['score']['name']}"
                raise UserError(f"{named}: {error}") from error
            if not _matched(config, asked) or (config is configs[-1] and not cells):
                raise
            policies = refused.setdefault(str(error), {}).setdefault(config["score"]["name"], [])
            if config["policy"]["name"] not in policies:
                policies.append(config["policy"]["name"])
    found = dict.fromkeys(build.results(config) for config in legal or configs)
    folders = dict.fromkeys(one.dir for one in found)
    if len(folders) != 1:
        raise UserError(f"results.dir lists {len(folders)} folders: {', '.join(sorted(folders))}; a sweep has one")
    for name in ("kept", "lease_seconds"):
        values = dict.fromkeys(str(getattr(one, name)) for one in found)
        if len(values) != 1:
            raise UserError(f"results.{name} lists {len(values)} values: {', '.join(values)}; a sweep has one")
    (where,) = found
    check_data(cells)
    check_writable(where.dir)
    for error, pairs in refused.items():
        for score, policies in pairs.items():
            tell(f"left out score {score} on {', '.join(policies)}: {error}")
    return where, cells


def _matched(config: Tree, asked: Sequence[Asked]) -> bool:
    """Whether a pattern rather than a name brought a policy or score into a combination."""
    return any(
        one.key in ("policy", "score")
        and config[one.key]["name"] not in {value.text for value in one.values}
        and (one.key == "policy" or "score" in config["policy"]["takes"])
        for one in asked
    )


def _notice(cells: Sequence[Cell], asked: Sequence[Asked]) -> None:
    """Say which policies ignore what they were crossed with."""
    named = {one.key for one in asked}
    for policy in {one.policy.name: one.policy for one in cells}.values():
        ignored = [what for what in ("score", "budget") if what in named and what not in policy.takes]
        if ignored:
            many = "one cell whatever the" if len(ignored) == 2 else "the same cell for every"
            tell(f"{policy.name} takes no {' and no '.join(ignored)}: {many} {' and '.join(ignored)}")
