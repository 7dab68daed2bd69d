"""Running plans: rows do not depend on what else runs, in which order, or what ran before."""

import shutil
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from transformers import AutoTokenizer

from kvbench.eviction.allocation.layers import TableLayers
from kvbench.eviction.budget import TokenBudget, parse_budget
from kvbench.eviction.policy import Policy
from kvbench.eviction.pooling import Pool
from kvbench.eviction.schedule import Schedule
from kvbench.eviction.scores.attn import Attention
from kvbench.eviction.scores.obcache import OBCacheJoint
from kvbench.eviction.scores.recency import Recency
from kvbench.models.loading.spec import ModelSpec
from kvbench.records import ResultsFolder, read_kept, read_rows
from kvbench.run.cell import Cell
from kvbench.run.eviction_method import EvictionMethod
from kvbench.run.job_queue import JobQueue
from kvbench.run.plan import PrefillGroup, PrefillJob, plan
from kvbench.run.progress import RunStats
from kvbench.run.runner import run
from kvbench.support.errors import UserError
from tests.models.conftest import tiny_llama
from tests.questions import Questions
from tests.run.already import recorded_samples
from tests.run.survival.faking import Silent

TASK = Questions(contexts=2, samples=5, words=45, max_new_tokens=3)
SCHEDULES = (Schedule("prompt"), Schedule("context"))


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> ModelSpec:
    """A folder with a tiny model that reads RULER's words."""
    folder = tmp_path_factory.mktemp("model")
    tokenizer = AutoTokenizer.from_pretrained(Path(__file__).parents[1] / "golden" / "ruler" / "tokenizer")
    tiny_llama(vocab_size=len(tokenizer), bos_token_id=None, eos_token_id=None).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return ModelSpec("hf", str(folder), dtype="float32", threads=1)


@pytest.fixture(scope="module")
def cells(model: ModelSpec) -> tuple[Cell, ...]:
    """Twenty-two cells, more than a tile holds: everything kept, three policies, two layouts, both schedules."""
    method = EvictionMethod(Policy("full"), Recency(), parse_budget("1.0"), "full", None)
    full = Cell(model, TASK, method, SCHEDULES[0], 1)
    policies = (Policy("h2o_obcache", window=8, recent=4), Policy("snapkv", window=6, recent=6, pool=Pool("max", 5)))
    grid = [full, full.with_method(policy=Policy("streaming_llm", sink=4), budget=TokenBudget(15))]
    for policy in (*policies, replace(policies[0], layout="query_heads")):
        for score in (Attention(), OBCacheJoint()):
            grid += [
                full.with_method(policy=policy, score=score, budget=parse_budget(text), score_label=score.name)
                for text in (("0.2", "0.3", "25") if policy.layout == "kv_heads" else ("0.2",))
            ]
    grid = [cell.with_method(policy_label=cell.policy.name) for cell in grid]
    return tuple(replace(cell, schedule=schedule) for schedule in SCHEDULES for cell in grid)


def go(folder: Path, cells: Sequence[Cell], **settings: Any) -> RunStats:
    """Run what is missing of some cells."""
    results = ResultsFolder(folder)
    return run(plan(cells, recorded_samples(folder)), results, JobQueue(results), Silent(), **settings)


def outcomes(folder: Path) -> dict[tuple[str, int], dict[str, Any]]:
    rows = read_rows(folder)
    assert not [row.error for row in rows if row.error]
    return {(row.cell, row.sample): row.outcome() for row in rows}


@pytest.fixture(scope="module")
def together(
    cells: tuple[Cell, ...], tmp_path_factory: pytest.TempPathFactory
) -> dict[tuple[str, int], dict[str, Any]]:
    """The rows of one run of everything."""
    folder = tmp_path_factory.mktemp("together")
    outcome = go(folder, cells)
    assert (outcome.rows, outcome.prefills) == (len(cells) * 5, 5 + 2)
    assert len({row.context_sha256 for row in read_rows(folder)}) == 2
    return outcomes(folder)


