"""Extras and the core: what the core may not say, and that an extra which is taken away leaves the rest whole."""

import ast
import re
import tokenize
from collections.abc import Iterable, Iterator
from functools import cache
from io import StringIO
from pathlib import Path

import grimp
import pytest

from kvbench.config.entries import load_entry, step_parts, step_settings
from kvbench.support.paths import extras
from kvbench.support.plugins import groups, held_groups, items
from tests.repository import ROOT, parsed

CORE = [file for file in (ROOT / "kvbench").rglob("*.*") if not {"extras", "assets"} & {*file.parts}]
CORE = [*CORE, *(ROOT / "conf").rglob("*.yaml")]
CORE = [file for file in sorted(CORE) if file.suffix in (".py", ".json", ".yaml", ".j2") and file.name != "lock.json"]
"""What the core says: its code, settings and data; lock.json names data sets, and extras' tasks by them."""
COMMON = {
    *("adopt", "board", "claims", "completion", "dense", "derived", "endpoint", "export", "flash", "flash_attn"),
    *("gates", "hints", "history", "hub", "indexed", "kvpress", "latency", "leverage", "merging", "nearest"),
    *("page", "pages", "probe", "probes", "reader", "readers", "servers", "sharing", "speed", "store", "stores"),
    *("think", "varlen", "view"),
}
"""Words of extras that are English, or name a package: they count in quotes, after `--` and `=`, and by group."""
OURS = {"apply", "finch", "flat", "heads", "html", "math", "positions", "prompts", "share"}
"""Words that the core has for something of its own: they count by group."""
ALLOWED = {
    "kvbench/cache/shapes.py": ({"page"}, "an axis of arrays"),
    "kvbench/cli/list.py": ({"kvpress"}, "a package that files cite for its defaults"),
    "conf/paper/kvpress/leaderboard.yaml": ({"kvpress", "score=kvpress"}, "a remark on a line that is not run"),
    "kvbench/cli/doctor.py": ({"flash", "flash_attn"}, "a way of torch to attend, and an extra of the distribution"),
    "kvbench/models/bridge.py": ({"dense", "flash"}, "names of transformers' code"),
    "kvbench/models/loading/process.py": ({"flash"}, "a way of torch to attend"),
    "kvbench/models/refused.json": ({"indexed", "model=indexed"}, "what reads the models that are refused"),
    "kvbench/models/loading/spec.py": ({"fp8", "int8"}, "types of the numbers of a checkpoint"),
    "kvbench/records/environment.py": ({"triton"}, "a package whose version rows record"),
    "kvbench/records/folder.py": ({"probes"}, "a name on disk"),
    "kvbench/records/meanings.py": ({"GGUF", "fp8", "int8", "store"}, "values and names of columns"),
    "kvbench/report/tables/footprint.py": ({"store"}, "a column"),
    "kvbench/run/estimate.py": ({"store"}, "a column"),
    "kvbench/run/perplexity.py": ({"policy.positions"}, "what reads texts that are longer than the model reads"),
    "kvbench/support/errors.py": ({"Triton"}, "a package that raises the errors of torch's compiler"),
    "kvbench/tasks/data/pull.py": ({"hub"}, "the Hub of models and data sets"),
}
"""Where the core says a word of an extra, and what it means there."""


@cache
def brought(group: str) -> list[str]:
    """The names of a group that extras bring."""
    return [name for name, item in items(group).items() if "extras" in item.path.parts]


@cache
def members() -> set[tuple[str, str]]:
    """What extras bring, by group: steps and allocations by their last word, tasks by their first, too."""
    pairs = {
        (group, name) for group in {*groups()} - {"maker", "timing"} for name in brought(group)
    }  # the core names its files
    pairs |= {(group, name.rpartition("/")[2]) for group, name in pairs if group in ("allocation", "step")}
    return pairs | {(group, name.partition("/")[0]) for group, name in pairs if group == "task"}


@cache
def words() -> set[str]:
    """The folders of extras, the names of their members, the groups of holders, and the settings of steps."""
    return {folder.name for folder in extras()} | {name for _, name in members()} | {*held_groups(), *step_settings()}


@cache
def anywhere() -> re.Pattern[str]:
    """Return what no file of the core has: words of extras alone, and members with their group."""
    alone = "|".join(_ordered(words() - COMMON - OURS))
    pairs = "|".join(rf"{re.escape(group)}(?:=|[\"'], *[\"']){re.escape(name)}" for group, name in sorted(members()))
    called = rf"kvbench (?:{'|'.join(_ordered(brought('command')))})|report (?:{'|'.join(_ordered(brought('report')))})"
    return re.compile(rf"(?<![\w.])((?i:{alone})|{pairs}|{called})(?!\w)|kvbench\.extras\.(?!\{{)\w+")


