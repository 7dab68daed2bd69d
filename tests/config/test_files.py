"""Contracts over conf/: every file composes, builds what it names, and every policy works with every score."""

import re
from dataclasses import fields
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml
from hydra import compose, initialize_config_dir
from hydra.core.config_store import ConfigStore
from omegaconf import OmegaConf

from kvbench.cli.list import CODE, GROUPS, describe
from kvbench.cli.setting_help import words_of
from kvbench.config.cells import CellBuilder
from kvbench.config.compose import RUN, combinations
from kvbench.config.entries import ALLOCATION, class_of, content, defaults_of, load_entry, options, step_settings
from kvbench.config.overrides import parse
from kvbench.config.policy_parts import kinds
from kvbench.config.settings import build
from kvbench.eviction.policy import Policy
from kvbench.eviction.scores.score import Score
from kvbench.eviction.step import Step
from kvbench.extras.probes.probe import Probe
from kvbench.extras.probes.run import probing_of
from kvbench.models.decode.holder import Holder
from kvbench.models.loading.spec import ModelSpec
from kvbench.papers.item import Item, item_of
from kvbench.run.launch.launcher import Launcher
from kvbench.support import paths
from kvbench.support.errors import UserError
from kvbench.support.noted import declared, defaults
from kvbench.support.plugins import GROUPS as OF_THE_CORE
from kvbench.support.plugins import Source, brought, groups, held_groups, items, own_sources
from kvbench.support.settings_file import LOADER, MEMBERS, NO_SETTINGS, member_names
from kvbench.tasks.task import Task, TaskSettings
from kvbench.work.logger import Logger
from tests.composed import composed, needed

KINDS = {
    "policy": Policy,
    "score": Score,
    "reader": Holder,
    "store": Holder,
    "task": Task,
    "model": ModelSpec,
    "probe": Probe,
    "launcher": Launcher,
    "logger": Logger,
    "step": Step,
}
KINDS |= {"paper": Item}
EVERY = [(group, name) for group in KINDS for name in options(group)]
OF_EVERY_TASK = {field.name for field in fields(TaskSettings)}
BY_HYDRA = {group: [*{name.partition("/")[0]: name for name in options(group)}.values()] for group in KINDS}
BY_HYDRA |= {group: BY_HYDRA[group][::6] for group in ("policy", "score", "model")}
"""One name of each folder, as the tasks of a benchmark are read in the same way; a sixth of the policies, scores and
models, whose files are alike."""


class Stored(dict[str, Any]):
    """What Hydra's store holds. Hydra copies the whole store to compose, beside each node that it reads from it."""

    def __deepcopy__(self, memo: dict[int, Any]) -> "Stored":
        return self


@cache
def store_members() -> None:
    """Store the members of files one by one, since Hydra knows files of one name; and the files of extras."""
    ConfigStore.instance().repo = Stored(ConfigStore.instance().repo)
    for item in (item for group in KINDS for item in items(group).values()):
        if item.name in member_names(item.path.read_text("utf-8")) or item.source.conf != paths.conf():
            folder, _, name = f"{item.group}/{item.name}".rpartition("/")
            tree = content(item)
            ConfigStore.instance().store(name, tree, group=folder, package="_global_")


def composed_by_hydra(*overrides: str) -> dict[str, Any]:
    """The resolved configuration that Hydra makes of a command line, without the words of files."""
    store_members()
    with initialize_config_dir(str(paths.conf().resolve()), version_base=None):
        of_run = ("protocol=paper", f"seed={declared(RUN)['seed']}", "data.root=null")  # parts refer to them
        words = [word if word.partition("=")[0] in KINDS else f"++{word}" for word in (*of_run, *overrides)]
        tree = OmegaConf.to_container(compose("run", words), resolve=True)
    assert isinstance(tree, dict)
    return {
        str(key): {name: inner for name, inner in value.items() if name not in NO_SETTINGS}
        if isinstance(value, dict)
        else value
        for key, value in tree.items()
        if key not in NO_SETTINGS
    }


def over_defaults(tree: dict[str, Any]) -> dict[str, Any]:
    """What Hydra composed over what classes declare, of a run and of each group."""
    whole: dict[str, Any] = {**declared(RUN), **tree}
    for name, part in tree.items():
        if isinstance(part, dict):
            usual = defaults_of(name, part) if "_target_" in part else declared(RUN)[name]
            whole[name] = {**(usual if part.get("accepts") != [] else {}), **part}
    return whole


def own_settings(policy: dict[str, Any]) -> dict[str, Any]:
    """Those that are no settings of steps, of which Hydra knows nothing."""
    return {key: value for key, value in policy.items() if key not in step_settings()}


