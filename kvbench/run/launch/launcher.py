"""The interface of launchers: what they are given, what they must do, and the launcher that does nothing."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from kvbench.records import ResultsFolder
from kvbench.support.errors import UserError

SIGNALS = ("SIGTERM", "SIGUSR1", "SIGUSR2")
"""The signals that stop a run between two samples by default."""
ALLOWED_SIGNALS = (*SIGNALS, "SIGHUP")


Task = Callable[[], int]
"""A part of a sweep that can be pickled and run elsewhere; returns its exit code."""


@dataclass(frozen=True)
class Work:
    """A sweep with rows left.

    command: the arguments of `python -m` with which a process of this machine works on it. tasks: makes the parts for
    jobs, given the number of shards into which the samples of each model are divided.
    """

    command: Sequence[str]
    results: ResultsFolder
    tasks: Callable[[int], Sequence[Task]]


@runtime_checkable
class Launcher(Protocol):
    """`name` is that of its settings file; `signals` stop a run between two samples."""

    @property
    def name(self) -> str: ...
    @property
    def signals(self) -> tuple[str, ...]: ...

    def launch(self, work: Work) -> int | None:
        """Start the work. Returns its exit code if it has ended or is submitted, None if the caller makes the rest."""


@dataclass(frozen=True)
class InProcess:
    """No launcher: the calling process does the work. Only signals can be set."""

    name: str = "none"
    signals: tuple[str, ...] = SIGNALS

    def __post_init__(self) -> None:
        check_signals(self.signals)

    def launch(self, work: Work) -> None:
        """Do nothing."""


def check_signals(signals: Sequence[str]) -> None:
    """Raise ValueError for a name that is not a signal which can stop a run."""
    for name in signals:
        if name not in ALLOWED_SIGNALS:
            raise UserError(f"launcher.signals={name}: allowed: a list of {', '.join(ALLOWED_SIGNALS)}")
