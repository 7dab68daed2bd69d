"""Signals that end a run between two samples, so that a scheduler may start it again."""

import os
import signal
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from types import FrameType


@contextmanager
def stopping(names: Sequence[str]) -> Iterator[Callable[[], str | None]]:
    """While the block runs, these signals stop nothing at once; the function that it gets names the first that came.

    Whoever listened before is told after the block: submitit, say, that requeues a job at its time limit. Does nothing
    for a run that is not in the main thread, where Python takes no signals.
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
        for name in came:
            handler = before[signal.Signals[name]]
            if callable(handler):
                handler(signal.Signals[name], None)
