"""The offline files of Weights & Biases, read back record by record; secrets of the environment are nowhere in them."""

import json
import pickle
import shutil
import struct
from collections.abc import Iterator
from pathlib import Path

import pytest

wandb = pytest.importorskip("wandb", reason="wandb is not installed: pip install 'kvbench[wandb]'")

from kvbench.cli.main import main  # noqa: E402
from kvbench.cli.sweep import PartOfSweep  # noqa: E402
from kvbench.extras.wandb.logger import Wandb  # noqa: E402
from kvbench.records import ResultsFolder, read_rows  # noqa: E402
from kvbench.run.shard import Shard  # noqa: E402
from kvbench.support.errors import UserError  # noqa: E402
from kvbench.work.logger import Logger  # noqa: E402

COMMAND = ["run", "policy=full,snapkv", "budget=0.2", "task.context_length=512", "task.samples=2"]
SECRET = "planted-0123456789abcdef0123456789abcdef01234567"


def records(results: Path) -> dict[str, list]:
    """The records of every offline run, by run id."""
    from wandb.proto import wandb_internal_pb2

    by_run: dict[str, list] = {}
    for path in sorted(results.glob("wandb/*/run-*.wandb")):
        own = by_run.setdefault(path.stem.removeprefix("run-"), [])
        for data in logged(path.read_bytes()):
            record = wandb_internal_pb2.Record()
            record.ParseFromString(data)
            own.append(record)
    return by_run


def logged(data: bytes) -> Iterator[bytes]:
    """What a file of W&B's log holds: after seven bytes, parts with checksum, length and kind in 32 KiB blocks."""
    assert data[:4] == b":W&B"
    place, whole = 7, b""
    while place + 7 <= len(data):
        if (left := 2**15 - place % 2**15) < 7:
            place += left
            continue
        length, kind = struct.unpack("<HB", data[place + 4 : place + 7])
        if kind == 0:
            return
        whole += data[place + 7 : place + 7 + length]
        place += 7 + length
        if kind in (1, 4):  # full, or the last part
            yield whole
            whole = b""


@pytest.fixture(scope="module")
def mirrored(tmp_path_factory):
    """A results folder of two cells, mirrored; the environment held secrets."""
    folder = tmp_path_factory.mktemp("mirrored") / "runs"
    with pytest.MonkeyPatch.context() as patch:
        for name in ("HF_TOKEN", "WANDB_API_KEY", "OPENAI_API_KEY", "MY_PASSWORD"):
            patch.setenv(name, SECRET)
        patch.delenv("WANDB_MODE", raising=False)
        assert main([*COMMAND, f"results.dir={folder}", "logger=wandb"]) == 0
    return folder


def test_each_cell_is_a_run_with_the_values_and_means_of_its_rows(mirrored):
    cells = {row.cell for row in read_rows(mirrored)}
    by_run = records(mirrored)
    assert cells < set(by_run) and len(by_run) == len(cells) + 1
    for cell in cells:
        (run,) = [record.run for record in by_run[cell] if record.WhichOneof("record_type") == "run"]
        assert (run.run_id, run.project, run.job_type) == (cell, "kvbench", "cell")
        config = {item.key: json.loads(item.value_json) for item in run.config.update}
        assert config["cell"] == cell and "policy" in config
    rows = [row for row in read_rows(mirrored) if row.policy == "snapkv"]
    own = by_run[rows[0].cell]
    history = [
        {".".join(item.nested_key) or item.key: json.loads(item.value_json) for item in record.history.item}
        for record in own
        if record.WhichOneof("record_type") == "history"
    ]
    logged = {line["_step"]: line["value"] for line in history if "value" in line}
    assert logged == {row.sample: row.value for row in rows}
    summary: dict = {}
    for record in own:
        if record.WhichOneof("record_type") == "summary":
            for item in record.summary.update:
                summary[".".join(item.nested_key) or item.key] = json.loads(item.value_json)
    assert summary["mean"] == sum(row.value for row in rows) / 2
    assert summary["n"] == 2 and summary["cache_bytes"] == sum(row.cache_bytes for row in rows) / 2
    assert any(key.startswith("samples") for line in history for key in line)


