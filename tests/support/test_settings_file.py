"""One file with several names: what each of them means, what is shown of it, and that a plugin can have one too."""

import json
import sys
from pathlib import Path

import pytest

from kvbench.cli.list import describe
from kvbench.cli.main import main
from kvbench.config.compose import combinations
from kvbench.config.entries import content
from kvbench.config.overrides import parse
from kvbench.support.errors import UserError
from kvbench.support.plugins import items
from kvbench.support.settings_file import entry_of, member_names
from tests.plugins import made_up

FILE = """
says: "Needles {member}: {says} {after}"
after: The end.
notes: {depth: of {member}, samples: of 100, context_length: of the file}
_target_: kvbench.tasks.needle.Needle
style: book
samples: 3
context_length: 1000
members:
  hay/one: {says: One., notes: {samples: of 7}}
  hay/two: {says: Two., after: No end., samples: 5, style: official}
"""


def test_a_member_is_what_its_file_says_with_what_differs() -> None:
    import yaml

    node = yaml.safe_load(FILE.replace("of {member}", '"of {member}"'))
    assert member_names(FILE.replace("of {member}", '"of {member}"')) == ("hay/one", "hay/two")
    one, two = (entry_of(node, "task", name) for name in ("hay/one", "hay/two"))
    assert (one.says, two.says) == ("Needles one: One. The end.", "Needles two: Two. No end.")
    assert (one.notes, two.notes["samples"]) == (
        {"depth": "of one", "samples": "of 7", "context_length": "of the file"},
        "of 100",
    )
    assert list(one.tree)[:2] == ["_target_", "name"] and (one.tree["name"], one.tree["samples"]) == ("hay/one", 3)
    assert (two.tree["samples"], two.tree["style"], two.tree["context_length"]) == (5, "official", 1000)
    with pytest.raises(UserError, match="task hay/one: its settings must be a mapping, such as"):
        entry_of({**node, "members": {"hay/one": None}}, "task", "hay/one")


def test_settings_of_other_groups_are_those_of_all_members() -> None:
    item = items("task")["scbench/mf"]
    tree = content(item)
    assert tree["schedule"] == {"evict_after": "context"} and "members" not in tree
    assert (tree["task"]["member"], tree["task"]["max_new_tokens"]) == ("mf", 32)
    assert content(items("task")["scbench/kv"])["task"]["max_new_tokens"] == 96


@pytest.mark.parametrize("text", ["members: [", "\nmembers: 3\n", "\nmembers:\n", "name: a\n", "# members:\n"])
def test_a_file_without_members_stands_for_one_name(text: str) -> None:
    assert member_names(text) == ()


def test_a_plugin_may_have_a_file_with_members_beside_files_of_one_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    single = "says: A needle.\n_target_: kvbench.tasks.needle.Needle\nname: own/single\nstyle: book\n"
    files = {
        "__init__.py": "",
        "conf/task/hay.yaml": FILE.replace("of {member}", '"of {member}"'),
        "conf/task/own/single.yaml": single,
    }
    monkeypatch.delitem(sys.modules, "broken", raising=False)
    monkeypatch.syspath_prepend(str(made_up(tmp_path, "broken", files)))
    trees = combinations(parse(["task=hay/one,hay/two,own/single"]))
    assert [tree["task"]["name"] for tree in trees] == ["hay/one", "hay/two", "own/single"]
    assert [tree["task"]["name"] for tree in combinations(parse(["task=hay"]))] == ["hay/one", "hay/two"]
    described = describe(items("task")["hay/one"])
    assert described.says == "Needles one: One. The end." and described.source == "broken 1.0"
    assert main(["list", "tasks", "hay/one", "--json"]) == 0
    (listed,) = json.loads(capsys.readouterr().out)
    settings = {setting["key"]: (setting["default"], setting["comment"]) for setting in listed["settings"]}
    assert settings["task.samples"] == ("3", "of 7") and settings["task.context_length"] == ("1000", "of the file")
