from collections.abc import Callable

import pytest

from kvbench.records import Row
from tests.cells import ASKED


@pytest.fixture
def make() -> Callable[..., Row]:
    """A row from a few columns, the rest plausible."""

    def row(cell: str = "ab", sample: int = 0, **columns: object) -> Row:
        return Row(cell=cell, sample=sample, **(ASKED | columns))  # type: ignore[arg-type]

    return row
