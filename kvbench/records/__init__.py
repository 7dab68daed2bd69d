"""Rows on disk: write, lease, read back.

Knows nothing of torch, Hydra or tasks. What reads rows needs Arrow, and is imported as it is first asked for.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from kvbench.records.environment import environment, environment_id
from kvbench.records.folder import ResultsFolder, check_writable
from kvbench.records.leases import Arrivals, Lease, Leases, Places, file_sizes, lease_owners
from kvbench.records.processes import Heartbeat, Process, read_processes
from kvbench.records.recorder import Recorder
from kvbench.records.row import COLUMNS, MEASURED, NO_SOURCE, REQUESTED, SCHEMA, WHERE, Row, check_schema
from kvbench.records.sidecars import Curve, KeptDetail, KeptSets, PromptRecord, Timing, read_sidecar
from kvbench.support.errors import StopRequested

if TYPE_CHECKING:
    from kvbench.records.own_lines import read_kept
    from kvbench.records.rows import read_rows

__all__ = [
    "COLUMNS",
    "MEASURED",
    "NO_SOURCE",
    "REQUESTED",
    "SCHEMA",
    "WHERE",
    "Arrivals",
    "Curve",
    "Heartbeat",
    "KeptDetail",
    "KeptSets",
    "Lease",
    "Leases",
    "Places",
    "Process",
    "PromptRecord",
    "Recorder",
    "ResultsFolder",
    "Row",
    "StopRequested",
    "Timing",
    "check_schema",
    "check_writable",
    "environment",
    "environment_id",
    "file_sizes",
    "lease_owners",
    "read_kept",
    "read_processes",
    "read_rows",
    "read_sidecar",
]

_READERS = {"read_kept": "own_lines", "read_rows": "rows"}


def __getattr__(name: str) -> Any:
    """Import what reads rows. Raises AttributeError for other names."""
    if name not in _READERS:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_READERS[name]}"), name)
