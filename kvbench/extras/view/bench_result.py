"""`result.page(...)`: the page of `kvbench report html` in Python."""

from pathlib import Path

from kvbench.extras.view.page import write_page
from kvbench.notebook.bench import BenchResult


def page(result: BenchResult, path: str | Path, samples: int = 20) -> Path:
    """Write the page of `kvbench report html`; returns its path. samples: of each cell, to read."""
    write_page(result.frame, Path(path), lambda text: None, samples=samples)
    return Path(path)
