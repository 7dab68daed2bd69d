"""Rows that other code made: a run names them and stops; --stale=keep and --stale=rerun; reports tell of a mixture."""

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from datetime import datetime, timedelta, tzinfo
from pathlib import Path

import pytest

from kvbench.records import Recorder, ResultsFolder
from kvbench.records import folder as records_folder
from kvbench.records.manifest import read_manifest, true_manifest
from kvbench.report.rows import load
from kvbench.run.code import Code
from kvbench.run.eviction_method import EvictionMethod
from kvbench.tasks.task import Task
from tests.cli.conftest import Command, rows_of


def other_score(method: EvictionMethod, task: Task, code_of: Callable[..., Code] = EvictionMethod.code) -> Code:
    """The code of a clone whose score was changed."""
    code = code_of(method, task)
    assert code.parts is not None
    return Code({name: "0" * 64 if name.startswith("score") else sha256 for name, sha256 in code.parts.items()})


def test_rows_of_other_code_are_never_taken_as_done_in_silence(
    kvbench: Command, tiny: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    command = ("run", *tiny, "policy=full,h2o_obcache", "budget=0.2")
    with monkeypatch.context() as patch:
        patch.setattr(EvictionMethod, "code", other_score)
        assert kvbench(*command, "task.samples=2").code == 0
    before = rows_of(Path("out"))
    (old,) = {row.code for row in before if row.policy == "h2o_obcache"}
    assert old is not None and ResultsFolder("out").read_code(old)
    assert not any(row.policy == "full" for row in before if row.code == old)

    refused = kvbench(*command)
    line = refused.err.splitlines()[-1]
    assert refused.code == 2 and line.startswith(f"kvbench: 2 rows of out were made by other code ({old}, kvbench ")
    assert "score attn differ)" in line and "--stale=rerun makes them again" in line
    assert rows_of(Path("out")) == before
    assert kvbench("plan", *command[1:]).code == 2
    assert "4 of 6 rows are in out" in kvbench("plan", *command[1:], "--stale=keep").out
    assert "2 of 6 rows are in out" in kvbench("plan", *command[1:], "--stale=rerun").out

    kept = kvbench(*command, "--stale=keep")
    assert kept.code == 0 and "2 rows to run from 1 prompt (4 rows are there already)" in kept.err
    for report in (("report", "table"), ("report", "rows"), ("export", "--format=markdown"), ("report", "cost")):
        told = kvbench(*report, "--results=out").err
        assert "warning: out: rows of several versions of the code: score attn (" in told, report
        assert "the means of 1 cell are over several" in told, report
    assert "several" not in kvbench("report", "table", "--results=out", f"code={old}").err

    again = kvbench(*command, "--stale=rerun")
    assert again.code == 0 and "2 rows to run from 2 prompts (4 rows are there already)" in again.err
    told = kvbench("report", "table", "--results=out").err
    assert "2 rows of other code were replaced by later rows" in told and "several" not in told
    assert old not in {row.code for row in rows_of(Path("out"))}
    assert "all 6 rows are in out" in kvbench(*command).err


def test_rows_of_unknown_code_are_resumed_and_told_of(kvbench: Command, tiny: tuple[str, ...]) -> None:
    command = ("run", *tiny, "policy=h2o_obcache", "budget=0.2")
    assert kvbench(*command, "task.samples=2").code == 0
    before = rows_of(Path("out"))
    (file,) = Path("out/rows").iterdir()
    file.unlink()
    with Recorder("out") as recorder:
        recorder.append([replace(row, code=None) for row in before])
    resumed = kvbench(*command)
    assert resumed.code == 0 and "1 row to run" in resumed.err
    assert "2 rows of out do not say which code made them and are kept" in resumed.err
    assert "2 of 3 rows do not say which code made them" in kvbench("report", "table", "--results=out").err
    again = kvbench(*command, "--stale=rerun")
    assert again.code == 0 and "2 rows to run" in again.err
    assert all(row.code is not None for row in rows_of(Path("out")))


def test_an_edited_description_of_code_is_refused(kvbench: Command, tiny: tuple[str, ...]) -> None:
    assert kvbench("run", *tiny, "policy=full", "task.samples=1").code == 0
    manifest = read_manifest(ResultsFolder("out"))  # a run ends with one
    assert manifest is not None and manifest.rows == 1 and true_manifest(ResultsFolder("out"), pytest.fail)
    (file,) = Path("out/codes").iterdir()
    file.write_text(json.dumps(json.loads(file.read_text()) | {"cache": "0" * 64}))
    refused = kvbench("report", "table", "--results=out")
    assert refused.code == 2 and f"{file} was changed" in refused.err


def test_a_rerun_counts_whatever_the_clocks_say(
    kvbench: Command, tiny: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The machine of the first rows was two hours ahead, and the code changes back again."""

    class Skewed(datetime):
        @classmethod
        def now(cls, tz: tzinfo | None = None) -> "Skewed":
            return super().now(tz) + timedelta(hours=2)

    command = ("run", *tiny, "policy=h2o", "budget=0.2", "--stale=rerun")
    with monkeypatch.context() as patch:
        patch.setattr(EvictionMethod, "code", other_score)
        patch.setattr(records_folder, "datetime", Skewed)
        assert kvbench(*command).code == 0
    (old,) = {row.code for row in rows_of(Path("out"))}
    for replaces in (1, 2):
        with monkeypatch.context() as patch:
            if replaces == 2:
                patch.setattr(EvictionMethod, "code", other_score)
            assert "3 rows to run" in kvbench(*command).err
            assert "all 3 rows are in out" in kvbench(*command).err
        counted = rows_of(Path("out"))
        assert [row.replaces for row in counted] == [replaces] * 3 and {row.code == old for row in counted} == {
            replaces == 2
        }
        assert load("out", lambda text: None) == counted
    shutil.copytree("out", "copy")
    assert kvbench("run", *tiny, "policy=full", "results.dir=second").code == 0
    assert kvbench("merge", "copy", "second", "--out", "merged").code == 0
    assert [row.replaces for row in rows_of(Path("merged"))].count(2) == 3
