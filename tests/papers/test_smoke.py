"""`kvbench paper --smoke`: the settings that make an item small, and what the command line replaces of them."""

import pytest

from kvbench.cli.main import main
from kvbench.config.overrides import parse
from kvbench.papers.cells import SMOKE, cells_of_item, smoke
from kvbench.papers.item import Item, item_of, names

ITEM = Item("x/y", "t", settings=("policy=snapkv",))
RUN = [name for name in names() if item_of(name).all_runs]


def small(*words, item=ITEM):
    return [setting.canonical for setting in smoke(item, parse(words))]


def cells_of(name, folder, *words):
    settings = parse([f"data.root={folder}", f"results.dir={folder}", *words])
    return cells_of_item(item_of(name), settings, small=True)


@pytest.mark.parametrize(
    ("word", "gone"),
    [
        ("budget=0.5", ["budget=400,500"]),
        ("task.context_length=512", ["task.context_length=768,1024"]),
        ("task=squad", [*ITEM.smoke]),  # a task of another benchmark has no such lengths, but one sample too
    ],
)
def test_a_smoke_run_says_its_sizes_and_the_command_line_wins(word, gone):
    for item in (ITEM, item_of("lava/figure3")):
        assert small(item=item) == [*SMOKE, *item.smoke]
    assert small(word) == [setting for setting in (*SMOKE, *ITEM.smoke) if setting not in gone]


@pytest.mark.parametrize("name", ["obcache/table1", "lava/table14"])
def test_small_rows_have_a_folder_of_their_own(name, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main(["paper", name, "--smoke", "--plan", f"data.root={tmp_path}"]) == 0
    assert "are in results/smoke" in capsys.readouterr().out
    assert main(["paper", name, "--smoke", "--plan", f"data.root={tmp_path}", "results.dir=mine"]) == 0
    assert "are in mine" in capsys.readouterr().out


@pytest.mark.parametrize("name", ["kvzip/softmax_free", "kvcache_factory/protocol", "triattention/aime"])
def test_a_smoke_run_reads_generated_prompts(name, tmp_path):
    """No data is needed; query statistics that are missing stay missing."""
    cells = cells_of(name, tmp_path)
    assert {entry.cell.task.name for entry in cells.with_data} == {"ruler/niah_single_1"} and cells.unused == set()
    assert "task" not in str([*cells.missing])
    assert any("task=ruler/niah_single_1 instead of task=" in text for text in cells.entries[0].differs)


def test_a_task_that_is_named_is_read(tmp_path):
    cells = cells_of("kvzip/uniform", tmp_path, "task=squad")
    assert {entry.cell.task.name for entry in cells.entries} == {"squad"} and not cells.with_data


@pytest.mark.slow
def test_a_page_without_data_is_rendered_and_says_so(tmp_path, capsys):
    words = ["kvzip/repeat_prompt", "--smoke", f"data.root={tmp_path}", f"results.dir={tmp_path / 'runs'}"]
    assert main(["paper", *words]) == 0
    printed = " ".join(capsys.readouterr().out.split())
    assert "SMOKE: ours: model reference; n = 2 a number" in printed
    assert "task=ruler/niah_single_1 instead of task=" in printed and "No difference is shown" in printed


def test_a_picture_that_nothing_can_be_drawn_in_leaves_the_other_items(tmp_path, monkeypatch, capsys):
    """RULER's prompts have no depth."""
    monkeypatch.setattr("kvbench.papers.run.names", lambda: ["caote/figure2", "caote/table6"])
    few = ["policy=h2o_obcache", "score=attn", "budget=48", f"data.root={tmp_path}"]
    few += ["task=ruler/niah_single_1", "task.context_length=384"]
    words = ["all", "--smoke", *few, "--out", str(tmp_path / "pages"), f"results.dir={tmp_path / 'runs'}"]
    assert main(["paper", *words]) == 4
    assert {page.name for page in (tmp_path / "pages" / "caote").iterdir()} == {"figure2.txt", "table6.txt"}
    err = capsys.readouterr().err
    assert "1 of 2 items are complete" in err and "figure2: none of 1 cells has a task.depth" in err


@pytest.mark.parametrize("name", RUN)
def test_every_item_is_small_enough_for_the_embedded_model(name, tmp_path):
    for entry in cells_of(name, tmp_path).entries:
        assert entry.cell.model.label == "reference" and entry.cell.task.samples <= 2
        assert (entry.cell.task.context_length or 0) <= 1024
