"""Benchmark data: the lock of sources, downloads into `data.root`, and verification.

Knows nothing of tasks except the names of their files. Downloads only on request.
"""

from kvbench.tasks.data.download import Unobtained, Watcher
from kvbench.tasks.data.lock import Download, Lock, Output, Source, read_lock
from kvbench.tasks.data.pull import Pulled, pull
from kvbench.tasks.data.verify import PullRecord, State, read_records, state_of

__all__ = [
    "Download",
    "Lock",
    "Output",
    "PullRecord",
    "Pulled",
    "Source",
    "State",
    "Unobtained",
    "Watcher",
    "pull",
    "read_lock",
    "read_records",
    "state_of",
]
