"""Rows on disk: write, lease, read back.

Knows nothing of torch, Hydra or tasks.
"""

from kvbench.records.environment import environment, environment_id
from kvbench.records.folder import ResultsFolder, check_writable
from kvbench.records.leases import Arrivals, Lease, Leases, Places, file_sizes, lease_owners
from kvbench.records.own_lines import read_kept
from kvbench.records.processes import Heartbeat, Process, read_processes
from kvbench.records.recorder import Recorder
from kvbench.records.row import COLUMNS, MEASURED, NO_SOURCE, REQUESTED, SCHEMA, WHERE, Row, check_schema
from kvbench.records.rows_files import read_rows, recorded_samples
from kvbench.records.sidecars import Curve, KeptDetail, KeptSets, PromptRecord, Timing, read_sidecar
from kvbench.support.errors import StopRequested

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
    "recorded_samples",
]
