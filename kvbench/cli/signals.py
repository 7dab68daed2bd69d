"""Signals that end a run between two samples, so that a scheduler may start it again."""

import os
import signal
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from types import FrameType


@contextmanager
def stopping(names: Sequence[str]) -> Iterator[Callable[[], str | None]]:
    """While the block runs, these signals end nothing at once; the yielded function names the first that arrived.

    Earlier handlers are called after the block: that of submitit, say, which requeues a job at its time limit. Does
    nothing outside of the main thread, where Python takes no signals.
    """
    arrived: list[str] = []

    def note(number: int, frame: FrameType | None) -> None:
        if not arrived:
            arrived.append(signal.Signals(number).name)
            os.write(2, f"kvbench: {arrived[0]}: stopping after this sample\n".encode())  # print may be busy

    before = {}
    try:
        for name in names:
            number = signal.Signals[name]
            try:
                before[number] = signal.signal(number, note)
            except ValueError:  # another thread than the main one
                break
        yield lambda: arrived[0] if arrived else None
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        for name in arrived:
            handler = before[signal.Signals[name]]
            if callable(handler):
                handler(signal.Signals[name], None)
