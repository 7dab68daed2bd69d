"""Settings: what a policy without a score ignores, what labels show, and how lists meet files that differ."""

from collections.abc import Callable
from pathlib import Path

import pytest

from kvbench.config.entries import options
from kvbench.config.overrides import parse
from kvbench.run.cell import Cell
from kvbench.work.planned import checked
from tests.cli.conftest import Command, rows_of

Cells = Callable[..., list[Cell]]


@pytest.fixture
def cells(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Cells:
    """The cells of a command line, in an empty folder."""
    monkeypatch.chdir(tmp_path)
    return lambda *words: checked(parse(words), print)[1]


@pytest.mark.parametrize("policy", ["full", "streaming_llm"])
def test_a_policy_without_a_score_keeps_its_own(cells: Cells, policy: str) -> None:
    (own,) = cells(f"policy={policy}")
    crossed = cells(f"policy={policy}", "score=obcache_joint,random,attn")
    assert {cell.score for cell in crossed} == {own.score} and own.score.name == "recency"
    assert {cell.id for cell in crossed} == {own.id}
    assert {cell.score_label for cell in crossed} == {None}


def test_streaming_llm_keeps_the_same_pairs_whatever_it_is_crossed_with(
    kvbench: Command, tiny: tuple[str, ...]
) -> None:
    kvbench("run", *tiny, "policy=streaming_llm", "budget=0.2", "results.dir=own")
    kvbench("run", *tiny, "policy=streaming_llm", "score=obcache_joint", "budget=0.2", "results.dir=crossed")
    own, crossed = rows_of(Path("own")), rows_of(Path("crossed"))
    assert [row.kept_sha256 for row in own] == [row.kept_sha256 for row in crossed]
    assert [row.cell for row in own] == [row.cell for row in crossed] and len(own) == 3
    kvbench("run", *tiny, "policy=plain", "score=attn", "policy.sink=4", "budget=0.2", "results.dir=other")
    assert {row.kept_sha256 for row in own}.isdisjoint(row.kept_sha256 for row in rows_of(Path("other")))


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
    assert (cell.policy_label, cell.score_label) == (policy, score)


def test_a_setting_applies_to_the_files_that_have_it(cells: Cells) -> None:
    attn, random = cells("score=attn,random", "score.seed=7")
    assert (attn.score_label, random.score_label) == ("attn", "random seed=7")
    full, snapkv = cells("policy=full,snapkv", "policy.window=32")
    assert full.policy.name == "full" and snapkv.policy.window == 32
    h2o_obcache, pooled = cells("policy=h2o_obcache,snapkv", "policy.pool.size=5")
    assert h2o_obcache.policy.pool is None and pooled.policy_label == "snapkv pool.size=5"


@pytest.mark.parametrize(
    "word", ["policy='h2o_obcache'", 'policy="h2o_obcache"', "policy= h2o_obcache", "policy=h2o_obcache "]
)
def test_names_may_be_quoted(cells: Cells, word: str) -> None:
    assert [cell.policy.name for cell in cells(word)] == ["h2o_obcache"]
    assert [cell.policy.name for cell in cells(f"{word},tova_obcache")] == ["h2o_obcache", "tova_obcache"]


@pytest.mark.parametrize("text", ["1234567", "12345e6", "1_0", "0x1", "true", "main"])
def test_a_text_stays_as_it_was_written(cells: Cells, text: str) -> None:
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


def test_a_misspelt_folder_is_told(cells: Cells) -> None:
    with pytest.raises(ValueError, match=r"unknown task rulr: did you mean ruler\?"):
        cells("task=rulr")


@pytest.mark.parametrize("folder", ["my runs", "2026_01", "12", "a/b c"])
def test_a_results_folder_is_a_text(kvbench: Command, tiny: tuple[str, ...], folder: str) -> None:
    finished = kvbench("run", *tiny, "task.samples=1", "policy=full", f"results.dir={folder}")
    assert finished.code == 0, finished.err
    assert len(rows_of(Path(folder))) == 1
