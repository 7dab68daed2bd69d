"""Where rows are mirrored to besides the results folder, which stays the record: nothing is read back from there."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from kvbench.records import ResultsFolder, Row


@runtime_checkable
class Logger(Protocol):
    """Receives the rows of a command when all of them are there."""

    @property
    def name(self) -> str:
        """The name in configs."""
        ...

    def check(self) -> None:
        """Raise ValueError, with the command that fixes it, if it cannot work here; called before anything runs."""
        ...

    def mirror(self, results: ResultsFolder, rows: Sequence[Row]) -> str | None:
        """Mirror the rows of a sweep; rows that were mirrored before are not mirrored twice.

        Returns what to tell the user, None for nothing.
        """
        ...


@dataclass(frozen=True)
class NoLogger:
    """Mirrors nothing."""

    name: str = "none"

    def check(self) -> None:
        """Do nothing: it always works."""

    def mirror(self, results: ResultsFolder, rows: Sequence[Row]) -> str | None:
        """Nothing to do."""
