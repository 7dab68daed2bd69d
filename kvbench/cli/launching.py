"""How a sweep is launched, from the settings of its command line, and how a part of it is run where that puts it."""

from collections.abc import Sequence
from dataclasses import dataclass

from kvbench.config.compose import Tree, combinations
from kvbench.config.overrides import Asked, parse
from kvbench.config.settings import launcher, logger
from kvbench.report.loggers import Logger
from kvbench.run.launch import Launcher
from kvbench.run.plan import Shard
from kvbench.support.errors import UserError

AROUND = ("launcher", "logger")
"""Groups that say what happens around the work, and nothing about it."""


def launcher_of(asked: Sequence[Asked]) -> Launcher:
    """The launcher that a command line asks for. Raises ValueError for lists: a sweep has one."""
    return launcher(_one("launcher", asked))


def logger_of(asked: Sequence[Asked]) -> Logger:
    """The logger that a command line asks for. Raises ValueError for lists, and for one that cannot work here."""
    found = logger(_one("logger", asked))
    found.check()
    return found


def without_launcher(arguments: Sequence[str]) -> list[str]:
    """The arguments of a process that does the work itself, and leaves what is around it to others."""
    return [argument for argument in arguments if parse([argument])[0].key.partition(".")[0] not in AROUND]


def _one(group: str, asked: Sequence[Asked]) -> Tree:
    own = [one for one in asked if one.key.partition(".")[0] == group]
    for one in own:
        if len(one.values) > 1:
            raise UserError(f"{one.text} lists {len(one.values)} values: a sweep has one {group}")
    (config,) = combinations(own)
    return config


@dataclass(frozen=True)
class PartOfSweep:
    """A part of the sweep that `arguments` ask for, made in the process that calls it; returns its exit code."""

    arguments: tuple[str, ...]
    retry: bool
    part: Shard

    def __call__(self) -> int:
        from kvbench.cli.errors import guarded
        from kvbench.cli.run import run_sweep
        from kvbench.cli.sweep import sweep

        return guarded(lambda: run_sweep(sweep(self.arguments, self.retry, self.part)))
