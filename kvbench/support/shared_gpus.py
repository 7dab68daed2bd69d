"""Processes that a launcher started on this machine: whether this is one, and how many share each GPU."""

import os
from collections.abc import Mapping

PROCESSES = "KVBENCH_PROCESSES_OF_GPU"


def has_launcher() -> bool:
    """Return whether another process of kvbench started this one for a part of its work."""
    return PROCESSES in os.environ


def processes_of_gpu(variables: Mapping[str, str] = os.environ) -> int:
    """Return the number of processes among which a GPU is divided."""
    text = variables.get(PROCESSES, "")
    return max(1, int(text)) if text.isdecimal() else 1
