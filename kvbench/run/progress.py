"""Progress of a run while it goes on, and its outcome."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable


@runtime_checkable
class Progress(Protocol):
    """Receives the events of a run."""

    def loading(self, model: str) -> None:
        """Say that a model is about to be loaded."""

    def noted(self, text: str) -> None:
        """Tell something about the run that a user should know, as a sentence."""

    def recorded(self, rows: list[Any]) -> None:
        """Say that the rows of a job, or a probe's numbers of it, were recorded; each has an `error`."""

    def elsewhere(self, rows: int, whole_job: bool = True) -> None:
        """Say that so many rows of a job are left to other processes: all that it had, or a part."""


class Unseen(Progress):
    """Progress that nobody looks at."""


class WorkDone(Protocol):
    """The work of a model: prefills and their tokens, and decode batches split for memory."""

    prefills: int
    tokens_prefilled: int
    oom_splits: int


@dataclass
class RunStats:
    """Outcome of a run: rows recorded and failed, and its `WorkDone`."""

    rows: int = 0
    errors: int = 0
    prefills: int = 0
    tokens_prefilled: int = 0
    oom_splits: int = 0

    def add(self, works: Iterable[WorkDone]) -> None:
        """Add what several models have done."""
        for work in works:
            self.prefills += work.prefills
            self.tokens_prefilled += work.tokens_prefilled
            self.oom_splits += work.oom_splits
