"""Every file of conf/paper: its runs compose, its numbers are those of the CSV, its settings have sources."""

import re
from functools import cache
from pathlib import Path

import pytest

from kvbench.config.cells import CellBuilder
from kvbench.config.compose import combinations, with_members
from kvbench.config.entries import options, step_settings
from kvbench.config.overrides import GROUPS, parse
from kvbench.extras.probes.run import PREFIX
from kvbench.papers.item import item_of, names
from kvbench.papers.page import page
from kvbench.papers.published import published
from kvbench.support import paths
from kvbench.support.plugins import OURS, held_groups, items
from kvbench.work.planned import cells_of

ITEMS = {name: item_of(name) for name in names()}
STATISTICS = Path(__file__).parents[1] / "golden" / "heads" / "queries.safetensors"
MARK = re.compile(r"\([a-z]\)$")
"""Of a number, a line or a column that a note explains."""


def first(key, value):
    """The first of a setting's values; Hydra's grammar, which takes its time, reads what is not plain."""
    if set(value) & set("{['\"") or (key == "task" and "/" not in value):
        return with_members(parse([f"{key}={value}"]))[0].values[0].text
    return value.partition(",")[0].strip()


def signature(settings):
    """What tells one composition from another: tables share many, with other models, tasks of a group and budgets."""
    words = {key: first(key, value) for key, _, value in (text.partition("=") for text in settings)}
    words = {key: value for key, value in words.items() if not key.startswith(PREFIX)}
    return tuple(words.items()), tuple(
        (key, value.partition("/")[0])
        for key, value in words.items()
        if key.partition(".")[0] not in ("model", "budget")
    )


SAID = {
    r"task=ruler(/|$)": "task.era",
    r"policy=(\w+,)*kvzip": "score.repeat_prompt",
    r"task\.samples=50$": "task.samples",
}
"""Settings by their beginning, and what an item that has them says in its sources."""

RUNS = {like: words for item in ITEMS.values() for run in item.all_runs for words, like in [signature(run)]}


@cache
def named(group):
    return set(options(group))


@pytest.mark.parametrize("words", RUNS.values(), ids=lambda words: "-".join(value for _, value in words[3:6]))
def test_a_run_composes_and_its_cell_is_legal(words, tmp_path):
    settings, unused = dict(words), set[str]()
    if "score.path" in settings:  # a table that others publish
        settings["score.path"] = str(tmp_path / "heads.tsv")
        (tmp_path / "heads.tsv").write_text("0\t1\n")
    if "score.statistics" in settings:  # of a model's queries
        settings["score.statistics"] = str(STATISTICS)
    (config,) = combinations(parse([f"{key}={value}" for key, value in settings.items()]), unused=unused)
    assert unused == set()
    CellBuilder().cell(config).check()


@pytest.mark.parametrize("name", ITEMS)
def test_every_name_that_a_run_lists_exists(name):
    for run in ITEMS[name].all_runs:
        for setting in parse([text for text in run if text.partition("=")[0] in GROUPS]):
            folders = {known.rpartition("/")[0] for known in named(setting.key)}
            assert {value.text for value in setting.values} <= named(setting.key) | folders


@pytest.mark.parametrize("name", [name for name in ITEMS if items("paper")[name].source.package == OURS])
def test_an_item_of_the_core_runs_without_extras(name):
    """What needs an extra lies in its folder: no name, step or holder of a run is of one."""
    for run in ITEMS[name].all_runs:
        for setting in parse(list(run)):
            assert setting.root not in held_groups()
            assert setting.root != "policy" or setting.key.split(".")[1:2] not in [[step] for step in step_settings()]
            for known in items(setting.key) if setting.key in GROUPS else ():
                if any(known == value.text or known.startswith(f"{value.text}/") for value in setting.values):
                    assert items(setting.key)[known].source.package == OURS, known


@pytest.mark.parametrize("name", [name for name, item in ITEMS.items() if item.published])
def test_the_published_block_has_the_numbers_of_the_csv(name):
    item = ITEMS[name]
    printed = published(item, paths.papers())
    (shown,) = page(item, printed).tables
    assert shown.title == "published" and printed
    figures = {figure.mean for line in shown.lines for figure in line.figures if figure.mean}
    assert figures == {number.value for number in printed if number.value}
    texts = [text for line in shown.lines for text in (*line.labels, *(figure.note for figure in line.figures))]
    marks = {
        mark for text in (*texts, *(head for heads in shown.heads for head in heads)) for mark in MARK.findall(text)
    }
    explained = [note.partition(":")[0] for note in shown.notes]
    assert len(explained) == len({number.flag for number in printed} - {""})
    assert marks == {mark for mark in explained if mark != "all numbers"}


@pytest.mark.parametrize("name", [name for name, item in ITEMS.items() if item.all_runs])
def test_settings_name_their_sources(name):
    """What the papers leave open or say otherwise is named too, and nothing that no run sets."""
    item = ITEMS[name]
    assert item.sources and all(item.sources.values())
    settings = {text for run in item.all_runs for text in run}
    named_there = {key for keys in item.sources for key in keys.split(", ")}
    for like, key in SAID.items():
        assert key in named_there or not any(re.match(like, text) for text in settings), (like, key)
    is_set = {text.partition("=")[0] for text in settings}
    assert not [key for key, source in item.sources.items() for each in key.split(", ")
                if each.startswith("task.") and each not in is_set and "ours" not in source]  # fmt: skip


def test_remarks_of_an_item_stand_below_its_tables():
    remarked = [item for item in ITEMS.values() if item.remarks]
    assert len(remarked) > 40
    for item in remarked:
        notes = page(item, published(item, paths.papers())).notes
        assert notes[: len(item.remarks)] == item.remarks


def test_crossing_tasks_and_methods_gives_the_cells_of_every_combination(tmp_path):
    words = ["model=reference", "task=ruler/niah_single_1,ruler/vt", "policy=h2o_obcache,snapkv", "score=attn"]
    settings = parse([*words, "budget=0.1,64", "task.samples=2", f"results.dir={tmp_path}", "policy.window=8"])
    unused: set[str] = set()
    where, cells = cells_of(settings, unused)
    whole = [CellBuilder().cell(tree) for tree in combinations(settings)]
    assert unused == set() and where.dir == str(tmp_path)
    assert len(cells) == 8 and {(cell.id, cell.task.samples) for cell in cells} == {
        (cell.id, cell.task.samples) for cell in whole
    }


def test_a_task_with_a_schedule_of_its_own_is_composed_with_every_method():
    """booksum's file speaks about the schedule, and so does cake's."""
    settings = parse(["task=ruler/niah_single_1,booksum/chapter", "policy=snapkv", "budget=64"])
    _, cells = cells_of(settings, set())
    assert [cell.schedule.prefill_block for cell in cells] == [None, 128]
