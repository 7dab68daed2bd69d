"""Whole heads by a table: which stay, which roll on, and what is no table."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from kvbench.cache.attention import AttentionParams, attend_layer
from kvbench.eviction.allocation.heads import BinaryHeads
from kvbench.eviction.allocation.layers import GlobalLayers
from kvbench.eviction.budget import TokenBudget
from kvbench.eviction.evict import Eviction
from kvbench.eviction.incremental import IncrementalEviction, capacity_after, check_steps
from kvbench.eviction.policy import Policy
from kvbench.eviction.scores.head_table import HeadFile, HeadTable, read_head_file
from kvbench.support.errors import UserError
from tests.arrays import random_cache

PUBLISHED = Path(__file__).parents[2] / "golden" / "heads" / "full_attention_heads.tsv"
DUO = Policy("duo", window=1, sink=2, recent=5, heads=BinaryHeads(), layers=GlobalLayers())


@pytest.fixture
def table(tmp_path: Path) -> str:
    """Three layers of two heads; above 1 is 1, and the lower layer comes first among equals."""
    np.savetxt(tmp_path / "heads.tsv", [[0.1, 3.0], [0.7, 0.2], [-1.0, 1.0]], delimiter="\t", fmt="%g")
    return str(tmp_path / "heads.tsv")


@pytest.mark.parametrize(("pairs", "whole"), [(7, 0), (17, 1), (24, 2), (32, 3), (49, 5), (50, 6)])
def test_as_many_heads_stay_whole_as_are_paid_for(table: str, pairs: int, whole: int) -> None:
    decision = Eviction(DUO, HeadTable(path=table), TokenBudget(pairs)).decide(random_cache(50))
    best = [(0, 1), (2, 1), (1, 0), (1, 1), (0, 0), (2, 0)][:whole]
    for layer in range(3):
        for head in range(2):
            kept = decision.kept[layer][head].nonzero()[:, 0].tolist()
            assert kept == (list(range(50)) if (layer, head) in best else [0, 1, *range(45, 50)])


def test_heads_that_do_not_retrieve_roll_on_while_the_others_grow(table: str) -> None:
    cache = random_cache(50)
    eviction = Eviction(DUO, HeadTable(path=table), TokenBudget(32))
    decision = eviction.decide(cache)
    evictor = IncrementalEviction(eviction, capacity_after(eviction, cache, decision))
    layers = evictor.remember(cache, decision, eviction.evict(cache, decision)).evictable
    for position in range(50, 58):
        grown = [layer.append(torch.randn(2, 1, 10), torch.randn(2, 1, 10), position) for layer in layers]
        rows = [attend_layer(torch.randn(6, 1, 10), layer, AttentionParams(0.3)) for layer in grown]
        layers = tuple(evictor.step(layer, voting).layer for layer, voting in zip(grown, rows, strict=True))
    assert [layer.lengths for layer in layers] == [(7, 58), (58, 7), (7, 58)]
    assert layers[0].positions[:7].tolist() == [0, 1, *range(53, 58)]


def test_query_heads_are_not_scored_block_by_block(table: str) -> None:
    score = HeadTable(path=table)
    check_steps(DUO, score, blocks=True)
    with pytest.raises(UserError, match="layout=query_heads later blocks"):
        check_steps(replace(DUO, layout="query_heads"), score, blocks=True)


def test_what_a_table_says_is_part_of_the_score(table: str, tmp_path: Path) -> None:
    other = tmp_path / "other.tsv"
    other.write_text(Path(table).read_text().replace("7", "8"))
    assert HeadTable(path=table).table_sha256 != HeadTable(path=str(other)).table_sha256
    assert HeadTable(path=table).inputs.repeat is None


def test_the_published_format_is_read() -> None:
    """As numpy writes it, a line a layer; what training left outside 0..1 is taken in."""
    assert read_head_file(str(PUBLISHED)).scores == ((0.87, 0.12), (1.0, 0.5), (0.0, 0.31))


@pytest.mark.parametrize("name", ["heads.json", "heads.tsv"])
def test_a_written_table_is_read_as_it_was(tmp_path: Path, name: str) -> None:
    """To the last digit; the text form knows nothing but numbers."""
    table = HeadFile(((1 / 3, 0.1), (0.7, 1.0)), "mine", "abc", {"contexts": 2})
    table.write(tmp_path / name)
    assert read_head_file(str(tmp_path / name)) == (table if name.endswith("json") else HeadFile(table.scores))


def test_a_table_that_names_its_model_is_for_that_one_alone(tmp_path: Path) -> None:
    HeadFile(((0.3, 0.1), (0.7, 1.0)), "mine", "abc").write(tmp_path / "heads.json")
    score = HeadTable(path=str(tmp_path / "heads.json"))
    score.check_model(2, 2, "abc")
    with pytest.raises(ValueError, match=r"of model mine \(abc\), not of this one \(abd\); kvbench heads writes one$"):
        score.check_model(2, 2, "abd")
    with pytest.raises(ValueError, match="2 layers and 2 KV heads, the model 3 layers"):
        score.check_model(3, 2, "abc")


@pytest.mark.parametrize(
    "text",
    [
        "",
        "a\tb\n",
        "nan\t1\n",
        "{",
        "{}",
        '{"format": "kvbench head table 1", "shape": [1, 1], "scores": [[0.5, 0.5]]}',
        '{"format": "kvbench head table 9", "shape": [1, 2], "scores": [[0.5, 0.5]]}',
        '{"format": "kvbench head table 1", "shape": [2, 1], "scores": [[0.5], []]}',
        '{"format": "kvbench head table 1", "shape": [1, 1], "scores": [[0.5]], "other": 1}',
    ],
)
def test_what_is_no_table_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "bad.tsv").write_text(text)
    with pytest.raises(ValueError, match=r"score.path=.*bad.tsv"):
        HeadTable(path=str(tmp_path / "bad.tsv"))


def test_a_ragged_table_is_refused_without_advice_for_programmers(tmp_path: Path) -> None:
    (tmp_path / "bad.tsv").write_text("0.1\t0.2\n0.3\n")
    with pytest.raises(
        ValueError, match=r"changed from 2 to 1 at row 2: a table has one line per layer, tabs between its heads$"
    ):
        HeadTable(path=str(tmp_path / "bad.tsv"))


def test_a_table_must_be_there_and_of_the_model(table: str, tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="no such file; a table has one line per layer"):
        HeadTable(path=str(tmp_path / "none.tsv"))
    with pytest.raises(ValueError, match="3 layers and 2 KV heads, but layer 3"):
        Eviction(DUO, HeadTable(path=table), TokenBudget(30)).decide(random_cache(50, layers=4))
    with pytest.raises(ValueError, match="has 3 KV heads"):
        Eviction(DUO, HeadTable(path=table), TokenBudget(30)).decide(random_cache(50, kv_heads=3))
