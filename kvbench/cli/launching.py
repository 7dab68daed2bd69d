"""How a sweep is launched, from the settings of its command line, and how a part of it is run where that puts it."""

from collections.abc import Sequence
from dataclasses import dataclass

from kvbench.cli.compose import combinations
from kvbench.cli.overrides import Asked, parse
from kvbench.cli.settings import launcher
from kvbench.launch import Launcher
from kvbench.parts import Part

GROUP = "launcher"


def launcher_of(asked: Sequence[Asked]) -> Launcher:
    """The launcher that a command line asks for. Raises ValueError for lists: a sweep has one."""
    own = [one for one in asked if one.key.partition(".")[0] == GROUP]
    for one in own:
        if len(one.values) > 1:
            raise ValueError(f"{one.text} lists {len(one.values)} values: a sweep has one launcher")
    (config,) = combinations(own)
    return launcher(config)


def without_launcher(arguments: Sequence[str]) -> list[str]:
    """The arguments of a process that does the work itself."""
    return [argument for argument in arguments if parse([argument])[0].key.partition(".")[0] != GROUP]


@dataclass(frozen=True)
class PartOfSweep:
    """A part of the sweep that `arguments` ask for, made in the process that calls it; returns its exit code."""

    arguments: tuple[str, ...]
    retry: bool
    part: Part

    def __call__(self) -> int:
        from kvbench.cli.errors import guarded
        from kvbench.cli.run import run_sweep
        from kvbench.cli.sweep import sweep

        return guarded(lambda: run_sweep(sweep(self.arguments, self.retry, self.part)))
