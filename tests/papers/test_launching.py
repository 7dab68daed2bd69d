"""`kvbench paper ITEM launcher=...` and `--commands`: an item's cells made elsewhere are those that it renders."""

import json
import shlex

import pytest

from kvbench.cli.main import main
from kvbench.cli.paper import PartOfItem
from kvbench.cli.sweep import SCREEN
from kvbench.config.overrides import parse
from kvbench.papers.cells import cells_of_item
from kvbench.papers.item import item_of, names
from kvbench.papers.request import PaperRequest, RowsElsewhere, Runner
from kvbench.papers.sweep import ItemSweep
from kvbench.records import read_rows
from kvbench.run.launch.launcher import PendingSweep
from kvbench.run.shard import Shard
from kvbench.work.planned import cells_of

WORDS = ("model=reference", "task.samples=2", "task.context_length=384", "task.haystack=noise", "budget=80")
WORDS += ("policy=h2o_obcache,snapkv", "score=attn", "task.max_new_tokens=4")


def commands(name, capsys, *words):
    assert main(["paper", name, "--commands", *words]) == 0
    words = shlex.split(capsys.readouterr().out)  # a quoted prompt may have several lines
    starts = [place for place, word in enumerate(words) if word == "kvbench"]
    return [words[start:end] for start, end in zip(starts, [*starts[1:], None], strict=True)]


FAST = ("obcache/table1", "caote/table4", "lava/table14")
OTHERS = [name for name in names() if item_of(name).all_runs and name not in (*FAST, "kvzip/head_scores")]


@pytest.mark.parametrize("name", [*FAST, *(pytest.param(name, marks=pytest.mark.slow) for name in OTHERS)])
def test_the_commands_of_an_item_make_its_cells(name, capsys):
    """No more and no fewer."""
    cells = set()
    for line in commands(name, capsys):
        probe = item_of(name).own_settings
        assert line[:2] == ["kvbench", "probe" if probe else "run"]
        unused: set[str] = set()
        settings = parse([word for word in line[3 if probe else 2 :] if not word.startswith("probe.")])
        cells |= {repr(cell) for cell in cells_of(settings, unused)[1]}
        assert unused == set()
    assert cells == {repr(entry.cell) for entry in cells_of_item(item_of(name), []).entries}


def test_settings_and_launcher_are_in_the_commands(capsys):
    (line,) = commands("obcache/table1", capsys, *WORDS, "launcher=slurm", "launcher.time=30")
    assert line[-2:] == ["launcher=slurm", "launcher.time=30"]
    assert {"model=reference", "task=ruler/niah_single_2", "budget=80"} <= {*line}


@pytest.mark.slow
def test_local_processes_make_the_rows_and_the_page_is_rendered(tmp_path, capsys):
    words = [*WORDS, f"results.dir={tmp_path}", "launcher=local", "launcher.processes=2"]
    assert main(["paper", "obcache/table1", *words]) == 0
    out = capsys.readouterr().out
    assert "n = 2 a number" in out and "H2O" in out
    assert len(read_rows(tmp_path)) == 4


def test_a_part_of_an_item_makes_its_share_of_the_rows(tmp_path):
    request = PaperRequest(words=(*WORDS, f"results.dir={tmp_path}"))
    assert PartOfItem("obcache/table1", request, Shard(1, 2))() == 0
    assert sorted((row.policy, row.sample) for row in read_rows(tmp_path)) == [("h2o_obcache", 1), ("snapkv@common", 1)]


def test_a_submitted_item_is_not_submitted_again_and_not_rendered(tmp_path, monkeypatch):
    """SLURM is replaced by what it answers: a job number, then that the job waits."""
    request = PaperRequest(words=(*WORDS, f"results.dir={tmp_path}", "launcher=slurm"))
    item = ItemSweep(item_of("obcache/table1"), request, Runner(SCREEN, PartOfItem))
    sweep = item.sweep(Shard(0, 1))
    submitted: list[PendingSweep] = []

    def launch(self, work):
        submitted.append(work)
        record = {"number": "7", "tasks": 2, "submitted_utc": "now", "command": list(work.command)}
        (work.results.path / "jobs").mkdir(parents=True)
        (work.results.path / "jobs" / "7.json").write_text(json.dumps(record))
        return 0

    monkeypatch.setattr("kvbench.run.launch.slurm.Slurm.launch", launch)
    monkeypatch.setattr("kvbench.run.launch.slurm.queue", lambda jobs: {"7_0": "PENDING"} if submitted else {})
    with pytest.raises(RowsElsewhere, match="run the same command again when kvbench status shows") as elsewhere:
        item.make_rows(sweep)
    assert elsewhere.value.code == 0
    (work,) = submitted
    assert work.command[:3] == ("kvbench", "paper", "obcache/table1") and "launcher=slurm" not in work.command
    assert len(work.tasks(2)) == 2
    with pytest.raises(RowsElsewhere, match="job 7 runs its rows"):
        item.make_rows(sweep)
    assert len(submitted) == 1


def test_a_probe_takes_no_launcher(tmp_path, capsys):
    assert main(["paper", "lava/table14", "--smoke", "launcher=local", f"data.root={tmp_path}"]) == 2
    assert "launcher=local: lava/table14 is measured by a probe" in capsys.readouterr().err
