"""What a model that is refused after others have answered leaves behind: no request that nobody can answer."""

import shutil
from pathlib import Path

import pytest
from safetensors.torch import load_file, save_file

from kvbench.cli.sweep import PartOfSweep
from kvbench.records import ResultsFolder, read_rows
from kvbench.run.shard import Shard
from kvbench.work.planned import plan_sweep
from tests.cli.conftest import Command


@pytest.fixture
def words(tiny_model: Path, tmp_path: Path) -> list[str]:
    """Two models, of which the second lacks a tensor."""
    broken = tmp_path / "broken"
    shutil.copytree(tiny_model, broken)
    tensors = load_file(broken / "model.safetensors")
    tensors.pop("model.norm.weight")
    save_file(tensors, broken / "model.safetensors", {"format": "pt"})
    return [
        "model=hf", f"model.path={tiny_model},{broken}", "model.dtype=float32", "policy=snapkv", "budget=0.5",
        "task.context_length=256", "task.samples=1", "task.max_new_tokens=2", f"results.dir={tmp_path / 'out'}",
    ]  # fmt: skip


def requested(folder: Path) -> set[str]:
    return set(ResultsFolder(folder).read_requested())


def test_rows_of_a_model_that_is_refused_are_not_missing(words: list[str], tmp_path: Path, kvbench: Command) -> None:
    folder = tmp_path / "out"
    refused = kvbench("run", *words)
    assert refused.code == 3 and "broken" in refused.err
    answered = {row.cell for row in read_rows(folder)}
    assert len(answered) == 1 and requested(folder) == answered
    assert kvbench("status", "--results", str(folder)).code == 0
    assert "missing" not in kvbench("report", "table", "--results", str(folder)).err


def test_tasks_of_an_array_request_what_their_model_can_answer(
    words: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """In any order; the request of the submission names all."""
    folder, sweep = ResultsFolder(tmp_path / "out"), plan_sweep(words, lambda text: None)
    folder.write_sweep(sweep.arguments, sweep.samples)
    assert PartOfSweep(sweep.arguments, False, Shard(0, 1, model=1))() == 3
    assert len(requested(folder.path)) == 2
    assert PartOfSweep(sweep.arguments, False, Shard(0, 1, model=0))() == 0
    assert requested(folder.path) == {row.cell for row in read_rows(folder.path)}


def test_what_slurm_refuses_is_not_requested(
    words: list[str], tmp_path: Path, kvbench: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("submitit")
    (tmp_path / "bin").mkdir()
    for name in ("srun", "sbatch"):
        (tmp_path / "bin" / name).write_text("#!/bin/bash\necho no such partition >&2; exit 1\n")
        (tmp_path / "bin" / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:/usr/bin:/bin")
    refused = kvbench("run", *words, "launcher=slurm")
    assert refused.code == 2 and "SLURM refused the job" in refused.err
    assert requested(tmp_path / "out") == set()
