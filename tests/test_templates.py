"""docs/templates: files are YAML, their command lines are allowed, and their shards make the whole sweep."""

import runpy
import shlex
import subprocess
import sys
from collections.abc import Callable, Sequence
from types import SimpleNamespace

import pytest
from yaml import safe_load

from kvbench.cli.main import declared
from kvbench.config.overrides import parse
from kvbench.run.shard import Shard, shard_of
from kvbench.work import planned
from tests.documented import DOCS

TEMPLATES = DOCS / "templates"


def check(words: Sequence[str], environment: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> Shard:
    """The shard of a command line, whose cells are built as far as neither model nor folder is looked at."""
    monkeypatch.setattr(planned, "check_data", lambda cells: None)
    monkeypatch.setattr(planned, "check_writable", lambda path: None)
    program, command, *rest = words
    assert (program, command) == ("kvbench", "run")
    flags = declared("run").read(rest)
    _, cells = planned.checked(parse(flags.words), pytest.fail)
    assert len(cells) == 4
    return shard_of(flags.shard, environment)


def test_the_job_of_kubernetes(monkeypatch: pytest.MonkeyPatch) -> None:
    spec = safe_load((TEMPLATES / "kubernetes.yaml").read_text("utf-8"))["spec"]
    assert spec["completionMode"] == "Indexed" and spec["template"]["spec"]["restartPolicy"] == "Never"
    (container,) = spec["template"]["spec"]["containers"]
    words, number = [*container["command"], *container["args"]], spec["completions"]
    shards = [check(words, {"JOB_COMPLETION_INDEX": str(index)}, monkeypatch) for index in range(number)]
    assert shards == [Shard(index, number) for index in range(number)]


def test_the_task_of_skypilot(monkeypatch: pytest.MonkeyPatch) -> None:
    task = safe_load((TEMPLATES / "skypilot.yaml").read_text("utf-8"))
    number, script = task["num_nodes"], task["run"].replace("\\\n", " ")
    (line,) = [line for line in script.splitlines() if line.startswith("kvbench ")]
    words = shlex.split(line.partition("||")[0])
    nodes = [{"SKYPILOT_NODE_RANK": str(rank), "SKYPILOT_NUM_NODES": str(number)} for rank in range(number)]
    assert [check(words, node, monkeypatch) for node in nodes] == [Shard(index, number) for index in range(number)]
    subprocess.run(["bash", "-n"], input=task["run"], text=True, check=True)


def test_the_job_of_ray(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a ray that calls what it is given."""

    def remote(**_: object) -> Callable[[Callable[[int], int]], SimpleNamespace]:
        return lambda function: SimpleNamespace(remote=function)

    started: list[list[str]] = []

    def run(words: list[str]) -> SimpleNamespace:
        started.append(words)
        return SimpleNamespace(returncode=4 if len(started) == 2 else 0)

    monkeypatch.setitem(sys.modules, "ray", SimpleNamespace(remote=remote, get=list))
    monkeypatch.setattr(subprocess, "run", run)
    assert runpy.run_path(str(TEMPLATES / "ray_job.py"))["main"]() == 4
    shards = [check(words, {}, monkeypatch) for words in started]
    assert shards == [Shard(index, len(shards)) for index in range(len(shards))]
