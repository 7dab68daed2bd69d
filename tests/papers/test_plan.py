"""`kvbench paper ITEM --plan`: of every item, without its model and its data."""

import pytest

from kvbench.cli.main import main
from kvbench.extras.probes.item import ProbeItem
from kvbench.papers.item import item_of, names


def planned(name, folder, capsys, *words):
    """The plan of an item whose data is missing."""
    assert main(["paper", name, "--plan", f"data.root={folder}", f"results.dir={folder}/runs", *words]) == 0
    return capsys.readouterr().out


@pytest.mark.parametrize("name", ["kvzip/head_scores", "caote/table7", "lava/table14"])
def test_a_probe_is_planned_without_model_and_data(name, tmp_path, capsys):
    plan = planned(name, tmp_path, capsys)
    item = item_of(name)
    assert isinstance(item, ProbeItem) and f"probe {item.probe}" in plan
    assert plan.count("kvbench data pull") == 1
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_what_is_read_in_blocks_is_named_by_method_and_budget(tmp_path, capsys):
    """CAOTE, Table 13: two models, three methods with three scores each, 6144 tokens, blocks of 128."""
    lines = [line for line in planned("caote/table13", tmp_path, capsys).splitlines() if "prefill_block=128" in line]
    assert len(lines) == 2 * 3 * 3
    words = ("Qwen2.5-7B", "policy h2o_obcache", "score fastcaote")
    (line,) = [line for line in lines if all(word in line for word in words)]
    assert "window=all" in line and "budget 6144" in line and "500 cells" in line  # 50 lengths, 10 depths


def test_missing_data_of_a_benchmark_is_named_once(tmp_path, capsys):
    plan = planned("lava/table5", tmp_path, capsys)
    assert plan.count("kvbench data pull longbench") == 1
    assert "longbench/narrativeqa, longbench/qasper" in plan


@pytest.mark.slow
@pytest.mark.parametrize("name", names())
def test_every_item_is_planned_without_model_and_data(name, tmp_path, capsys):
    if item_of(name).all_runs:
        assert "at most" in planned(name, tmp_path, capsys)
