"""What a launcher is given, and what it must be able to do."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from kvbench.records import ResultsFolder
from kvbench.support.errors import UserError

SIGNALS = ("SIGTERM", "SIGUSR1", "SIGUSR2")
"""What ends a run between two samples, where nothing else is set."""
LEGAL_SIGNALS = (*SIGNALS, "SIGHUP")


@runtime_checkable
class Task(Protocol):
    """A part of a sweep that can be sent elsewhere (pickled), run there, and says with which code it ended."""

    def __call__(self) -> int: ...


@dataclass(frozen=True)
class Work:
    """A sweep with rows left. `command` is how a process on this machine works on it, arguments of `python -m`;
    `tasks` makes the parts that jobs work on, from how many shards the samples of a model are divided into.
    """

    command: Sequence[str]
    results: ResultsFolder
    tasks: Callable[[int], Sequence[Task]]


@runtime_checkable
class Launcher(Protocol):
    """`name` is that of its file, `signals` what ends a run between two samples."""

    @property
    def name(self) -> str: ...
    @property
    def signals(self) -> tuple[str, ...]: ...

    def launch(self, work: Work) -> int | None:
        """Have it done. The exit code where it is done, or is handed over; None: this process shall do it."""
        ...


def check_signals(signals: Sequence[str]) -> None:
    """Raise ValueError for a name that is no signal a run can be stopped by."""
    for name in signals:
        if name not in LEGAL_SIGNALS:
            raise UserError(f"launcher.signals={name}: legal: a list of {', '.join(LEGAL_SIGNALS)}")
