"""Scores, policies and allocations of other packages: found, run, named in every cell, refused by name if broken."""

import json
import sys
from pathlib import Path

import pytest

from kvbench.cli.doctor import installed_plugins
from kvbench.cli.main import main
from kvbench.support.plugins import faults, groups, held_groups, items
from kvbench.work.planned import plan_sweep
from tests.plugins import install, made_up

SCORE = "# A score of a test.\n_target_: {}\nname: mine\n"
UNFROZEN = "from dataclasses import dataclass\n@dataclass\nclass Mine:\n    name: str"
RECENCY = "kvbench.eviction.scores.recency.Recency"


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the sample package is installed."""
    return install(tmp_path_factory.mktemp("plugin"))


def test_a_package_with_one_file_and_one_yaml_adds_a_score(
    site: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The search path is all that the commands know of the plugin."""
    monkeypatch.syspath_prepend(str(site))
    monkeypatch.setenv("COLUMNS", "200")
    run = f"score=sample_score,caote score.half_life=32 score.host=sample_score budget=0.2 results.dir={tmp_path}"
    short = "task.samples=1 task.context_length=400"
    lines = [
        "list scores",
        f"plan {run} {short}",
        f"run {run} {short} reference=none",
        "run score=sample_score score.half_life=0 reference=none",
    ]
    lines += ["conform --properties score=sample_score policy=h2o_obcache"]
    codes = [main(line.split()) for line in lines]
    printed = capsys.readouterr()
    assert codes == [0, 0, 0, 2, 0], printed.err
    listed = next(line for line in printed.out.splitlines() if line.startswith("sample_score"))
    assert "kvbench-sample 0.3.1" in listed and "faded by age" in listed
    assert "score.half_life=0.0: a number of tokens above 0, e.g. 64" in printed.err
    rows = [json.loads(line) for path in (tmp_path / "rows").glob("*.jsonl") for line in path.open()]
    assert sorted(row["score"] for row in rows) == [
        "caote host.half_life=64.0 host.name=sample_score",
        "sample_score half_life=32.0",
    ]
    assert all(row["error"] is None and 0.15 < row["kept_fraction"] < 0.25 for row in rows)
    for row in rows:
        plugins = json.loads((tmp_path / "cells" / f"{row['cell']}.json").read_text())["plugins"]
        assert list(plugins) == ["kvbench_sample"]
        assert plugins["kvbench_sample"]["plugin"] == "kvbench-sample 0.3.1"


def refusal(line: str, capsys: pytest.CaptureFixture[str]) -> str:
    """What a command that is refused says: one line, and exit code 2."""
    assert main(line.split()) == 2
    message = capsys.readouterr().err
    assert message.count("\n") == 1
    return message


