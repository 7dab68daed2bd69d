"""Signals while a run works: they end it between two samples, or at once before and after."""

import os
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from types import FrameType
from typing import Any, NoReturn

from kvbench.support.errors import StopRequested


@contextmanager
def stopping(names: Sequence[str]) -> Iterator[Callable[[], str | None]]:
    """While the block runs, these signals end nothing at once; the yielded function names the first that arrived.

    Earlier handlers are called after the block: submitit's requeues a job at its time limit. An error of the block is
    told rather than the stop.
    """
    arrived: list[str] = []

    def note_signal(number: int, frame: FrameType | None) -> None:
        if not arrived:
            arrived.append(signal.Signals(number).name)
            with suppress(OSError):  # who read stderr may be gone, and an error here would be the sample's
                os.write(2, f"kvbench: {arrived[0]}: stopping after this sample\n".encode())  # print may be busy

    with handling(names, note_signal) as earlier_handlers:
        try:
            yield lambda: arrived[0] if arrived else None
        finally:
            for name in arrived:
                handler = earlier_handlers[signal.Signals[name]]
                if callable(handler) and not (handler is stop_at_once and sys.exc_info()[0]):
                    handler(signal.Signals[name], None)


def stop_at_once(number: int, frame: FrameType | None) -> NoReturn:
    """Handle a signal before or after samples are made. Raises StopRequested."""
    raise StopRequested(signal.Signals(number).name)


@contextmanager
def handling(names: Sequence[str], handler: Callable[[int, Any], None]) -> Iterator[dict[int, Any]]:
    """While the block runs, these signals go to `handler`; yields the earlier handlers, and restores them afterwards.
    Outside of the main thread, where Python takes no signals, nothing happens.
    """
    earlier: dict[int, Any] = {}
    try:
        with suppress(ValueError):  # another thread than the main one
            for name in names:
                earlier[signal.Signals[name]] = signal.signal(signal.Signals[name], handler)
        yield earlier
    finally:
        for number, before in earlier.items():
            signal.signal(number, before)
