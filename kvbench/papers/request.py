"""A command line of `kvbench paper`, and who makes the rows that it needs."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

from kvbench.config.overrides import Override, parse
from kvbench.run.launch.launcher import Launcher, PartToRun
from kvbench.run.shard import Shard
from kvbench.run.stale import Stale
from kvbench.work.planned import around
from kvbench.work.sweep import RunOutput


class RowsElsewhere(Exception):
    """Why an item cannot be rendered yet: its launcher has submitted the work, or was stopped with this exit code."""

    def __init__(self, reason: str, code: int) -> None:
        super().__init__(reason)
        self.code = code


@dataclass(frozen=True)
class PaperRequest:
    """The settings of a command line and its flags, which `kvbench paper --help` explains."""

    words: tuple[str, ...] = ()
    format: str = "text"
    smoke: bool = False
    plan: bool = False
    commands: bool = False
    measure: bool = False
    published: bool = False
    retry_errors: bool = False
    stale: Stale = "stop"

    @property
    def own_words(self) -> tuple[str, ...]:
        """The words without the launcher's."""
        return tuple(word for word in self.words if not word.startswith("launcher"))

    @cached_property
    def overrides(self) -> list[Override]:
        """The settings of the item."""
        return parse(self.own_words)

    @property
    def launcher(self) -> Launcher:
        """The launcher that runs the cells."""
        return around("launcher", parse(self.words))

    def command(self, name: str) -> tuple[str, ...]:
        """Return the command line that makes the rows of an item in this process."""
        flags = {
            "--smoke": self.smoke,
            "--retry-errors": self.retry_errors,
            f"--stale={self.stale}": self.stale != "stop",
        }
        return ("kvbench", "paper", name, *self.own_words, *(flag for flag, is_set in flags.items() if is_set))


@dataclass(frozen=True)
class Runner:
    """How an item's rows are made: the screen of the user, and the task that makes a part of an item elsewhere."""

    screen: RunOutput
    part: Callable[[str, PaperRequest, Shard], PartToRun]