def test_the_command_has_a_table_and_a_picture_and_no_secret_is_in_any_file(mirrored):
    assert list(mirrored.glob("wandb/*/files/media/images/tradeoff*.png"))
    tables = [json.loads(path.read_text()) for path in mirrored.glob("wandb/*/files/media/table/table*.json")]
    assert any(len(table["data"]) == 2 and "kept_fraction" in table["columns"] for table in tables)
    files = [path for path in mirrored.rglob("*") if path.is_file()]
    assert len(files) > 5 and not [path for path in files if SECRET.encode() in path.read_bytes()]


@pytest.mark.slow
def test_the_last_part_of_a_sweep_mirrors_all_of_it(tmp_path, monkeypatch, capsys):
    monkeypatch.delenv("WANDB_MODE", raising=False)
    words = [*COMMAND, f"results.dir={tmp_path}", "logger=wandb"]
    assert main([*words, "--shard", "1/2"]) == 0
    assert "2 rows of other parts are missing; the last part mirrors all" in capsys.readouterr().err
    assert not list(tmp_path.glob("wandb/*"))
    assert main([*words, "--shard", "2/2"]) == 0
    assert {row.cell for row in read_rows(tmp_path)} < set(records(tmp_path))


def test_a_task_of_a_cluster_has_the_logger_of_its_command(tmp_path, monkeypatch, mirrored):
    monkeypatch.delenv("WANDB_MODE", raising=False)
    shutil.copytree(mirrored, tmp_path, dirs_exist_ok=True, ignore=shutil.ignore_patterns("wandb"))
    task = PartOfSweep((*COMMAND[1:], f"results.dir={tmp_path}"), False, Shard(0, 1, 0), logger=Wandb(project="mine"))
    assert pickle.loads(pickle.dumps(task)) == task
    assert task() == 0, "all rows were there"
    runs = [
        record.run for own in records(tmp_path).values() for record in own if record.WhichOneof("record_type") == "run"
    ]
    assert {run.project for run in runs} == {"mine"}


def test_modes_are_honoured(tmp_path, monkeypatch, mirrored):
    monkeypatch.setenv("WANDB_MODE", "disabled")
    Wandb().mirror(ResultsFolder(tmp_path), read_rows(mirrored))
    assert not list(tmp_path.iterdir())
    monkeypatch.setenv("WANDB_MODE", "sometimes")
    with pytest.raises(ValueError, match="WANDB_MODE=sometimes: allowed: offline, online, disabled"):
        Wandb().check()


def test_settings_are_checked(capsys):
    assert isinstance(Wandb(), Logger)
    assert main([*COMMAND, "logger=wandb", "logger.samples=-1"]) == 2
    assert main([*COMMAND, "logger=none,wandb"]) == 2
    assert "a sweep has one logger" in capsys.readouterr().err


def test_a_broken_file_of_mirrored_rows_is_refused(tmp_path, monkeypatch, mirrored):
    monkeypatch.delenv("WANDB_MODE", raising=False)
    path = tmp_path / "wandb" / "mirrored.json"
    path.parent.mkdir()
    for content in (b"{", b"[]", b'{"cell": 1}', b"\xff"):
        path.write_bytes(content)
        with pytest.raises(UserError, match=r"mirrored\.json is not a JSON object of hashes by run"):
            Wandb().mirror(ResultsFolder(tmp_path), read_rows(mirrored))


def test_a_finished_command_is_not_mirrored_twice_and_says_what_sends_its_files(mirrored):
    before = sorted(mirrored.glob("wandb/offline-run-*"))
    said = Wandb().mirror(ResultsFolder(mirrored), read_rows(mirrored))
    assert sorted(mirrored.glob("wandb/offline-run-*")) == before
    assert said is not None and f"in {mirrored}/wandb; wandb sync {mirrored}/wandb/offline-run-* sends them" in said


def test_nobody_goes_online_without_a_login(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("kvbench.extras.wandb.logger._is_logged_in", lambda: False)
    monkeypatch.delenv("WANDB_MODE", raising=False)
    monkeypatch.chdir(tmp_path)
    assert main([*COMMAND, "results.dir=out", "logger=wandb", "logger.mode=online"]) == 2
    assert "run wandb login" in capsys.readouterr().err and not (tmp_path / "out").exists()
