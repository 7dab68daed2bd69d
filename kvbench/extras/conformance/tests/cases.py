"""Golden cases that travel with the code, and how to write one."""

import json
from pathlib import Path

import numpy as np

from kvbench.extras.conformance.golden import Case
from tests.repository import GOLDEN

GIVEN = sorted((GOLDEN / "eviction").glob("*.npz"))
MADE = ("methods", "answer_budget")
OF_SETS = sorted((GOLDEN / "pages").glob("*.npz"))
CASES = [*GIVEN, *(path for folder in MADE for path in sorted((GOLDEN / folder).glob("*.npz"))), *OF_SETS]
"""Those of the shared folder; those that `scripts/golden_evictions.py` makes with published code; those of
`scripts/golden_answer_budget.py`; and those of pages and shared sets, of `scripts/golden_pages.py`."""


def save(case: Case, path: Path) -> Path:
    """Write a case the way its file was written."""
    np.savez(path, spec=np.array(json.dumps(case.spec)), **case.arrays)
    return path
