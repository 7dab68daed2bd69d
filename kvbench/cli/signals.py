"""Signals that end a run between two samples, so that a scheduler may start it again."""

import os
import signal
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from types import FrameType

LEGAL = ("SIGTERM", "SIGUSR1", "SIGUSR2", "SIGHUP")


@contextmanager
def stopping(names: Sequence[str]) -> Iterator[Callable[[], str | None]]:
    """While the block runs, these signals stop nothing at once; the function that it gets names the first that came.

    Does nothing for a run that is not in the main thread, where Python takes no signals.
    """
    came: list[str] = []

    def note(number: int, frame: FrameType | None) -> None:
        if not came:
            came.append(signal.Signals(number).name)
            os.write(2, f"kvbench: {came[0]}: stopping after this sample\n".encode())  # print may be busy

    before = {}
    try:
        for name in names:
            number = signal.Signals[name]
            try:
                before[number] = signal.signal(number, note)
            except ValueError:  # another thread than the main one
                break
        yield lambda: came[0] if came else None
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
