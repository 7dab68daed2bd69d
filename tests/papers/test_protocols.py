"""The items' settings against what the papers say; expected values are copied from their texts."""

import csv

import pytest

from kvbench.config.overrides import parse
from kvbench.papers.item import item_of, names
from kvbench.papers.settings import cells_of_item
from kvbench.support import paths


def values(run, key):
    """The values of a setting of a run; none if the run does not set it."""
    return [value.text for word in parse(run) if word.key == key for value in word.values]


def runs_of(name, **words):
    """The runs of an item whose settings have these values."""
    return [run for run in item_of(name).all_runs if all(word in values(run, key) for key, word in words.items())]


@pytest.mark.parametrize(
    "item", ["table2", "table3", "table4", "table5", *(f"table{n}" for n in range(10, 14)), "figure2"]
)
def test_h2o_of_caote_sums_over_all_queries_of_a_block(item):
    """CAOTE, Section 2: f_score,j = sum over i = 1..m of A_i,j; Section 4: m = 128. Section 3.2 protects no token."""
    h2o = runs_of(f"caote/{item}", policy="h2o")
    assert h2o
    for run in h2o:
        assert values(run, "policy") == ["h2o"] and values(run, "policy.window") == ["all"]
        assert values(run, "schedule.prefill_block") == ["128"] and values(run, "policy.recent") == ["0"]


BUDGETS = {  # the lines of the tables, of each model
    "caote/table4": {"8B": {"2048", "4096", "6144"}, "3B": {"2048", "4096", "6144", "8192"}},
    "caote/table5": {"8B": {"2048", "4096", "6144"}, "3B": {"2048", "4096", "6144", "8192"}},
}


@pytest.mark.parametrize("name", BUDGETS)
def test_budgets_are_those_that_the_table_prints_for_each_model(name):
    cells = [entry.cell for entry in cells_of_item(item_of(name), []).entries]
    for size, budgets in BUDGETS[name].items():
        evicting = [cell for cell in cells if size in cell.model.label and cell.policy.name != "full"]
        assert {str(cell.budget) for cell in evicting} == budgets


def test_sources_name_sections_that_say_it():
    """LAVa: max pool 7 is in Section 5.1 and Appendix D, no window size anywhere, 1024 and 10000 in Appendix D."""
    for name in names():
        sources = item_of(name).sources
        if name.startswith("lava/"):
            assert not any("Section 4.3" in source or "Appendix E" in source for source in sources.values()), name
            pools = [source for key, source in sources.items() if "policy.pool" in key]
            assert all("Section 5.1, Appendix D" in source for source in pools)
            windows = [source for key, source in sources.items() if "policy.window" in key]
            assert all(source.startswith("the public") for source in windows)


def test_kvzip_prints_no_length_of_ruler_and_a_chunk_of_2k():
    """KVzip's appendix: "chunk size m (fixed to 2K)"; of RULER it gives the model and the rate of 25 % only."""
    with (paths.papers() / "kvzip.csv").open(newline="") as file:
        lines = list(csv.DictReader(file))
    (ruler,) = [line for line in lines if line["table"] == "ruler figure"]
    assert (ruler["model"], ruler["context_length"], ruler["value"]) == ("Qwen3-8B", "", "25")
    (chunk,) = [line for line in lines if line["protocol"].startswith("chunk size")]
    assert chunk["value"] == "2K"