@pytest.mark.parametrize(
    ("files", "value", "says"),
    [
        ({"__init__.py": ""}, None, "names a package that has no folder conf (looked for "),
        ({"conf/score/a.yaml": ""}, "broken_one", "names no module that is installed; fix it, or pip uninstall"),
        ({"conf/score/a.yaml": ""}, "not_there.inside", "cannot be found: ModuleNotFoundError"),
        ({"__init__.py": "", "alone.py": ""}, "broken.alone", "names no package, so that it cannot hold a folder conf"),
        ({"conf/scores/a.yaml": ""}, None, "conf/scores is not a group of settings; allowed folders: allocation, "),
        ({"conf/own/a.yaml": ""}, None, "/conf/run.yaml names: groups: [own]; fix it, or pip uninstall broken"),
        ({"conf/run.yaml": "defaults: [{store: flat}, 3]"}, None, "conf/run.yaml names no group; it holds: "),
        ({"conf/run.yaml": "groups: own", "conf/own/a.yaml": ""}, None, "/conf/run.yaml names: groups: [own]; fix it"),
        ({"conf/run.yaml": "group: [own]"}, None, "conf/run.yaml names no group; it holds: "),
    ],
    ids=[
        "no folder",
        "no module",
        "no parent",
        "no package",
        "misspelt",
        "no group",
        "a bad group",
        "a word",
        "a bad key",
    ],
)
def test_a_plugin_that_cannot_be_read_brings_nothing_and_is_told_by_name(
    files: dict[str, str],
    value: str | None,
    says: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Commands that do without it work: none of its names is another source's."""
    monkeypatch.delitem(sys.modules, "broken", raising=False)
    monkeypatch.syspath_prepend(str(made_up(tmp_path, "broken", files, value)))
    for line in ("list scores", "plan score=attn"):
        assert main(line.split()) == 0
        message = capsys.readouterr().err
        assert "kvbench: warning: plugin broken 1.0" in message and says in message
    assert main(["plan", "score=mine"]) == 2
    assert says in capsys.readouterr().err
    (finding,) = installed_plugins()
    assert finding.mark == "missing" and says in finding.text


def test_a_name_that_two_sources_have_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """By every command that looks at names of the group: it could mean either."""
    monkeypatch.delitem(sys.modules, "broken", raising=False)
    files = {"conf/score/attn.yaml": SCORE.format(RECENCY)}
    monkeypatch.syspath_prepend(str(made_up(tmp_path, "broken", files)))
    for line in ("list scores", "plan score=attn"):
        assert "score attn is in kvbench and in plugin broken 1.0: " in refusal(line, capsys)


def test_a_plugin_brings_groups_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = {
        "conf/run.yaml": "groups: [own]\nunlisted: [code]\n",
        "conf/own/mine.yaml": "says: mine\n_target_: collections.Counter\n",
        "conf/code/mine.yaml": "says: mine\n_target_: collections.Counter\n",
        "conf/step/mine.yaml": "says: mine\n_target_: collections.Counter\n",
    }
    monkeypatch.syspath_prepend(str(made_up(tmp_path, "bringing", files)))
    assert {"own", "code"} <= {*groups()} and not faults()
    assert [*items("own")] == ["mine"] and "own" not in held_groups()
    (finding,) = installed_plugins()
    assert finding == ("ok", "plugin bringing", "1.0: code mine, own mine, step mine", None)


@pytest.mark.parametrize(
    ("yaml", "code", "says"),
    [
        (SCORE.format("broken.Mine"), "import not_there", "broken.Mine does not load: ModuleNotFoundError: No module"),
        (SCORE.format("broken.Mine"), "", "broken.Mine does not load: "),
        (SCORE.format("broken.Mine"), "class Mine: pass", "broken.Mine is not a dataclass"),
        (SCORE.format("broken.Mine"), UNFROZEN, "broken.Mine is a dataclass that is not frozen: make it a @dataclass("),
        (SCORE.format("kvbench.eviction.pooling.Pool") + "kind: max\nsize: 3\n", "", "unknown setting score.name"),
        (SCORE.format(RECENCY).replace("mine", "yours"), "", "says name: yours, but must say name: mine"),
        (SCORE.format(RECENCY) + "width: 3\n", "", "unknown setting score.width: allowed: name"),
        ("# Nothing but a name.\nname: mine\n", "", "names no class: add _target_: package.module.Class"),
        ("# No YAML.\nname: [\n", "", "cannot be read"),
    ],
    ids=["import", "no class", "no dataclass", "not frozen", "no score", "name", "setting", "target", "yaml"],
)
def test_a_score_that_does_not_instantiate_is_refused_by_name(
    yaml: str,
    code: str,
    says: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Whoever asks for it; others go on."""
    monkeypatch.delitem(sys.modules, "broken", raising=False)
    files = {"__init__.py": code, "conf/score/mine.yaml": yaml}
    monkeypatch.syspath_prepend(str(made_up(tmp_path, "broken", files)))
    message = refusal("plan score=mine", capsys)
    assert says in message and "score mine of plugin broken 1.0: " in message
    assert main(["list", "scores"]) == 0
    assert "broken 1.0" in capsys.readouterr().out


def test_a_cell_changes_with_the_plugin_s_version_and_with_its_code(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A folder of its own for each, as the same path is read once by every process."""
    code = "from kvbench.eviction.scores.recency import Recency\nfrom dataclasses import dataclass\n\n"
    code += "@dataclass(frozen=True)\nclass Mine(Recency):\n    name: str = 'mine'\n"
    identifiers = []
    for index, (version, ending) in enumerate([("1.0", ""), ("1.0", ""), ("1.1", ""), ("1.0", "# more\n")]):
        files = {"__init__.py": code + ending, "conf/score/mine.yaml": SCORE.format("changing.Mine")}
        with monkeypatch.context() as patch:
            patch.delitem(sys.modules, "changing", raising=False)
            patch.syspath_prepend(str(made_up(tmp_path / str(index), "changing", files, version=version)))
            (cell,) = plan_sweep(
                ["score=mine", "reference=none", "budget=40", f"results.dir={tmp_path}"], print
            ).plan.cells
            identifiers.append(cell.id)
    assert identifiers[0] == identifiers[1] and len(set(identifiers)) == 3


def test_doctor_tells_what_plugins_add_and_what_is_wrong_with_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delitem(sys.modules, "fine", raising=False)
    good = {"__init__.py": "", "conf/score/mine.yaml": SCORE.format(RECENCY)}
    monkeypatch.syspath_prepend(str(made_up(tmp_path, "fine", good)))
    assert list(installed_plugins()) == [("ok", "plugin fine", "1.0: score mine", None)]
    made_up(
        tmp_path / "more", "wrong", {"__init__.py": "import not_there", "conf/score/w.yaml": SCORE.format("wrong.W")}
    )
    monkeypatch.syspath_prepend(str(tmp_path / "more"))
    made_up(tmp_path / "more", "lost", {"conf/command/lost.yaml": "says: nothing\n_target_: lost.nowhere\n"})
    fine, lost, wrong = installed_plugins()
    assert (fine.mark, lost.mark, wrong.mark) == ("ok", "missing", "missing")
    assert "score w of plugin wrong 1.0: " in wrong.text and "lost.nowhere, which cannot be imported" in lost.text


def test_a_plugin_s_score_is_held_to_the_properties_of_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """One that looks at memory it did not ask for fails on every policy, by the name of the property."""
    code = """
from dataclasses import dataclass
from kvbench.eviction.scores.recency import Recency

@dataclass(frozen=True)
class Mine(Recency):
    name: str = "mine"

    def __call__(self, layer, window, reduce):
        return super().__call__(layer, window, reduce) * (1 if layer.windows else -1)
"""
    monkeypatch.delitem(sys.modules, "peeking", raising=False)
    files = {"__init__.py": code, "conf/score/mine.yaml": SCORE.format("peeking.Mine")}
    monkeypatch.syspath_prepend(str(made_up(tmp_path, "peeking", files)))
    assert main(["conform", "--properties", "score=mine", "policy=snapkv,lava"]) == 5
    printed = capsys.readouterr().out
    assert printed.count("only_declared_inputs_are_read") == 2 and "0 of 2 combinations hold" in printed
    assert main(["conform", "--properties", "score=recency,cake", "policy=snapkv,tova_obcache", "policy.recent=3"]) == 0
    printed = capsys.readouterr().out
    assert printed.count("ok    policy=") == 3
    assert "policy=tova_obcache score=cake: refused: policy.window=1: score cake takes a variance" in printed
    for words in ([], ["budget=3"]):
        assert "--properties" in refusal(" ".join(("conform", "--properties", *words)), capsys)


def test_a_misspelt_setting_of_a_plugin_s_policy_is_named_with_its_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """What the user types is named as it was typed."""
    policy = "# A policy of a test.\n_target_: kvbench.eviction.policy.Policy\nname: mine\nwindw: 8\n"
    files = {
        "__init__.py": "",
        "conf/policy/mine.yaml": policy,
        "conf/policy/fine.yaml": policy[:-9].replace("mine", "fine"),
    }
    site = made_up(tmp_path, "misspelt", files)
    monkeypatch.syspath_prepend(str(site))
    file = site / "misspelt" / "conf" / "policy" / "mine.yaml"
    message = refusal("plan policy=mine", capsys)
    assert f"policy mine of plugin misspelt 1.0: {file}: unknown setting policy.windw: did you mean window?" in message
    assert "plugin" not in refusal("plan policy=fine policy.windw=8", capsys)
