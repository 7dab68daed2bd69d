"""A results folder of others: names lead nowhere, numbers end no process, links write nothing, and a bomb is a line."""

import base64
import errno
import json
import os
import shutil
import subprocess
import zlib
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet
import pytest

from kvbench.records import ResultsFolder, Row, check_writable
from kvbench.records import parquet_rows as row_reader
from kvbench.records.parquet import to_parquet
from kvbench.records.parquet_rows import metadata_of
from kvbench.records.row import with_checksum
from tests.cli.conftest import Command
from tests.cli.test_status import write_process

Folder = Callable[..., Path]


def refused(finished: object, code: int = 2) -> str:
    """The one line of a command that was refused."""
    assert finished.code == code and finished.err.startswith("kvbench: ") and finished.err.count("\n") == 1, finished  # type: ignore[attr-defined]
    return finished.err  # type: ignore[attr-defined]


@pytest.mark.parametrize("name", ["../../secret", "/etc/passwd", "..", "a/b", "a\x00b", "x" * 200, ""])
def test_a_name_in_a_row_leads_to_no_file(kvbench: Command, folder: Folder, tmp_path: Path, name: str) -> None:
    (tmp_path / "secret.json").write_text('{"policy": {"window": "a secret"}}')
    done = kvbench("report", "table", "--results", str(folder("of_cell", cell=name)), "policy.window=16")
    assert done.code == 3 and "damaged row, not counted" in done.err and "no cell is named" in done.err
    assert "secret" not in done.err.replace("../../secret", "") + done.out
    if name:
        path = str(folder("of_environment", environment=name))
        finished = kvbench("report", "html", "--results", path, "--out", "page.html")
        assert "names no file of environments" in refused(finished) and not (tmp_path / "page.html").exists()


@pytest.mark.parametrize("number", ["--user=root", "1 2", "12;rm", 12])
def test_a_job_is_a_number(kvbench: Command, folder: Folder, monkeypatch: pytest.MonkeyPatch, number: object) -> None:
    """Another word would be an option of scancel."""

    def run(*command: object, **options: object) -> None:
        raise AssertionError(f"ran {command}")

    path = folder()
    (path / "jobs").mkdir()
    job = {"number": number, "tasks": 1, "submitted_utc": "2026-01-01T00:00:00+00:00", "command": ["kvbench"]}
    (path / "jobs" / "12.json").write_text(json.dumps(job))
    monkeypatch.setattr(subprocess, "run", run)
    for command in ("status", "cancel"):
        assert "is not a job" in refused(kvbench(command, "--results", str(path)))


@pytest.mark.parametrize(
    "changes",
    [{"pid": -1, "born": None}, {"pid": 0, "born": None}, {"pid": 1}, {"born": None}, {"name": "../../outside"}],
    ids=str,
)
def test_cancel_ends_no_process_that_the_folder_makes_up(
    kvbench: Command, folder: Folder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, changes: dict[str, object]
) -> None:
    path = folder()
    process = write_process(path)
    file = next((path / "processes").glob(f"{process.name}.json"))
    fields = json.loads(file.read_text())
    del fields["checksum"]
    file.write_text(with_checksum(json.dumps(fields | changes)))
    ended: list[int] = []
    monkeypatch.setattr(os, "kill", lambda pid, number: ended.append(pid))
    before = {entry for entry in tmp_path.rglob("*") if path not in entry.parents}
    assert kvbench("cancel", "--results", str(path)).code == 0
    assert kvbench("status", "--results", str(path)).code in (0, 4)
    assert ended == [] and {entry for entry in tmp_path.rglob("*") if path not in entry.parents} == before


