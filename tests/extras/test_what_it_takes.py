"""What it takes to add a policy and a benchmark: the files below, of which a package has at most three in all."""

from pathlib import Path

import pytest

from kvbench.cli.main import main
from kvbench.records import read_rows
from tests.plugins import made_up

MOST = 3
"""Files of a part that is added, its package and entry point included."""
POLICY = {
    "__init__.py": '''
from dataclasses import dataclass
from typing import Literal

from kvbench.eviction.allocation.allocation import Layers
from kvbench.eviction.allocation.shares import shares


@dataclass(frozen=True)
class LastLayers(Layers):
    """Each layer keeps `times` as much as the one before it."""

    kind: Literal["last"] = "last"
    times: float = 2.0

    def __call__(self, layer_weights, terms):
        weights = [self.times**layer for layer in range(len(layer_weights))]
        return shares(len(layer_weights) * terms.base, weights, terms.candidates)
''',
    "conf/policy/rising.yaml": """# @package _global_
says: The last layers keep most.
defaults:
  - /score: attn
policy:
  _target_: kvbench.eviction.policy.Policy
  name: rising
  layers:
    _target_: rising_layers.LastLayers
    kind: last
  accepts: [score, budget]
""",
}
ALLOCATION = {
    "__init__.py": POLICY["__init__.py"],
    "conf/allocation/layers/last.yaml": "says: More.\n_target_: last_layers.LastLayers\nname: layers/last\n",
}
TASK = {
    "__init__.py": '''
from dataclasses import dataclass

from kvbench.tasks.task import Sample, Task


@dataclass(frozen=True)
class Echo(Task):
    """A word among digits, which the answer repeats."""

    name: str = "echo"
    version: str = "1"
    metric: str = "echoed"
    context_length: int | None = 256
    samples: int = 2
    seed: int = 0
    max_new_tokens: int = 4

    def generate(self, count_tokens, indices):
        for index in sorted(indices):
            words = [f"{number}" for number in range(self.context_length // 2)]
            words[index] = "apple"
            text = " ".join(words)
            yield Sample(index, self.name, text, " The word is", "", ("apple",), self.max_new_tokens)

    def score(self, prediction, sample):
        return float(sample.references[0] in prediction)
''',
    "conf/task/echo.yaml": "says: A word among digits.\n_target_: echo_task.Echo\nname: echo\n",
}


@pytest.mark.parametrize(
    ("package", "files", "words", "column", "value"),
    [
        ("rising-layers", POLICY, ("policy=rising", "task.context_length=512"), "policy", "rising"),
        (
            "last-layers",
            ALLOCATION,
            ("policy=snapkv", "policy.layers=last", "policy.layers.times=3", "task.context_length=512"),
            "policy",
            "snapkv layers.kind=last layers.times=3.0",
        ),
        ("echo-task", TASK, ("policy=snapkv", "task=echo"), "task", "echo"),
    ],
)
def test_a_part_takes_three_files_and_runs(
    package: str,
    files: dict[str, str],
    words: tuple[str, ...],
    column: str,
    value: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    site = made_up(tmp_path / "site", package, files)
    entry_point = ["pyproject.toml"]
    assert len([*files, *entry_point]) <= MOST
    monkeypatch.syspath_prepend(str(site))
    results = tmp_path / "results"
    run = ("run", *words, "budget=0.3", "task.samples=1", f"results.dir={results}", "--quiet")
    assert main(list(run)) == 0
    (row,) = [row for row in read_rows(results) if row.policy != "full"]
    assert getattr(row, column) == value and row.error is None and 0 < (row.kept_fraction or 0) < 1


def test_an_error_of_a_plugin_names_its_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    code = TASK["__init__.py"].replace('words[index] = "apple"', "words[-1 - len(words)]")
    line = code.splitlines().index("            words[-1 - len(words)]") + 1
    settings = TASK["conf/task/echo.yaml"].replace("echo_task", "echo_fails")
    site = made_up(tmp_path / "site", "echo-fails", {"__init__.py": code, "conf/task/echo.yaml": settings})
    monkeypatch.syspath_prepend(str(site))
    run = ("run", "policy=full", "task=echo", f"results.dir={tmp_path / 'results'}", "--quiet")
    assert main(list(run)) == 1
    assert f"IndexError: list index out of range (raised in {site}/echo_fails/__init__.py:{line}; traceback in" in (
        capsys.readouterr().err
    )
