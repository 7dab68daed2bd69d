"""The interface of launchers, which start the work of a sweep in other processes."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

from kvbench.records import ResultsFolder
from kvbench.support.annotations import Help

if TYPE_CHECKING:
    from kvbench.run.launch.request import SubmitRequest

Signal = Literal["SIGTERM", "SIGUSR1", "SIGUSR2", "SIGHUP"]
SIGNALS: tuple[Signal, ...] = ("SIGTERM", "SIGUSR1", "SIGUSR2")
"""The signals that stop a run between two samples by default."""
PartToRun = Callable[[], int]
"""A part of a sweep that can be pickled and run elsewhere; returns its exit code."""


@dataclass(frozen=True)
class PendingSweep:
    """A sweep with rows left.

    command: the arguments of `python -m` with which a process of this machine works on it. tasks: makes the parts for
    jobs, given the number of shards into which the samples of each model are divided.
    """

    command: Sequence[str]
    results: ResultsFolder
    tasks: Callable[[int], Sequence[PartToRun]]


@dataclass(frozen=True)
class Launcher:
    """Base class of launchers; by itself it leaves the work to the calling process.

    name: of its settings file. submits: whether `launch` returns before the work has ended, as for jobs of a scheduler:
    a command then writes down what was asked for, and says where its rows will be instead of reading them.
    """

    submits: ClassVar[bool] = False
    name: str = "none"
    signals: Annotated[tuple[Signal, ...], Help("each ends a process after its current sample, with exit code 75")] = (
        SIGNALS
    )

    def launch(self, work: PendingSweep) -> int | None:
        """Start the work. Returns its exit code if it has ended or is submitted, None if the caller makes the rest."""

    def request(self, results: ResultsFolder) -> "SubmitRequest | None":
        """Return what `launch` would submit, for plans; None: it submits nothing, or does not say what."""
