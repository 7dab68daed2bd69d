"""What a download says while it runs: a bar on a terminal, a line now and then elsewhere. All on stderr."""

import time
from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn, TransferSpeedColumn

from kvbench.cli.sizes import size
from kvbench.support.printable import printable
from kvbench.tasks.data import Watcher

SECONDS_BETWEEN_LINES = 10.0


@contextmanager
def watching(console: Console) -> Iterator[Watcher]:
    """A watcher for this console, cleared up when the block ends."""
    if not console.is_terminal:
        yield Lines(console)
        return
    columns = (TextColumn("{task.description}", markup=False), BarColumn(), DownloadColumn(), TransferSpeedColumn())
    with Progress(*columns, TimeRemainingColumn(), console=console, transient=True) as bar:
        yield Live(bar)


class Live:
    """A bar that moves with every chunk."""

    def __init__(self, bar: Progress) -> None:
        self._bar, self._task = bar, bar.add_task("starting", total=None)

    def say(self, text: str) -> None:
        """Print above the bar."""
        self._bar.console.print(printable(text), soft_wrap=True)

    def begin(self, name: str, total: int | None, had: int) -> None:
        """Begin again for another file."""
        self._bar.reset(self._task, description=name, total=total, completed=had)

    def advance(self, count: int) -> None:
        """Move on."""
        self._bar.advance(self._task, count)

    def end(self) -> None:
        """Nothing: the next file begins the bar anew."""


class Lines:
    """A line at the start of a file that is not small, and every ten seconds."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._name, self._total, self._got, self._last = "", None, 0, 0.0

    def say(self, text: str) -> None:
        """Print a line."""
        self._console.print(printable(text), soft_wrap=True)

    def begin(self, name: str, total: int | None, had: int) -> None:
        """Say what begins."""
        self._name, self._total, self._got, self._last = name, total, had, time.monotonic()
        of = "" if total is None else f", {size(total)}"
        self.say(f"fetching {name}{of}{f', going on after {size(had)}' if had else ''}")

    def advance(self, count: int) -> None:
        """Count, and say so when the last line is old."""
        self._got += count
        if time.monotonic() - self._last >= SECONDS_BETWEEN_LINES:
            self._last = time.monotonic()
            self.say(f"{self._name}: {size(self._got)}{'' if self._total is None else f' of {size(self._total)}'}")

    def end(self) -> None:
        """Nothing: the file's SHA-256 follows once it is in place."""
