"""Runs of BFCL: what is read of its files, when a call does what the recorded one does, what is refused."""

import json
import os
from collections.abc import Iterator
from importlib import import_module
from importlib.metadata import PackageNotFoundError
from itertools import chain
from pathlib import Path
from typing import Any

import pytest

from kvbench.extras.trajectories.bfcl import ANSWERS, LongContextBFCL, _recorded, _started
from kvbench.extras.trajectories.tests import bfcl_package
from kvbench.extras.trajectories.tests.bfcl_package import FILES, task_of
from kvbench.tasks.task import Sample

REAL = "KVBENCH_BFCL"
"""The variable that names a folder for data.root with BFCL's own files; bfcl-eval is then installed."""


@pytest.fixture
def root(tmp_path: Path) -> Iterator[Path]:
    bfcl_package.write(tmp_path)
    with bfcl_package.installed(tmp_path):
        yield tmp_path


def samples_of(task: LongContextBFCL) -> list[Any]:
    return list(task.generate(len, range(task.samples)))  # type: ignore[arg-type]


def call(name: str, /, **arguments: Any) -> str:
    return json.dumps({"name": name, "arguments": arguments})


def test_a_run_has_the_outputs_of_the_simulators(root: Path) -> None:
    task = task_of(root, "calls")
    assert task.samples == 3 and task.data_sha256
    first, second = (task.run(number, len) for number in range(2))  # type: ignore[arg-type]
    assert [(message.role, message.text) for message in first.messages] == [
        ("user", "Write it."),
        ("assistant", call("write", name="a.txt", text="one")),
        ("tool", '{"written": "a.txt"}'),
        ("user", "Thank you.\n\nRead it, then copy it."),
        ("assistant", call("read", name="a.txt")),
        ("tool", '{"text": "one"}'),
        ("assistant", call("write", name="b.txt", text="one")),
        ("tool", '{"written": "b.txt"}'),
    ]
    assert second.messages[2].content == json.dumps({"text": "word " * 9}), "the scenario is the long one"
    named = [tool["function"]["name"] for tool in json.loads(second.tools)]
    assert named == ["of_gorilla_file_system", "of_math_api"]
    assert [sample.question_number for sample in samples_of(task)] == [2, 3, 2]
    assert task.run(0, len) == first, "a run begins anew"  # type: ignore[arg-type]


def test_the_state_and_the_output_count(root: Path) -> None:
    task = task_of(root)
    reading, writing, power = samples_of(task)
    for sample in (reading, writing, power):
        assert task.score(f"So: {sample.references[0]}", sample) == 1
        for nothing in ("", "I am done.", call("gone"), call("_load_scenario", scenario={}), call("write", name="b")):
            assert task.score(nothing, sample) == 0, nothing
    assert task.score(call("power", base=8, exponent=1), power) == 1, "another call with this output"
    assert task.score(call("power", base=2, exponent=2), power) == 0
    assert task.score(call("write", name="b.txt", text="two"), writing) == 0
    assert task.score(call("write", name="b.txt", text="one") + call("write", name="c.txt", text="2"), writing) == 1
    assert task.score(call("read", name="a.txt") + call("write", name="b.txt", text="one"), writing) == 0
    assert task_of(root, "calls").score(call("power", base=8, exponent=1), power) == 0


def test_an_output_that_was_seen_need_not_come_again(tmp_path: Path) -> None:
    """As in BFCL, whose check takes the outputs of all turns so far."""
    twice = {"Read.": ["read(name='long.txt')"], "Again.": ["read(name='long.txt')"]}
    bfcl_package.write(tmp_path, [(FILES, twice)])
    with bfcl_package.installed(tmp_path):
        task = task_of(tmp_path)
        (sample,) = samples_of(task)
        assert task.score(call("names"), sample) == 1
        assert task.score("It is the same.", sample) == 0, "an answer without a call"


def test_answers_of_one_prompt_are_scored_alike(root: Path) -> None:
    task = task_of(root, samples_per_prompt=2, temperature=1.0)
    answers: list[Any] = list(task.numbered_answers(len, range(6)))  # type: ignore[arg-type]
    assert [task.score(sample.references[0], sample) for sample in answers] == [1] * 6