def test_a_link_that_leads_out_is_written_to_by_nobody(kvbench: Command, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    for room in ("rows", "cells", "environments", "kept", "errors", "leases", "probes", "wandb"):
        (tmp_path / f"out {room}").mkdir()
        (tmp_path / f"out {room}" / room).symlink_to(outside)
        message = refused(kvbench("run", "policy=full", "task.samples=1", f"results.dir=out {room}"))
        assert f"'out {room}/{room}' is a link to" in message and "results.dir=FOLDER" in message
        assert list(outside.iterdir()) == []


@pytest.mark.parametrize("link", ["processes", "processes/NAME.cancel"])
def test_cancel_follows_no_link(kvbench: Command, folder: Folder, tmp_path: Path, link: str) -> None:
    path, outside = folder(), tmp_path / "outside"
    outside.mkdir()
    process = write_process(path, machine="of others")
    if link == "processes":
        shutil.copytree(path / link, outside, dirs_exist_ok=True)
        shutil.rmtree(path / link)
        (path / link).symlink_to(outside)
    else:
        (path / link.replace("NAME", process.name)).symlink_to(outside / "new")
    before = sorted(outside.iterdir())
    assert "is a link" in refused(kvbench("cancel", "--results", str(path)))
    assert sorted(outside.iterdir()) == before


def test_a_link_to_the_folder_and_one_inside_it_may_be(tmp_path: Path) -> None:
    (tmp_path / "scratch" / "files").mkdir(parents=True)
    (tmp_path / "scratch" / "rows").symlink_to(tmp_path / "scratch" / "files")
    (tmp_path / "out").symlink_to(tmp_path / "scratch")
    check_writable(tmp_path / "out")


def test_a_sweep_that_says_nothing_is_named(kvbench: Command, folder: Folder) -> None:
    path = folder()
    (path / "sweeps").mkdir()
    for text in ("[]", '{"cells": 3}', '{"cells": {"ab": "many"}}', '{"cells": {', "[" * 100_000):
        (path / "sweeps" / "0f.json").write_text(text)
        assert "0f.json" in refused(kvbench("status", "--results", str(path)))


BOMBS = {"brackets": "[" * 200_000, "braces": '{"cell": ' * 100_000, "garbage": "{}" * 100_000, "null": "null"}
BOMBS |= {"a number": '{"cell": "ab", "sample": 1' + "0" * 5000 + "}"}


@pytest.mark.parametrize("bomb", BOMBS)
def test_a_line_that_is_a_bomb_is_named(kvbench: Command, folder: Folder, bomb: str) -> None:
    path = folder()
    (path / "rows" / "0.jsonl").write_text(f"{BOMBS[bomb]}\n" * 2)
    for command in (["report", "table"], ["status"]):
        done = kvbench(*command, "--results", str(path))
        assert done.code in (0, 4) and "0.jsonl:1: damaged row, not counted" in done.err and len(done.err) < 2000


def test_a_line_of_many_megabytes_is_a_row(kvbench: Command, folder: Folder, hostile: Callable[..., list[Row]]) -> None:
    path = folder()
    line = hostile(1, cell="ff", prediction="x" * 9_000_000)[0].to_json()
    (path / "rows" / "0.jsonl").write_text(f"{line}\n")
    assert kvbench("report", "table", "--results", str(path), "cell=ff").code == 0


def test_descriptions_that_unpack_for_ever_are_refused(
    kvbench: Command, folder: Folder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "rows.parquet"
    assert kvbench("report", "rows", "--results", str(folder()), "--format", "parquet", "--out", str(out)).code == 0
    table = pa.parquet.read_table(out)
    monkeypatch.setattr(row_reader, "LARGEST", 2**16)
    for packed, why in (
        (base64.b64encode(zlib.compress(b" " * 2**20)), "unpacked they have more than 65536 bytes"),
        (base64.b64encode(b"no zlib"), "cannot be read"),
        (b"no base 64!", "cannot be read"),
        (base64.b64encode(zlib.compress(b'{"c": "x"}')), "they are no objects"),
        (base64.b64encode(zlib.compress(b"[" * 50_000)), "cannot be read"),
    ):
        out.write_bytes(to_parquet(table, {**metadata_of({}), row_reader._CELLS: packed}))
        done = kvbench("report", "table", "--results", str(out), "policy.window=3")
        assert done.code == 2 and why in done.err


def test_a_cell_is_kept_under_its_own_name_only(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="names no file of cells"):
        ResultsFolder(tmp_path / "out").write_cell("../../taken", {})
    assert list(tmp_path.iterdir()) == []


READ = {
    "rows": ("merge", "pack", "report", "status"),
    "sweeps": ("merge", "report", "status"),
    "finished": ("pack", "report"),
    "processes": ("merge", "status"),
    "jobs": ("status",),
    "prompts": ("merge", "pack"),
    "codes": ("merge", "pack"),
    "environments": ("merge", "pack"),
}
"""Commands that list a folder of results."""


@pytest.mark.parametrize("room", READ)
def test_a_folder_that_cannot_be_listed_is_not_an_empty_one(
    kvbench: Command, folder: Folder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, room: str
) -> None:
    path, scandir, codes = folder(), os.scandir, iter([errno.EACCES, errno.EIO, errno.ESTALE, errno.EACCES])
    ResultsFolder(path).write_sweep(("run",), {"ab12": 13})
    words = {"merge": (str(folder("other")), "--out", "merged"), "report": ("table",)}
    for command in READ[room]:
        code = next(codes)

        def failing(name: str | os.PathLike[str] = ".", code: int = code) -> object:
            if Path(name) == path / room:
                raise OSError(code, os.strerror(code), os.fspath(name))
            return scandir(name)

        with monkeypatch.context() as patched:
            patched.setattr(os, "scandir", failing)
            source = (str(path),) if command == "merge" else ("--results", str(path))
            failed = kvbench(command, *words.get(command, ()), *source)
        assert f"{path / room}: {os.strerror(code)}" in refused(failed, 2 if code == errno.EACCES else 1)
    assert not (path / "manifest.json").exists() and not (tmp_path / "merged").exists()
