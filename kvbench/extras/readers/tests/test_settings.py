"""Readers on the command line: what they name, what they leave as it was, and what they refuse."""

from pathlib import Path

import pytest

from kvbench.config.cells import CellBuilder
from kvbench.config.compose import combinations
from kvbench.config.overrides import parse
from kvbench.run.cell import Cell
from kvbench.support.errors import UserError

FILE = """
from dataclasses import dataclass

import torch

from kvbench.extras.readers.reader import SparseReader


@dataclass(frozen=True)
class Newest(SparseReader):
    pairs: int = 64
    name: str = "newest"

    def read(self, queries, keys, prefix):
        read = torch.zeros(*queries.shape[:2], keys.shape[1], dtype=torch.bool)
        read[..., -self.pairs :] = True
        return read
"""
SCORE = """
from dataclasses import dataclass

from kvbench.eviction.scores.score import Score


@dataclass(frozen=True)
class Age(Score):
    name: str = "age"

    def __call__(self, layer, window, reduce):
        return {sign}layer.positions.view(layer.cache_heads, -1).float()
"""


def cells_of(*words: str) -> list[Cell]:
    return [CellBuilder().cell(tree) for tree in combinations(parse(words))]


def test_a_dense_cell_has_the_name_and_the_description_that_it_had_without_readers() -> None:
    (plain,), (dense,) = cells_of("policy=snapkv"), cells_of("policy=snapkv", "reader=dense")
    assert plain == dense and plain.eviction.holder is None and "reader" not in plain.description
    assert (plain.id, plain.eviction.policy_label) == (dense.id, "snapkv")


def test_a_reader_is_a_part_of_the_cell_and_of_its_label() -> None:
    plain, quest, small, page, kv_heads = (
        cells_of("policy=snapkv", "reader=dense")
        + cells_of("policy=snapkv", "reader=quest", "reader.budget=0.1,32")
        + cells_of("policy=snapkv", "reader=quest", "reader.page=8", "reader.recent=1")
        + cells_of("policy=snapkv", "reader=double_sparsity", "reader.variant=query_keys")
    )
    assert len({cell.id for cell in (plain, quest, small, page, kv_heads)}) == 5
    assert quest.description["reader"]["name"] == "quest" and quest.prefill_key == plain.prefill_key
    assert [cell.eviction.policy_label for cell in (quest, small, page, kv_heads)] == [
        "snapkv reader=quest reader.budget=0.1",
        "snapkv reader=quest reader.budget=32",
        "snapkv reader=quest reader.budget=0.1 reader.recent=1 reader.page=8",
        "snapkv reader=double_sparsity reader.budget=0.1 reader.variant=query_keys",
    ]
    assert plain.code.parts is not None and quest.code.parts is not None
    assert set(quest.code.parts) - set(plain.code.parts) == {"reader quest"}
    assert {name: quest.code.parts[name] for name in plain.code.parts} == plain.code.parts


def test_cells_that_evict_while_they_read_share_their_prefill_whatever_reads_it() -> None:
    cells = cells_of("policy=h2o_obcache", "schedule.prefill_block=64", "reader=dense,quest,oracle_topk")
    assert len({cell.id for cell in cells}) == 3 and len({cell.prefill_key for cell in cells}) == 1


def test_a_score_and_a_reader_in_files_of_one_name_both_count(tmp_path: Path) -> None:
    """Nor do two such scores share a cache that is evicted from while it is read."""
    (tmp_path / "newest.py").write_text(FILE)
    cells = []
    for sign in ("", "-"):
        file = tmp_path / f"score{sign}" / "newest.py"
        file.parent.mkdir()
        file.write_text(SCORE.format(sign=sign))
        blocks = ("policy=h2o_obcache", "schedule.prefill_block=64")
        cells += cells_of(*blocks, f"score={file}", f"reader={tmp_path}/newest.py")
    assert cells[0].id != cells[1].id and cells[0].prefill_key != cells[1].prefill_key


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (("store=int4",), "store=int4 quantizes the pairs that are kept: use store=flat, or reader=dense"),
        (("policy=snapkv", "policy.apply=think"), "policy.apply=think removes channels of keys"),
        (("policy=h2o_obcache", "schedule.decode_every=8"), "schedule.decode_every=8 evicts from the answer too"),
        (("task=efficiency",), "task efficiency measures seconds"),
    ],
)
def test_what_cannot_be_read_in_part_is_refused(words: tuple[str, ...], reason: str) -> None:
    with pytest.raises(UserError, match="reader=quest reads a part of a cache") as refused:
        cells_of("policy=snapkv", "reader=quest", *words)[0].check()
    assert reason in str(refused.value)
    (dense,) = cells_of("policy=snapkv", *words)
    dense.check()


def test_a_reader_in_a_file_of_its_own(tmp_path: Path) -> None:
    file = tmp_path / "newest.py"
    file.write_text(FILE)
    (cell,) = cells_of("policy=full", f"reader={file}", "reader.pairs=16")
    assert cell.eviction.policy_label == "full reader=newest reader.pairs=16"
    assert list(cell.description["plugins"]) == ["newest.py"] and cell.code.parts is not None
    named = [name for name in cell.code.parts if name.startswith("reader ")]
    assert named == ["reader newest"]
    edited = tmp_path / "other" / "newest.py"
    edited.parent.mkdir()
    edited.write_text(FILE.replace("-self.pairs :", "-2 * self.pairs :"))
    (other,) = cells_of("policy=full", f"reader={edited}", "reader.pairs=16")
    assert other.id != cell.id and other.eviction.policy_label == cell.eviction.policy_label