def test_rows_are_the_same_whatever_else_runs(
    cells: tuple[Cell, ...], together: dict[tuple[str, int], dict[str, Any]], tmp_path: Path
) -> None:
    """All columns but seconds and environment: in another order, alone, after others, and with fewer samples before."""
    for number in (3, len(cells) - 1):
        go(tmp_path / f"alone{number}", [cells[number]])
        assert outcomes(tmp_path / f"alone{number}") == {
            key: together[key] for key in together if key[0] == cells[number].id
        }
    few = [replace(cell, task=replace(TASK, samples=2)) for cell in cells[::3]]
    go(tmp_path / "after", few)
    outcome = go(tmp_path / "after", cells[::-1])
    assert outcome.rows == len(cells) * 5 - len(few) * 2
    assert outcomes(tmp_path / "after") == together


def test_rows_that_others_make_of_a_prompt_are_told(cells: tuple[Cell, ...], tmp_path: Path) -> None:
    """The first time that a prompt is taken, another process has made its row of the second cell."""
    results, told, taken = ResultsFolder(tmp_path), list[tuple[int, bool]](), set[int]()

    class Shared(JobQueue):
        def take(self, group: PrefillGroup, job: PrefillJob) -> PrefillJob | None:
            others = () if job.key in taken else [(cells[1].id, sample) for sample in job.missing]
            taken.add(job.key)
            return super().take(group, job.without(others))

    class Told(Silent):
        def elsewhere(self, rows: int, whole_job: bool = True) -> None:
            told.append((rows, whole_job))

    run(plan(cells[:2], set()), results, Shared(results), Told())
    assert told == [(1, False)] * 5 + [(0, False)] * 5 and len(read_rows(tmp_path)) == 10


@pytest.mark.parametrize("kept", [pytest.param("lengths", marks=pytest.mark.slow), "positions"])
def test_kept_sets_are_those_of_the_rows(cells: tuple[Cell, ...], tmp_path: Path, kept: Any) -> None:
    """Hashes agree, lengths agree, and rows are those of a run that recorded none."""
    some = cells[1:-1:4]
    go(tmp_path / "with", some, kept=kept)
    go(tmp_path / "without", some)
    assert not (tmp_path / "without" / "kept").exists()
    assert outcomes(tmp_path / "with") == outcomes(tmp_path / "without")
    sets = read_kept(tmp_path / "with")
    for row in read_rows(tmp_path / "with"):
        own = sets[row.cell, row.sample]
        heads = 6 if row.layout == "query_heads" else 2
        assert own.layers == (0, 1, 2) and [len(lengths) for lengths in own.lengths] == [heads] * 3
        assert sum(map(sum, own.lengths)) == row.kept_tokens * heads * 3  # type: ignore[operator]
        if kept == "positions":
            assert own.sha256 == row.kept_sha256
            assert [len(own.positions(2, head)) for head in range(heads)] == list(own.lengths[2])
            assert max(own.positions(0, 0)) == own.num_tokens - 1
        else:
            assert own.masks is None


def test_a_template_that_cannot_be_split_stops_before_the_first_row(
    cells: tuple[Cell, ...], model: ModelSpec, tmp_path: Path
) -> None:
    shouting = tmp_path / "model"
    shutil.copytree(str(model.path), shouting)
    (shouting / "chat_template.jinja").write_text("{{ messages[0]['content'] | upper }}")
    prompt, context = (replace(cells[number], model=replace(model, path=str(shouting))) for number in (0, -1))
    go(tmp_path / "prompt", [prompt])
    assert len(read_rows(tmp_path / "prompt")) == 5
    with pytest.raises(ValueError, match="template rewrites the prompt"):
        go(tmp_path / "context", [prompt, context])
    assert not (tmp_path / "context").exists()


def test_a_budget_table_of_another_model_stops_before_the_first_row(cells: tuple[Cell, ...], tmp_path: Path) -> None:
    path = str(tmp_path / "table.npy")
    for shape in ((99, 3, 2), (99, 2, 2), (99, 3, 1)):
        np.save(path, np.full(shape, 0.5))
        policy = replace(cells[1].policy, layers=TableLayers(path=path))
        if shape == (99, 3, 2):
            go(tmp_path / "own", [cells[1].with_method(policy=policy)])
            assert len(read_rows(tmp_path / "own")) == 5
            continue
        expected = "the table has . layers and . KV heads, but this model evicts from 3 layers with 2 KV heads"
        with pytest.raises(UserError, match=expected):
            go(tmp_path / "other", [cells[1].with_method(policy=policy)])
        assert not (tmp_path / "other").exists()
