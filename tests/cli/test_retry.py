"""--retry-errors: rows that failed are made again, and only those. Lost rows are made again too."""

import shutil
from pathlib import Path

import pytest

from kvbench.run import local
from kvbench.run.job_queue import JobQueue
from tests.cli.conftest import Command, rows_of


def test_errors_are_retried_when_asked(
    kvbench: Command, tiny: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    """NaN in a cache fails every cell, by its score or by its logits; rows stay until they are asked for again."""
    command = ("run", *tiny, "policy=full,h2o_obcache", "budget=0.2")
    load = local.load

    def spoilt(model_info: object, begun: object) -> object:
        loaded = load(model_info, begun)  # type: ignore[arg-type]
        # no matrix: those are laid out anew when a model is loaded, and read from there
        loaded.engine.model.model.layers[0].input_layernorm.weight.data[0] = float("nan")
        return loaded

    monkeypatch.setattr(local, "load", spoilt)
    assert kvbench(*command, "task.samples=2").code == 4
    errors = {row.policy: str(row.error) for row in rows_of(Path("out"))}
    assert "the logits are no numbers" in errors["full"]
    assert "layer 0 holds NaN or inf in its keys" in errors["h2o_obcache"]
    monkeypatch.setattr(local, "load", load)
    stayed = kvbench(*command)
    assert stayed.code == 4 and "2 rows to run from 1 prompt (4 rows are there already)" in stayed.err
    assert "2 of 6 rows are in out" in kvbench("plan", *command[1:], "--retry-errors").out
    retried = kvbench(*command, "--retry-errors")
    assert retried.code == 0 and "4 rows to run from 2 prompts (2 rows are there already)" in retried.err
    assert all(row.error is None for row in rows_of(Path("out")))
    assert "all 6 rows are in out" in kvbench(*command, "--retry-errors").err


@pytest.mark.parametrize(
    ("when", "gone"),
    [("before a job is recorded", "out"), ("before a job is recorded", "out/rows"), ("after the last job", "out/rows")],
)
def test_a_folder_that_goes_away_during_a_run_is_told(
    kvbench: Command, tiny: tuple[str, ...], monkeypatch: pytest.MonkeyPatch, when: str, gone: str
) -> None:
    command = ("run", *tiny, "policy=full,h2o_obcache", "budget=0.2", "task.samples=2")
    count, record = [0], JobQueue.record

    def recorded(queue: JobQueue, result: object) -> object:
        count[0] += 1
        if when == "before a job is recorded" and count[0] == 2:
            shutil.rmtree(gone)
        done = record(queue, result)  # type: ignore[arg-type]
        if when == "after the last job" and count[0] == 2:
            Path(gone).rename("moved")
        return done

    with monkeypatch.context() as patch:
        patch.setattr(JobQueue, "record", recorded)
        ended = kvbench(*command)
    assert ended.code == 3 and ended.out == "" and "computes lost rows again" in ended.err
    assert kvbench(*command).code == 0 and len(rows_of(Path("out"))) == 4
