"""docs/reference/tasks.md is current: every task with its metric, every benchmark with its protocol and traps."""

import re
from pathlib import Path

import pytest

from kvbench.cli.list import describe
from kvbench.cli.setting_help import notes_of
from kvbench.config.entries import load_entry, options
from kvbench.support import paths
from kvbench.support.plugins import items
from scripts.document_tasks import BENCHMARKS, PAGE, Benchmark, listed, written

OWN = ("jsonl", "hub", "trajectories/calls", "trajectories/likelihood")
"""Tasks that are files of your own."""


def test_the_page_is_what_classes_and_conf_say() -> None:
    assert written() == PAGE.read_text("utf-8"), "stale: run make pages"


def test_every_task_is_in_one_table() -> None:
    listed = re.findall(r"^\| `([\w./-]+)` \| .{10,} \| `\w+` \| \d+ \|$", PAGE.read_text("utf-8"), re.MULTILINE)
    assert sorted(listed) == options("task")


@pytest.mark.parametrize("benchmark", BENCHMARKS, ids=lambda benchmark: benchmark.title)
def test_a_benchmark_says_its_protocol_split_source_and_traps(benchmark: Benchmark) -> None:
    said = listed(benchmark.kind)
    assert all(f"- {word}: " in said for word in ("Protocol", "Split", "Source", "Traps"))


def test_every_task_file_names_the_split_and_opens_with_an_example() -> None:
    """The split in its YAML, an example and the official file at the top of the Python file."""
    for name in options("task"):
        described, module = describe(items("task")[name]), load_entry("task", name)["_target_"].rpartition(".")[0]
        says = " ".join((described.says, *(f"{key} {note}" for key, note in notes_of(items("task")[name]).items())))
        source = (paths.conf().parent / Path(*module.split("."))).with_suffix(".py")
        opening = source.read_text("utf-8").split('"""')[1]
        names_split = any(words in says for words in ("evict_after", "The context is", "Nothing is asked"))
        assert names_split, f"{name} does not say where its prompt is split"
        assert re.search(r"\n    \S", opening), f"{source} opens with no example of its data"
        assert name in OWN or re.search(r"https://|section \d", opening), f"{source} names no official file"