@pytest.mark.parametrize(("group", "name"), EVERY, ids="-".join)
def test_file_builds_what_it_names_and_says_what_it_is(group: str, name: str) -> None:
    """The first line of what it says is what `kvbench list` shows."""
    line = describe(items(group)[name]).says.partition("\n")[0]
    assert len(line) > 20 and line.endswith(".")
    if group == "paper":
        assert item_of(name).name == name
        return
    if group == "probe":  # no part of a run
        built = probing_of(name, [], print, Path("out"))[0].probe
        assert isinstance(built, Probe) and built.name == name
        return
    words = (f"{group}={name}", *needed(group, name))
    if group == "step":  # settings of policies
        built = class_of(group, load_entry(group, name))()
        assert isinstance(built, Step) and (built.idle or name == f"{built.part}/{built.kind}")
        return
    tree = composed(*words)
    if name in BY_HYDRA[group]:
        by_hydra = composed_by_hydra(*(word for word in words if group not in held_groups()))
        ours = {name: part for name, part in tree.items() if name not in held_groups()}
        both = ({**each, "policy": own_settings(each["policy"])} for each in (ours, over_defaults(by_hydra)))
        assert next(both) == next(both), "Hydra composes another cell"
    built = build(group, tree[group])
    assert isinstance(built, KINDS[group])
    own = ("jsonl", "hub", "trajectories/calls", "trajectories/likelihood")
    assert built.name == (f"{name}/mine" if name in own else name)


@pytest.mark.parametrize("name", options("task"))
def test_settings_of_every_task_are_those_of_its_class_where_its_file_has_none(name: str) -> None:
    """No other file may say them, since a benchmark's class declares its protocol."""
    node = composed(f"task={name}", *needed("task", name))["task"]
    tree = words_of(items("task")[name]).tree
    own = tree.get("task", tree)
    target = class_of("task", node)
    for field in OF_EVERY_TASK - own.keys():
        declared = getattr(target, field)
        assert node[field] == (list(declared) if isinstance(declared, tuple) else declared), field
    of_benchmark = {field for base in target.__mro__ if base not in TaskSettings.__mro__ for field in vars(base)}
    assert own.keys().isdisjoint(of_benchmark & OF_EVERY_TASK), "the class says it, and its file must not say otherwise"


def restated(own: dict[str, Any], targets: list[str], shared: dict[str, Any]) -> list[str]:
    """Settings of a mapping that all classes declare with the value that it states; not those in `shared`."""
    usual = [declared(target) for target in targets]
    own = {key: value for key, value in own.items() if key not in shared}
    return [*(key for key, value in own.items() if all(key in u and u[key] == value for u in usual)), *in_parts(own)]


def in_parts(own: dict[str, Any]) -> list[str]:
    """Settings of a policy's heads and layers that their kinds declare with the value that the policy states."""
    again = []
    for name, part in own.items():
        if name in ("heads", "layers") and isinstance(part, dict):
            (kind,) = (each for each in kinds(ALLOCATION)[name] if each.kind == part["kind"])
            usual = defaults(kind)
            again += [f"{name}.{key}" for key, value in part.items() if key != "kind" and usual.get(key, ...) == value]
    return again


@pytest.mark.parametrize("source", own_sources(), ids=lambda source: source.package)
def test_no_file_states_what_its_class_declares(source: Source) -> None:
    """A value has one place: the class says it, and a file says what differs."""
    for path in (path for group in KINDS if group != "paper" for path in (source.conf / group).rglob("*.yaml")):
        node = yaml.load(path.read_text("utf-8"), LOADER)
        group = path.relative_to(source.conf).parts[0]
        part = node.get(group, node)
        members = part.get(MEMBERS, {})
        targets = [own.get("_target_", part.get("_target_")) for own in members.values()] or [part["_target_"]]
        assert not restated(part, targets, {}), path
        for own, target in zip(members.values(), targets, strict=False):
            assert not restated(own, [target], part), path
    run = OmegaConf.load(paths.conf() / "run.yaml")
    assert set(run) == {"defaults"}, "defaults of a run are those of its class"


def test_scbench_truncates_as_officially() -> None:
    (tree,) = combinations(parse(["task=scbench_official/kv"]))
    assert tree["task"]["truncation"] == "middle_tokens"


def test_no_member_is_named_like_its_file() -> None:
    """Hydra would read the whole file under that name."""
    files = [path for source in own_sources() for path in (source.conf / "task").rglob("*.yaml")]
    members = {path.stem: names for path in files if (names := member_names(path.read_text("utf-8")))}
    assert len(members) > 10 and len(options("task")) > 140
    assert [name for name, names in members.items() if name in names] == []


def test_every_group_can_be_listed_and_every_folder_is_one() -> None:
    assert set(GROUPS.values()) == set(groups()) - set(CODE) >= set(KINDS)
    folders = {
        (source.package, path.name) for source in own_sources() for path in source.conf.iterdir() if path.is_dir()
    }
    known = {*OF_THE_CORE, *(group for source in own_sources() for group in brought(source.conf).groups)}
    assert [folder for folder in sorted(folders) if folder[1] not in known] == []


