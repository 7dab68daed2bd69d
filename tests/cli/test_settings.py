"""Settings: what a policy without a score ignores, what labels show, and how lists meet files that differ."""

from collections.abc import Callable
from pathlib import Path

import pytest

from kvbench.config.entries import options
from kvbench.config.overrides import parse
from kvbench.run.cell import Cell
from kvbench.work.planned import checked, plan_sweep
from tests.cli.conftest import Command

Cells = Callable[..., list[Cell]]


@pytest.fixture
def cells(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Cells:
    """The cells of a command line, in an empty folder."""
    monkeypatch.chdir(tmp_path)
    return lambda *words: checked(parse(words), print)[1]


@pytest.mark.parametrize("policy", ["full", "streaming_llm"])
def test_a_policy_without_a_score_keeps_its_own(cells: Cells, policy: str) -> None:
    """The full cache has one cell, whatever it is crossed with."""
    (own,) = cells(f"policy={policy}")
    notices = list[str]()
    words = [f"policy={policy}", "reference=none", "score=obcache_joint,random"]
    words += ["budget=0.1,0.2", "schedule.decode_every=null,1"]
    crossed = plan_sweep(words, notices.append).plan.cells
    assert {cell.score for cell in crossed} == {own.score} and own.score.name == "recency"
    assert {cell.eviction.score_label for cell in crossed} == {None}
    assert len({cell.id for cell in crossed}) == (1 if policy == "full" else 4)
    assert f"{policy} takes no score{' and no budget' if policy == 'full' else ''}" in " ".join(notices)


@pytest.mark.parametrize(
    ("words", "policy", "score"),
    [
        ([], "snapkv", "attn"),
        (["policy.window=32"], "snapkv", "attn"),
        (["policy.window=8", "policy.pool.size=5"], "snapkv window=8 pool.size=5", "attn"),
        (["policy.pool=null"], "snapkv pool=null", "attn"),
        (["policy=h2o_obcache", "policy.pool={kind:max,size:7}"], "h2o_obcache pool.kind=max pool.size=7", "attn"),
        (["policy.order=[pool,group]"], "snapkv order=pool,group", "attn"),
        (["policy.group=max"], "snapkv group=max", "attn"),
        (["policy.heads={kind:uniform}", "policy.layers=uniform"], "snapkv", "attn"),
        (["policy.layout=query_heads", "policy.variant=official"], "snapkv", "attn"),
        (["score=random"], "snapkv", "random"),
        (["score=random", "seed=7"], "snapkv", "random"),
        (["score=random", "seed=7", "score.seed=7"], "snapkv", "random"),
        (["score=random", "score.seed=7"], "snapkv", "random seed=7"),
    ],
    ids=" ".join,
)
def test_a_label_shows_what_differs_from_the_file(cells: Cells, words: list[str], policy: str, score: str) -> None:
    (cell,) = cells(*words)
    assert (cell.eviction.policy_label, cell.eviction.score_label) == (policy, score)


def test_a_setting_applies_to_the_files_that_have_it(cells: Cells) -> None:
    attn, random = cells("score=attn,random", "score.seed=7")
    assert (attn.eviction.score_label, random.eviction.score_label) == ("attn", "random seed=7")
    full, snapkv = cells("policy=full,snapkv", "policy.window=32")
    assert full.policy.name == "full" and snapkv.policy.window == 32
    h2o_obcache, pooled = cells("policy=h2o_obcache,snapkv", "policy.pool.size=5")
    assert h2o_obcache.policy.pool is None and pooled.eviction.policy_label == "snapkv pool.size=5"


def test_names_may_be_quoted(cells: Cells) -> None:
    for word in ("policy='h2o_obcache'", 'policy="h2o_obcache"', "policy= h2o_obcache", "policy=h2o_obcache "):
        assert [cell.policy.name for cell in cells(word)] == ["h2o_obcache"]
        assert [cell.policy.name for cell in cells(f"{word},tova_obcache")] == ["h2o_obcache", "tova_obcache"]


def test_a_text_stays_as_it_was_written(cells: Cells) -> None:
    for text in ("1234567", "12345e6", "1_0", "0x1", "true", "main"):
        (cell,) = cells("model=hf", "model.path=org/name", f"model.revision={text}", "task.context_length=512")
        assert cell.model.revision == text


def test_a_range_has_no_noise(cells: Cells) -> None:
    assert [str(cell.budget) for cell in cells("budget=range(0.1,0.5,0.1)")] == ["0.1", "0.2", "0.3", "0.4"]
    assert [str(cell.budget) for cell in cells("budget=range(0.1,0.4,0.1)")] == ["0.1", "0.2", "0.3"]
    assert [cell.policy.window for cell in cells("policy.window=range(8,17,4)")] == [8, 12, 16]


def test_of_a_repeated_setting_the_last_counts(cells: Cells) -> None:
    (cell,) = cells("policy=tova_obcache", "budget=0.1", "policy=h2o_obcache", "budget=0.3")
    assert (cell.policy.name, str(cell.budget)) == ("h2o_obcache", "0.3")


def test_a_folder_stands_for_the_files_in_it(cells: Cells, tmp_path: Path) -> None:
    (tmp_path / "paul_graham_essays").mkdir()
    (tmp_path / "paul_graham_essays" / "one.txt").write_text("One. Two.")
    (tmp_path / "ruler").mkdir()
    for name in ("squad.json", "hotpotqa.json"):
        (tmp_path / "ruler" / name).write_text("{}")
    words = (
        f"data.root={tmp_path}",
        "data.verify=false",
        "policy=h2o_obcache,tova_obcache",
        "task.context_length=1024",
    )
    every = cells("task=ruler", *words)
    names = [name for name in options("task") if name.startswith("ruler/")]
    assert [cell.task.name for cell in every] == [name for name in names for _ in range(2)] and len(every) >= 16
    named = cells(f"task=ruler/niah_multikey_2,{','.join(names[:2])}", *words)
    assert [cell.id for cell in cells("task=ruler/niah_multikey_2,ruler", *words)[:2]] == [
        cell.id for cell in named[:2]
    ]


def test_a_pattern_stands_for_what_it_matches(cells: Cells) -> None:
    names = [cell.task.name for cell in cells("task=ruler/*we,ruler/vt")]
    assert names == ["ruler/cwe", "ruler/fwe", "ruler/vt"]
    assert {cell.policy.name for cell in cells("policy=*ov*")} == {"tova", "tova_obcache"}
    with pytest.raises(ValueError, match=r"unknown task ruler/nah_\*"):
        cells("task=ruler/nah_*")


def test_a_results_folder_is_a_text(kvbench: Command) -> None:
    for folder in ("my runs", "2026_01", "12", "a/b c"):
        planned = kvbench("plan", "policy=full", "task.samples=1", f"results.dir={folder}")
        assert planned.code == 0 and f"0 of 1 rows are in {folder}" in planned.out, planned.out