@cache
def in_texts() -> re.Pattern[str]:
    """Return what no text and no comment has: common words in quotes, as flags and as values; settings of extras."""
    common, holders = "|".join(sorted(COMMON)), "|".join(held_groups())
    settings = "|".join([rf"(?:{holders})(?:=|\.\w+)", rf"policy\.(?:{'|'.join(step_settings())})(?!\w)"])
    settings += "".join(f"|{re.escape(part)}=" for part in step_parts())
    return re.compile(
        rf"""[`'"]({common})[`'"]|[\w.]=({common})(?!\w)|^({common})$|--({common})(?!\w)|(?<![\w.])({settings})"""
    )


def _ordered(names: Iterable[str]) -> list[str]:
    """Escape names for a pattern, so that one that begins another comes after it."""
    return [re.escape(name) for name in sorted(names, key=lambda name: (-len(name), name))]


def said(file: Path) -> Iterator[str]:
    """Yield the texts, docstrings and comments of a file of Python; the whole of another file."""
    text = file.read_text("utf-8")
    if file.suffix != ".py":
        yield text
        return
    for node in ast.walk(parsed(file)):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value
    for token in tokenize.generate_tokens(StringIO(text).readline):
        if token.type == tokenize.COMMENT:
            yield token.string


def found(file: Path) -> set[str]:
    """Return the words of extras that a file says."""
    matches = [*anywhere().finditer(file.read_text("utf-8"))]
    matches += [match for text in said(file) for match in in_texts().finditer(text)]
    return {next(filter(None, match.groups()), match[0]) for match in matches}


def test_tasks_of_extras_do_without_torch() -> None:
    """As those of the core, which import-linter checks."""
    graph = grimp.build_graph("kvbench", include_external_packages=True, cache_dir=None)
    for module in {load_entry("task", name)["_target_"].rpartition(".")[0] for name in brought("task")}:
        assert not graph.find_upstream_modules(module) & {"torch", "transformers"}, module


def test_the_core_says_no_word_of_an_extra() -> None:
    says = {file.relative_to(ROOT).as_posix(): words for file in CORE if (words := found(file))}
    assert says == {file: words for file, (words, _) in ALLOWED.items()}


def test_every_word_with_another_meaning_is_one_of_an_extra() -> None:
    assert words() >= COMMON | OURS and not COMMON & OURS


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ('X = "recommend"', {"recommend"}),
        ("def recommend(): ...", {"recommend"}),
        ("# as the Triton kernels do", {"Triton"}),
        ('"""A row of an efficiency task."""', {"efficiency"}),
        ('X = "reader"', {"reader"}),
        ('"""With a `store` of its own."""', {"store"}),
        ('X = f"store={name} reader.budget=4"', {"store=", "reader.budget"}),
        (
            'X = ("task=hub", "score=kvpress", "logger=wandb")',
            {"task=hub", "hub", "score=kvpress", "kvpress", "logger=wandb"},
        ),
        ('code_of("report", "html")', {'report", "html'}),
        ('X = "see kvbench heads, or report pages"', {"kvbench heads", "report pages"}),
        ('X = "--view, policy.share=2"', {"view", "policy.share"}),
        ('"""A reader of pages views heads and prompts: a store of the hub."""', set()),
        ('heads = dict(store=store, reader=1)["heads"]', set()),
    ],
)
def test_words_are_found_where_they_mean_an_extra(text: str, says: set[str], tmp_path: Path) -> None:
    file = tmp_path / "core.py"
    file.write_text(text, "utf-8")
    assert found(file) == says


@pytest.mark.parametrize("folder", extras(), ids=lambda folder: folder.name)
def test_an_extra_is_code_and_settings(folder: Path) -> None:
    """Its files name classes of the core and its own; no file of the core's settings names one. It has a page."""
    page = folder / f"{folder.name}.md"
    assert [*folder.glob("*.md")] == [page] and re.match(r"# \w", page.read_text("utf-8"))
    files = [*(folder / "conf").rglob("*.yaml")]
    targets = [line.split()[1] for file in files for line in file.read_text("utf-8").splitlines() if "_target_" in line]
    own = [target for target in targets if f"{target}.".startswith(f"kvbench.extras.{folder.name}.")]
    assert own and all(target.startswith("kvbench.") for target in targets)
    assert [target for target in targets if target.startswith("kvbench.extras.")] == own
    conf = [
        file for file in (ROOT / "conf").rglob("*.yaml") if f"kvbench.extras.{folder.name}" in file.read_text("utf-8")
    ]
    assert conf == []
