"""Rows of data files that differed from kvbench's lock: every report says so."""

import pyarrow as pa

from kvbench.records.lines import Warn
from kvbench.records.rows import Describe
from kvbench.support.quantity import count_noun, shortened

_LISTED = 3


def tell_altered(source: str, rows: pa.Table, describe: Describe, warn: Warn) -> None:
    """Warn of cells whose descriptions name such files (`data.verify=false`)."""
    files: dict[str, None] = {}
    cells = 0
    for cell in rows["cell"].unique().to_pylist():
        task = (describe(cell) or {}).get("task")
        named = task.get("data_altered") if isinstance(task, dict) else None
        if isinstance(named, list) and named:
            cells += 1
            files |= dict.fromkeys(map(str, named))
    if cells:
        warn(
            f"{source}: {count_noun(cells, 'cell')} read files that differ from what was locked or pulled "
            f"(data.verify=false): {shortened(list(files), _LISTED)}"
        )
