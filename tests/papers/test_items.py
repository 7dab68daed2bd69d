"""Every file of conf/paper: its runs compose, its numbers are those of the CSV, its settings have sources."""

import pytest

from kvbench import paths
from kvbench.cli.cells import Cells
from kvbench.cli.compose import combinations
from kvbench.cli.overrides import Asked, parse
from kvbench.cli.papering import item_of, names
from kvbench.report.papers.page import page
from kvbench.report.papers.published import published

ITEMS = names()


def first(one: Asked) -> Asked:
    """A setting with the first of its values, so that a run composes once."""
    return Asked(one.text, one.key, one.values[:1])


@pytest.mark.parametrize("name", ITEMS)
def test_a_run_composes_and_its_cell_is_legal(name):
    for run in item_of(name).runs:
        unused: set[str] = set()
        configs = combinations([first(one) for one in parse(run.settings)], unused=unused)
        assert unused == set()
        Cells().cell(configs[0]).check()


@pytest.mark.parametrize("name", [name for name in ITEMS if item_of(name).published])
def test_the_published_block_has_every_number_of_the_csv(name):
    item = item_of(name)
    printed = published(item, paths.papers())
    shown = page(item, [], printed, [], smoke=False).published
    values = sorted(figure.mean for line in shown.lines for figure in line.figures if figure.mean)
    assert values == sorted(one.value for one in printed if one.value)
    assert printed


@pytest.mark.parametrize("name", [name for name in ITEMS if item_of(name).runs])
def test_settings_name_their_sources(name):
    item = item_of(name)
    assert item.sources and all(item.sources.values())
