"""--retry-errors: rows that failed are made again, and only those."""

from pathlib import Path

import pytest

from kvbench.run import runner
from tests.cli.conftest import Command, rows_of


def test_errors_are_retried_when_asked(
    kvbench: Command, tiny: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A machine in trouble leaves error rows; they stay until somebody wants them made again."""
    command = ("run", *tiny, "policy=full,h2o", "budget=0.2")
    load = runner.load

    def spoilt(model_info: object) -> object:
        loaded = load(model_info)  # type: ignore[arg-type]
        # no matrix: those are laid out anew when a model is loaded, and read from there
        loaded.engine.model.model.layers[0].input_layernorm.weight.data[0] = float("nan")
        return loaded

    monkeypatch.setattr(runner, "load", spoilt)
    assert kvbench(*command, "task.samples=2").code == 4
    monkeypatch.setattr(runner, "load", load)
    stayed = kvbench(*command)
    assert stayed.code == 4 and "2 rows to make from 1 prompt (4 rows are there already)" in stayed.err
    assert "2 of 6 rows are in out" in kvbench("plan", *command[1:], "--retry-errors").out
    retried = kvbench(*command, "--retry-errors")
    assert retried.code == 0 and "4 rows to make from 2 prompts (2 rows are there already)" in retried.err
    assert all(row.error is None for row in rows_of(Path("out")))
    assert "all 6 rows are in out" in kvbench(*command, "--retry-errors").err
