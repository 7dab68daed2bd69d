"""How many processes of this machine share each of their GPUs, as the launcher that starts them says."""

import os
from collections.abc import Mapping

PROCESSES = "KVBENCH_PROCESSES_OF_GPU"


def processes_of_gpu(variables: Mapping[str, str] = os.environ) -> int:
    """Return the number of processes among which a GPU is divided."""
    text = variables.get(PROCESSES, "")
    return max(1, int(text)) if text.isdecimal() else 1
