"""Python processes that kvbench starts never import what the working directory holds: a folder of others may hold code.

Python looks for modules there first if it runs `-m` or `-c`, unless it is told otherwise.
"""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing.context import SpawnContext, SpawnProcess
from typing import ClassVar

SAFE_PATH = "PYTHONSAFEPATH"
"""The variable by which Python and its children leave out the working directory."""


def python(*words: str) -> list[str]:
    """Return the command that runs this interpreter with these words."""
    return [sys.executable, "-P", *words]


@contextmanager
def safe_path() -> Iterator[None]:
    """While the block runs, processes that are started leave out the working directory."""
    earlier_value = os.environ.get(SAFE_PATH)
    os.environ[SAFE_PATH] = "1"
    try:
        yield
    finally:
        if earlier_value is None:
            del os.environ[SAFE_PATH]
        else:
            os.environ[SAFE_PATH] = earlier_value


class _Process(SpawnProcess):
    def start(self) -> None:
        with safe_path():  # a pool also starts one instead of one that died
            super().start()


class Spawning(SpawnContext):
    """The `spawn` of multiprocessing without the working directory. Make pools and queues within `safe_path`."""

    Process: ClassVar[type[SpawnProcess]] = _Process