@pytest.mark.parametrize("policy", options("policy"))
def test_every_field_of_a_policy_can_be_set_and_it_has_a_score(policy: str) -> None:
    """run.yaml has no score. What evicts lists all fields, so that `policy.positions=cache` reaches every policy."""
    tree = composed(f"policy={policy}", *needed("policy", policy))
    assert tree["score"]["name"] in options("score")
    if tree["policy"]["accepts"]:
        assert {*step_settings(), *(field.name for field in fields(Policy))} == {*tree["policy"], "steps"} - {
            "_target_"
        }


def test_defaults_are_those_the_design_fixes() -> None:
    """The settings of papers, GQA-native caches."""
    tree = composed()
    default = CellBuilder().cell(tree)
    assert (default.model.name, default.task.name) == ("reference", "ruler/niah_single_1")
    assert tree["protocol"] == "paper"
    for name, size in (("h2o_obcache", 16), ("snapkv", 32)):
        policy = build("policy", composed(f"policy={name}")["policy"])
        assert (policy.window, policy.recent, policy.layout) == (size, size, "kv_heads")
    assert composed("policy=tova_obcache")["policy"]["window"] == 1
    for name in ("lava", "lava_uniform", "lava_no_head", "lava_pyramid"):
        policy = build("policy", composed(f"policy={name}")["policy"])
        assert (policy.window, policy.recent, policy.heads.kind == "uniform") == (32, 32, name == "lava_no_head")


OF_THE_HUB = [
    name
    for name in options("model")
    if "/" not in name and name not in ("hf", "indexed", "reference", "smollm2", "endpoint")
]
LENGTHS = {
    "llama3-8b-instruct": 8192,  # LAVa, section 5.1: 8k
    "qwen2.5-14b-instruct": 32768,  # 32k
    "qwen2.5-32b-instruct": 32768,
    "mistral-7b-instruct-v0.2": 32768,
    "gemma3-12b-it": 131072,  # KVzip, appendix: 128K
}


@pytest.mark.parametrize("name", OF_THE_HUB)
def test_a_model_of_the_hub_says_where_it_is_and_how_it_is_read(name: str) -> None:
    spec = build("model", composed(f"model={name}", *needed("model", name))["model"])
    publisher, _, repository = (spec.path or "").partition("/")
    name = name.replace("-hub", "-135m-instruct")
    assert publisher and "".join(c for c in name if c.isdigit()) == "".join(c for c in repository if c.isdigit())
    assert (spec.dtype, spec.chat, spec.shape) == ("bfloat16", "auto", None)
    assert spec.max_length == LENGTHS.get(name, spec.max_length)
    shape = f"shape/{name.removesuffix('-instruct')}"
    if shape in options("model"):
        config = composed(f"model={shape}", *needed("model", shape))["model"]["shape"]["config"]
        assert spec.max_length == config["max_position_embeddings"]


def test_every_model_of_the_papers_has_a_name() -> None:
    named = {str(composed(f"model={name}", *needed("model", name))["model"]["path"]) for name in OF_THE_HUB}
    words = {word for name in options("paper") for run in item_of(name).all_runs for word in run}
    settings = [parse([word])[0] for word in words if word.startswith(("model=", "model.path="))]
    hub_ids = {value.text for each in settings if each.key == "model.path" for value in each.values}
    models = {value.text for each in settings if each.key == "model" for value in each.values}
    assert hub_ids <= named and models - {"hf", "indexed"} <= {*OF_THE_HUB, "reference"} and hub_ids | models


@pytest.mark.parametrize(
    ("word", "real"),
    [
        ("llama3.1-8b", "llama3.1-8b-instruct"),
        ("llama3.2-3b", "llama3.2-3b-instruct"),
        ("Qwen/Qwen2.5-7B-Instruct", "qwen2.5-7b-instruct"),
        ("qwen2.5-7b", "qwen2.5-7b-instruct"),
        ("mistral-7b", "mistral-7b-instruct-v0.2"),
    ],
)
def test_random_weights_are_never_suggested_for_a_real_model(word: str, real: str) -> None:
    with pytest.raises(UserError) as error:
        combinations(parse([f"model={word}"]))
    suggestion, _, others = str(error.value).partition("; others: ")
    assert f"did you mean {real}? allowed: " in suggestion and "shape/" not in suggestion
    assert "random weights" in others


def test_no_file_of_the_core_names_a_path_of_an_extra() -> None:
    files = [*paths.conf().rglob("*.yaml")]
    assert (
        len(files) > 100 and [file for file in files if re.search(r"kvbench[./]extras", file.read_text("utf-8"))] == []
    )
