"""`kvbench paper --smoke`: the settings that make an item small, and the task that replaces missing data."""

import pytest

from kvbench.cli.main import main
from kvbench.config.overrides import parse
from kvbench.papers.item import item_of, names
from kvbench.papers.settings import cells_of_item, smoke


def small(*own, words=()):
    return [setting.canonical for setting in smoke(parse(own), parse(words))]


def test_sizes_go_by_rank_and_no_number_of_tokens_stays():
    lengths = "task.context_length=4096,8192,16384,32768"
    settings = small("task=needle/official", "budget=2048,4096", lengths, "policy.recent=256", "policy.sink=4")
    assert settings[6:] == ["budget=48,64", "task.context_length=400,512,640", "policy.recent=32", "policy.sink=4"]
    assert settings[:2] == ["model=reference", "task.samples=1"]


def test_shares_and_depths_keep_their_ends():
    settings = small("budget=0.1,0.2,0.3,0.4,0.5,0.6,0.7,0.8,0.9,1.0", "task.depth=0,11,22,33,100", "score=attn")
    assert settings[6:] == ["budget=0.1,0.5,1.0", "task.depth=0,22,100"]


def test_the_task_that_needs_most_says_how_short_contexts_are():
    assert "task.context_length=1024" in small("task=ruler", "task.context_length=4096,32768")
    assert "task.context_length=384,512" in small("task=ruler/niah_single_2", "task.context_length=4096,32768")


def test_the_command_line_wins():
    assert not any(text.startswith("budget") for text in small("budget=1024", words=["budget=0.5"]))


@pytest.mark.parametrize("name", ["obcache/table1", next(name for name in names() if item_of(name).kind == "probe")])
def test_small_rows_have_a_folder_of_their_own(name, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main(["paper", name, "--smoke", "--plan", f"data.root={tmp_path}"]) == 0
    assert "are in results/smoke" in capsys.readouterr().out
    assert main(["paper", name, "--smoke", "--plan", f"data.root={tmp_path}", "results.dir=mine"]) == 0
    assert "are in mine" in capsys.readouterr().out


def test_long_prompts_are_cut_unless_another_task_is_named():
    assert "task.max_prompt_tokens=320" in small("task=scbench/kv")
    assert "task.context_length=256" in small("task=booksum/chapter")
    assert not any("max_prompt" in text for text in small("task=scbench/kv", words=["task=ruler/vt"]))


def test_prompts_stand_in_for_data_that_is_not_there(tmp_path):
    task = "ruler/niah_single_1"
    cells = cells_of_item(
        item_of("kvzip/softmax_free"), parse([f"data.root={tmp_path}", f"results.dir={tmp_path}"]), small=True
    )
    assert {entry.cell.task.name for entry in cells.entries} == {task} and not cells.missing
    assert cells.replaced and cells.unused == set()
    assert all((entry.cell.task.context_length or 0) <= 384 for entry in cells.entries)
    assert any(f"task={task} instead of task=" in text for text in cells.entries[0].differs)


@pytest.mark.parametrize("name", ["kvcache_factory/protocol", "triattention/aime"])
def test_the_stand_in_is_read_whole_and_replaces_tasks_alone(name, tmp_path):
    """LongBench's prompts are cut, the stand-in is not; query statistics that are missing stay missing."""
    words = parse([f"data.root={tmp_path}", f"results.dir={tmp_path}"])
    cells = cells_of_item(item_of(name), words, small=True)
    assert cells.with_data and all(entry.cell.task.max_prompt_tokens is None for entry in cells.with_data)
    assert len(cells.replaced) == 1 and "task" not in str(cells.missing)
    assert not {*cells.replaced} & {*cells.hints()}


@pytest.mark.slow
def test_a_task_that_is_named_has_no_stand_in(tmp_path):
    words = parse(["task=squad", f"data.root={tmp_path}", f"results.dir={tmp_path}"])
    cells = cells_of_item(item_of("kvzip/uniform"), words, small=True)
    assert not cells.with_data and not cells.replaced


@pytest.mark.slow
def test_a_page_without_data_is_rendered_and_says_so(tmp_path, capsys):
    words = ["kvzip/repeat_prompt", "--smoke", f"data.root={tmp_path}", f"results.dir={tmp_path / 'runs'}"]
    assert main(["paper", *words]) == 0
    printed = " ".join(capsys.readouterr().out.split())
    assert "SMOKE: ours: model reference; n = 1 a number" in printed
    assert "Another task is used instead, because data is missing" in printed and "No difference is shown" in printed


@pytest.mark.slow
def test_a_picture_that_nothing_can_be_drawn_in_leaves_the_other_items(tmp_path, monkeypatch, capsys):
    """The needle's data is missing, and the prompts that replace it have no depth."""
    monkeypatch.setattr("kvbench.papers.run.names", lambda: ["caote/figure2", "caote/table6"])
    few = ["policy=h2o_obcache", "score=attn", "budget=48", "task.context_length=384", f"data.root={tmp_path}"]
    words = ["all", "--smoke", *few, "--out", str(tmp_path / "pages"), f"results.dir={tmp_path / 'runs'}"]
    assert main(["paper", *words]) == 4
    assert {page.name for page in (tmp_path / "pages" / "caote").iterdir()} == {"figure2.txt", "table6.txt"}
    err = capsys.readouterr().err
    assert "1 of 2 items are complete" in err and "figure2: none of 2 cells has a task.depth" in err


@pytest.mark.slow
@pytest.mark.parametrize("name", names())
def test_every_item_is_small_enough_for_the_embedded_model(name, tmp_path):
    item = item_of(name)
    cells = cells_of_item(item, parse([f"data.root={tmp_path}", f"results.dir={tmp_path}"]), small=True)
    for entry in cells.entries:
        assert entry.cell.model.label == "reference" and entry.cell.task.samples <= 2
        assert (entry.cell.task.context_length or 0) <= 1024
