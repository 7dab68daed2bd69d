"""What a logger is, and the one that does nothing."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from kvbench.records import ResultsFolder, Row


@runtime_checkable
class Logger(Protocol):
    """PromptRecord the rows of a command when all of them are there."""

    @property
    def name(self) -> str:
        """The name in configs."""
        ...

    def check(self) -> None:
        """Raise ValueError, with the command that mends it, where it cannot work here; before anything runs."""
        ...

    def mirror(self, results: ResultsFolder, rows: Sequence[Row]) -> None:
        """Mirror the rows of a sweep, as often as it is asked: what was mirrored before is not mirrored twice."""
        ...


@dataclass(frozen=True)
class NoLogger:
    """Mirrors nothing."""

    name: str = "none"

    def check(self) -> None:
        """It always works."""

    def mirror(self, results: ResultsFolder, rows: Sequence[Row]) -> None:
        """Nothing to do."""
