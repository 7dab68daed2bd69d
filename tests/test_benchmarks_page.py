"""docs/reference/tasks.md against conf/task: every task with its metric and the length of its answers, and no other."""

import re
from pathlib import Path

import pytest

from kvbench.cli.list import describe
from kvbench.config.compose import file_of, options
from kvbench.config.meaning import notes_of
from kvbench.conformance.golden.prompts import task_of
from kvbench.support import paths
from kvbench.support.plugins import items
from tests.composed import TABLE

PAGE = (Path(__file__).parents[1] / "docs" / "reference" / "tasks.md").read_text("utf-8")
RUNS = ("trajectories/calls", "trajectories/likelihood")
PATHS = {"jsonl": "mine.jsonl", "hub": str(TABLE)} | dict.fromkeys(RUNS, "mine.jsonl")
"""Of tasks that are files of your own."""
LINES = {
    match[1]: match for match in re.finditer(r"^\| `([\w./-]+)` \| (.+) \| `(\w+)` \| (\d*) \|$", PAGE, re.MULTILINE)
}
SECTIONS = {title: text for title, text in re.findall(r"^## (.+)\n((?:(?!^## ).*\n?)*)", PAGE, re.MULTILINE)}


def test_every_task_has_its_line() -> None:
    assert sorted(LINES) == options("task"), "docs/reference/tasks.md lacks a task of conf/task, or has one too many"


@pytest.mark.parametrize("name", options("task"))
def test_a_line_says_what_the_file_does(name: str, tmp_path: Path) -> None:
    task = task_of(name, str(tmp_path), **({"path": PATHS[name]} if name in PATHS else {}))
    line = LINES[name]
    assert line[3] == task.metric and len(line[2]) > 10
    assert task.max_new_tokens in (None, int(line[4]))


@pytest.mark.parametrize("title", [title for title, text in SECTIONS.items() if "| task |" in text])
def test_a_family_says_its_protocol_split_and_source(title: str) -> None:
    for word in ("Split", "Source"):
        assert word in SECTIONS[title], f"{title} of docs/reference/tasks.md names no {word}"
    assert "rotocol" in SECTIONS[title] or title == "Perplexity"
    assert "raps" in SECTIONS[title] or title == "Perplexity"


def test_every_task_file_names_the_split_and_opens_with_an_example() -> None:
    """The split in its YAML, an example and the official file at the top of the Python file."""
    for name in options("task"):
        described, module = describe(items("task")[name]), file_of("task", name)["_target_"].rpartition(".")[0]
        says = " ".join((described.says, *(f"{key} {note}" for key, note in notes_of(items("task")[name]).items())))
        source = (paths.conf().parent / Path(*module.split("."))).with_suffix(".py")
        opening = source.read_text("utf-8").split('"""')[1]
        names_split = any(words in says for words in ("evict_after", "The context is", "Nothing is asked"))
        assert names_split, f"{name} does not say where its prompt is split"
        assert re.search(r"\n    \S", opening), f"{source} opens with no example of its data"
        own = name in PATHS
        assert own or re.search(r"https://|section \d", opening), f"{source} names no official file"
