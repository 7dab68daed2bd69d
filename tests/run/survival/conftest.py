from collections.abc import Mapping
from typing import Any

import pytest

from kvbench.run.cell import Cell
from tests.run.survival.faking import ROWS, FakeEngine, go, outcomes, put_in, sweep


@pytest.fixture(scope="module")
def cells(tmp_path_factory: pytest.TempPathFactory) -> tuple[Cell, ...]:
    return sweep(tmp_path_factory.mktemp("model") / "model")


@pytest.fixture
def engine(monkeypatch: pytest.MonkeyPatch) -> FakeEngine:
    """The fake engine, put in."""
    fake = FakeEngine()
    put_in(fake, monkeypatch)
    return fake


@pytest.fixture(scope="module")
def peace(cells: tuple[Cell, ...], tmp_path_factory: pytest.TempPathFactory) -> Mapping[tuple[str, int], Any]:
    """The rows of a run that nobody disturbed."""
    folder = tmp_path_factory.mktemp("peace")
    with pytest.MonkeyPatch.context() as patch:
        put_in(FakeEngine(), patch)
        go(folder, cells)
    rows = outcomes(folder)
    assert len(rows) == ROWS
    assert sorted(path.name for path in folder.iterdir()) == [
        "cells", "codes", "curves", "environments", "finished", "kept", "leases", "processes", "rows",
    ]  # fmt: skip
    assert not list((folder / "leases").iterdir())
    return rows