def test_generated_calls_neither_run_as_python_nor_for_hours(root: Path) -> None:
    task = task_of(root)
    *_, power = samples_of(task)
    for name, arguments in (
        ("power", {"base": 9, "exponent": 10**12}),
        ("power(2, 3)", {}),
        ("power", {"base": "2", "exponent": "3"}),
        ("__init__", {}),
        ("power.__call__", {"base": 2, "exponent": 3}),
    ):
        assert task.score(call(name, **arguments), power) == 0, name


@pytest.mark.parametrize(
    ("text", "runs"),
    [
        ("read(name=open('x'))", [(FILES, {"Go.": ["names()", "read(name=open('x'))"]})]),
        ("gone()", [(FILES, {"Go.": ["names()", "gone()"]})]),
        ("names", [(FILES, {"Go.": ["names()", "names"]})]),
        ("'WebSearchAPI': allowed: GorillaFileSystem", [(["WebSearchAPI"], {"Go.": ["names()", "names()"]})]),
    ],
)
def test_a_file_that_cannot_be_read_is_named(text: str, runs: Any, tmp_path: Path) -> None:
    bfcl_package.write(tmp_path, runs)
    with bfcl_package.installed(tmp_path), pytest.raises(ValueError, match="multi_turn_long_context") as caught:
        task = task_of(tmp_path)
        assert task.data_sha256
        samples_of(task)
    assert text in str(caught.value)


def test_files_of_two_releases_are_refused(root: Path) -> None:
    (root / ANSWERS).write_text('{"id": "run_0", "ground_truth": [["names()", "names()"]]}\n', "utf-8")
    with pytest.raises(ValueError, match="hold other runs or turns: take both from one release"):
        _ = task_of(root).data_sha256
    (root / ANSWERS).write_text('{"id": "run_0", "ground_truth": 7}\n', "utf-8")
    with pytest.raises(ValueError, match=r"BFCL_v4_multi_turn_long_context\.json:1: it is no row of BFCL"):
        task_of(root)


def test_settings_that_do_not_apply_are_refused(root: Path) -> None:
    for fields in ({"distance": 0}, {"measure": "pass"}, {"samples": 0}):
        with pytest.raises(ValueError, match=r"task\.(distance|measure|samples)="):
            task_of(root, **fields)


def test_without_the_package_the_task_names_it(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def absent(name: str) -> str:
        raise PackageNotFoundError(name)

    task = task_of(root)
    for version, fault in ((absent, "which is not installed"), (lambda name: "1.0", "installed is 1.0")):
        monkeypatch.setattr("kvbench.tasks.metrics.metadata.version", version)
        with pytest.raises(ValueError, match=rf"{fault}; run: pip install --no-deps bfcl-eval==2026\.3\.23"):
            _ = task.data_sha256


@pytest.mark.slow
@pytest.mark.skipif(REAL not in os.environ, reason=f"{REAL} names no folder with BFCL's files")
def test_the_benchmark_s_own_runs_score_one_and_have_bfcl_s_outputs() -> None:
    """Every tenth run: the outputs are those of BFCL's own executor, recorded calls score 1, other calls 0."""
    execute = import_module("bfcl_eval.eval_checker.multi_turn_eval.multi_turn_utils").execute_multi_turn_func_call
    root = os.environ[REAL]
    task = task_of(root, samples=5000)
    assert task.samples == 1003
    starts, truth = (read(root, name) for read, name in ((_started, task.files[1]), (_recorded, task.files[0])))
    for number in range(0, 200, 10):
        start, run = starts[number], task.run(number, len)  # type: ignore[arg-type]
        texts = list(chain.from_iterable(truth[number].turns))
        official, _ = execute(texts, start.config, list(start.classes), "kvbench", start.id, long_context=True)
        assert [message.content for message in run.messages if message.role == "tool"] == official
        chosen = [sample for sample, (of, _) in enumerate(task._points) if of == number]
        for sample in task.generate(len, chosen):  # type: ignore[arg-type]
            assert isinstance(sample, Sample)
            assert task.score(sample.references[0], sample) == 1
            assert task.score("no call", sample) == 0
