"""Benchmark data: what there is, where it comes from, how it gets under `data.root`, and whether it is what it was.

Knows nothing of tasks beyond the names of their files, and nothing of torch. Nothing is downloaded unless asked for.
"""

from kvbench.tasks.data.check import State, state_of
from kvbench.tasks.data.fetch import Watcher
from kvbench.tasks.data.lock import Download, Lock, Output, Source, read_lock
from kvbench.tasks.data.own import Recorded, read_own
from kvbench.tasks.data.pull import Pulled, pull
from kvbench.tasks.data.trouble import Unobtained

__all__ = [
    "Download",
    "Lock",
    "Output",
    "Pulled",
    "Recorded",
    "Source",
    "State",
    "Unobtained",
    "Watcher",
    "pull",
    "read_lock",
    "read_own",
    "state_of",
]
