"""Tables as the papers print them: marks of the best and the second, budgets as lines, orders, tables of words."""

import re
from dataclasses import replace

import pytest

from kvbench.cli.main import main
from kvbench.papers.item import item_of
from kvbench.papers.numbers import Measured
from kvbench.papers.page import page
from kvbench.papers.published import Published, published
from kvbench.report.formats.emit import emitted
from kvbench.report.formats.table import Table
from kvbench.support import paths


def printed(name: str, format: str = "text") -> str:
    item = item_of(name)
    return emitted(page(item, published(item, paths.papers())).report(), format)


def table(name: str) -> Table:
    (shown,) = page(item_of(name), published(item_of(name), paths.papers())).tables
    return shown


def marked(name: str, column: int) -> tuple[list[str], list[str]]:
    """The best and the second figures of a column."""
    figures = [line.figures[column] for line in table(name).lines]
    return [figure.mean for figure in figures if figure.best], [figure.mean for figure in figures if figure.second]


def test_best_and_second_stand_apart_for_each_budget_and_the_full_cache_does_not_compete() -> None:
    """LAVa, Table 2, Qasper: its text underlines the second where it could be read."""
    assert marked("lava/table2", 1) == (["21.11", "24.67", "28.08", "31.21"], ["20.80", "23.84", "27.84", "30.34"])


def test_marks_are_in_every_format() -> None:
    assert re.search(r"LAVa \(Ours\) +75\.39\* +62\.61\*", printed("lava/table11"))
    assert "| LAVa (Ours) | **75.39** |" in printed("lava/table11", "markdown")
    assert "| PyramidKV | <ins>72.55</ins> |" in printed("lava/table11", "markdown")
    latex, html = printed("lava/table11", "latex"), printed("lava/table11", "html")
    assert r"\bfseries 75.39" in latex and r"\underline{72.55}" in latex
    assert "<b>75.39</b>" in html and "<u>72.55</u>" in html


def test_ours_are_marked_like_the_published_and_not_if_one_is_missing() -> None:
    item = item_of("lava/table11")
    numbers = published(item, paths.papers())
    ours = {number.at: Measured(float(number.value) / 100, n=10, rate=True) for number in numbers}
    mine, theirs, _ = page(item, numbers, computed=ours).tables

    def marks(shown: Table) -> list[tuple[bool, bool]]:
        return [(figure.best, figure.second) for line in shown.lines for figure in line.figures]

    assert marks(mine) == marks(theirs) and mine.caption[0].startswith("mean, percent")
    first = next(iter(ours))
    lacking = page(item, numbers, computed=ours | {first: replace(ours[first], failed=1)}).tables[0]
    assert sum(best for best, _ in marks(lacking)) == sum(best for best, _ in marks(mine)) - 1


def test_an_interval_is_named_only_where_there_is_one() -> None:
    item = item_of("lava/table11")
    numbers: list[Published] = published(item, paths.papers())
    some = {numbers[0].at: Measured(0.7, n=10, rate=True, low=0.6, high=0.8)}
    assert page(item, numbers, computed=some).tables[0].caption[0].startswith("mean [95 % interval]")
    assert page(item, numbers, computed=some).tables[0].words.startswith("mean, percent")


@pytest.mark.parametrize("name", ["caote/table4", "caote/table5", "caote/table12", "caote/table13"])
def test_budgets_are_lines_and_scores_stand_below_their_policy(name: str) -> None:
    shown = table(name)
    assert shown.labels == ("model", "budget") and shown.groups == 1
    heads = [head[:2] for head in shown.heads if head[0] != "Dense baseline"]
    assert heads == [(host, score) for host in ("H2O", "TOVA", "SnapKV") for score in ("", "+ CAOTE", "+ FastCAOTE")]


def test_lower_perplexities_are_better() -> None:
    first, *lines = table("caote/table4").lines
    assert first.labels == ("Llama 3.1-8B-Instruct", "")
    assert [each.mean for each in first.figures if each.mean] == ["9.833"]
    best = [figure.mean for line in lines for figure in line.figures if figure.best]
    assert best[:2] == ["-0.098", "-0.080"]


@pytest.mark.parametrize("number", [6, 7, 8])
def test_vcsum_stands_before_multinews(number: int) -> None:
    (task,) = [word for word in item_of(f"lava/table{number}").settings if word.startswith("task=")]
    names = [name.removeprefix("longbench/") for name in task.removeprefix("task=").split(",")]
    assert names.index("vcsum") + 1 == names.index("multi_news")


def test_tables_of_words_have_the_printed_columns_and_names() -> None:
    assert [line.labels for line in table("caote/table1").lines][-1] == ("X+CAOTE",)
    for name, methods in (("lava/table1", 4), ("lava/table4", 9)):
        shown = table(name)
        assert [head[0] for head in shown.heads][2:] == ["Scoring Function", "Loss"] and len(shown.lines) == methods
        assert "max_k" in str(shown.lines[-1].figures[2]) and ("AdaKV",) in [line.labels for line in shown.lines]
        assert all(figure.mean for line in shown.lines for figure in line.figures)
    saliency, complexity = (head[0] for head in table("obcache/table2").heads)
    assert (saliency, complexity) == ("Saliency score S_p", "Complexity")


def test_a_plan_for_slurm_shows_the_array_and_the_script(tmp_path, capsys) -> None:
    pytest.importorskip("submitit")
    words = ["model=reference", "task=ruler/niah_single_1", "task.samples=1", "task.context_length=512"]
    where = [f"results.dir={tmp_path}/runs", "launcher=slurm"]
    assert main(["paper", "obcache/table1", "--plan", *words, *where]) == 0
    plan = capsys.readouterr().out
    assert "nothing is submitted" in plan and "batch script:" in plan and "#SBATCH" in plan
    assert not (tmp_path / "runs").exists()
