"""Rows on disk: write, lease, read back.

Knows nothing of torch, Hydra or tasks.
"""

from kvbench.records.arrivals import Arrivals, Places, places
from kvbench.records.curve import Curve
from kvbench.records.environment import environment, environment_id
from kvbench.records.folder import ResultsFolder, check_writable
from kvbench.records.kept import KeptDetail, KeptSets, read_kept
from kvbench.records.leases import Lease, Leases
from kvbench.records.processes import Heartbeat, Process, Stopped, read_processes
from kvbench.records.prompts import PromptRecord, read_prompts
from kvbench.records.recorder import Recorder
from kvbench.records.row import ASKED, COLUMNS, MEASURED, SCHEMA, WHERE, Row, check_schema, done, read_rows
from kvbench.records.timing import Timing

__all__ = [
    "ASKED",
    "COLUMNS",
    "MEASURED",
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
    "Stopped",
    "Timing",
    "check_schema",
    "check_writable",
    "done",
    "environment",
    "environment_id",
    "places",
    "read_kept",
    "read_processes",
    "read_prompts",
    "read_rows",
]
