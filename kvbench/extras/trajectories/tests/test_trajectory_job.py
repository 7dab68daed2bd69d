"""Runs of agents, from cells to rows: likelihoods, evictions at the ends of turns, what is shared and continued."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from kvbench.eviction.budget import parse_budget
from kvbench.eviction.policy import Policy
from kvbench.eviction.schedule import Schedule
from kvbench.eviction.scores.attn import Attention
from kvbench.extras.trajectories.tests.runs import task_of
from kvbench.models import bridge
from kvbench.models.engine import Engine
from kvbench.models.loading.load import LoadedModel
from kvbench.models.loading.spec import ModelSpec
from kvbench.models.prompts.build import build
from kvbench.models.prompts.prompt import Prompt
from kvbench.records import Row
from kvbench.run.cell import Cell
from kvbench.run.eviction_method import EvictionMethod
from kvbench.run.plan import PrefillJob, plan
from kvbench.run.prefill_job import run_prefill_job
from kvbench.tasks.task import Sample
from tests.models.conftest import tiny_llama
from tests.models.masked_blocks import MaskedReader, Shared
from tests.models.tokenizers import of_bytes
from tests.questions import Questions

FULL = Policy("full", accepts=())
SNAPKV = Policy("snapkv", window=8, recent=4, sink=2)


def model_of(dtype: torch.dtype = torch.float64) -> LoadedModel:
    tokenizer = of_bytes()
    model = tiny_llama(dtype, vocab_size=len(tokenizer), max_position_embeddings=2048)
    bridge.attach(model)
    return LoadedModel(Engine(model, max_batch=3), tokenizer, frozenset(), 2048, {"name": "cpu"})


def cell_of(task: Any, budget: str | None = None, **schedule: Any) -> Cell:
    """SnapKV, or the full cache without a budget."""
    policy, when = FULL if budget is None else SNAPKV, Schedule(**{"evict_after": "context", **schedule})
    text = budget or "1.0"
    method = EvictionMethod(policy, Attention(), parse_budget(text), policy.name, None)
    return Cell(ModelSpec("reference"), task, method, when, 1)


def rows_of(model: LoadedModel, *cells: Cell) -> list[Row]:
    task, rows = cells[0].task, list[Row]()
    for sample in task.generate(len, range(2)):  # type: ignore[arg-type]
        assert isinstance(sample, Sample)
        rows += run_prefill_job(model, PrefillJob({sample.id: cells}), [sample], "here").rows
    assert [row.error for row in rows] == [None] * len(rows)
    return rows


def prompts_of(model: LoadedModel, task: Any, evict_after: Any = "context") -> list[Prompt]:
    samples: Any = task.generate(len, range(2))
    return [build(model.tokenizer, sample, task, 2048, evict_after=evict_after) for sample in samples]


def mean_nll(logits: torch.Tensor, answer: Sequence[int]) -> float:
    return float(torch.nn.functional.cross_entropy(logits.double(), torch.tensor(answer)))


def masked_nll(model: LoadedModel, prompt: Prompt, share: float | None, fixed: int) -> float:
    """Read turn after turn with a mask per head in the place of an eviction; then the last turn and the answer."""
    reader = MaskedReader(Shared(fixed, window=8, sink=2, recent=4))
    ids, start, last = torch.tensor(prompt.prefill + prompt.question + prompt.answer), 0, torch.empty(0)
    with torch.inference_mode():
        for block in prompt.blocks:
            last = bridge.forward(model.engine.model, ids[None, start : start + block], start, reader)
            start += block
            reader.policy.budget = fixed if share is None else int(share * start + 0.5)
            reader.evict(block)
        later = bridge.logits(model.engine.model, ids[None, start:-1], start, reader, last=len(ids) - start - 1)[0]
    return mean_nll(torch.cat((last.reshape(1, -1), later))[-len(prompt.answer) :], prompt.answer)


def test_the_likelihood_of_the_full_cache_is_that_of_one_forward_pass_of_transformers(tmp_path: Path) -> None:
    task, model = task_of(tmp_path, measure="likelihood"), model_of()
    rows, plain = rows_of(model, cell_of(task)), tiny_llama(torch.float64, vocab_size=261, max_position_embeddings=2048)
    for row, prompt in zip(rows, prompts_of(model, task), strict=True):
        ids = torch.tensor(prompt.prefill + prompt.question + prompt.answer)
        with torch.inference_mode():
            logits = plain(ids[None]).logits[0, -len(prompt.answer) - 1 : -1]
        assert row.value == pytest.approx(mean_nll(logits, prompt.answer), abs=1e-6)
        assert (row.metric, row.unit, row.better, row.prediction) == ("call_nll", "nats per token", "lower", None)
        assert row.new_tokens == len(prompt.answer) and row.prompt_tokens == prompt.tokens
    assert [row.question_number for row in rows] == [2, 3]


@pytest.mark.parametrize("budget", ["0.3", "90"])
def test_evictions_at_the_ends_of_turns_are_those_of_a_mask_that_grows(budget: str, tmp_path: Path) -> None:
    """A share is of the tokens read so far, so that a later call finds what an earlier one left."""
    task, model = task_of(tmp_path, measure="likelihood"), model_of()
    rows = rows_of(model, cell_of(task, budget, prefill_block="turn"))
    share = float(budget) if "." in budget else None
    for row, prompt in zip(rows, prompts_of(model, task), strict=True):
        fixed = 90 if share is None else 10**6
        assert row.value == pytest.approx(masked_nll(model, prompt, share, fixed), abs=1e-9)
        read = len(prompt.prefill)
        assert row.kept_tokens == min(read, 90 if share is None else int(share * read + 0.5))
        assert row.schedule == "context prefill_block=turn"


def test_the_last_turn_is_evicted_from_too_with_the_prompt(tmp_path: Path) -> None:
    task, model = task_of(tmp_path, measure="likelihood"), model_of()
    for row, prompt in zip(
        rows_of(model, cell_of(task, "90", evict_after="prompt", prefill_block="turn")),
        prompts_of(model, task, "prompt"),
        strict=True,
    ):
        assert prompt.question == () and row.value == pytest.approx(masked_nll(model, prompt, None, 90), abs=1e-9)


def test_one_turn_has_one_eviction(tmp_path: Path) -> None:
    """The second turn follows the first border: once or at every border is the same there, and not in the third."""
    task, model = task_of(tmp_path, measure="likelihood"), model_of()
    once, turns = (rows_of(model, cell_of(task, "60", prefill_block=block)) for block in (None, "turn"))
    assert once[0].kept_sha256 == turns[0].kept_sha256 and once[0].value == pytest.approx(turns[0].value)
    assert once[1].kept_sha256 != turns[1].kept_sha256 and once[1].kept_tokens == turns[1].kept_tokens == 60


def test_cells_together_are_as_alone_and_answers_are_compared_with_the_record(tmp_path: Path) -> None:
    for measure in ("calls", "likelihood"):
        task = task_of(tmp_path, measure=measure, max_new_tokens=60 if measure == "likelihood" else 4)
        model = model_of(torch.float32)
        cells = cell_of(task), cell_of(task, "60"), cell_of(task, "90", decode_every=4)
        together = {(row.cell, row.sample): row.outcome() for row in rows_of(model, *cells)}
        for cell in cells[1:]:
            assert {(row.cell, row.sample): row.outcome() for row in rows_of(model, cell)}.items() <= together.items()
    (answer,) = [sample.references[0] for sample in task.generate(len, [0])]  # type: ignore[arg-type,union-attr]
    sample = next(task.generate(len, [0]))  # type: ignore[arg-type]
    assert isinstance(sample, Sample) and task.score(answer, sample) == 1.0 and task.score("no", sample) == 0.0


def test_what_cannot_be_read_is_an_error_of_its_row(tmp_path: Path) -> None:
    task, model = task_of(tmp_path, measure="likelihood", max_new_tokens=20), model_of()
    (sample, _) = task.generate(len, range(2))  # type: ignore[arg-type]
    assert isinstance(sample, Sample)
    (row,) = run_prefill_job(model, PrefillJob({0: (cell_of(task),)}), [sample], "here").rows
    assert row.error == "the recorded answer has 54 tokens: allowed: 1 to task.max_new_tokens=20"


def test_turns_belong_to_tasks_with_turns() -> None:
    with pytest.raises(ValueError, match=r"schedule\.prefill_block=turn .* task questions has no turns"):
        plan([cell_of(Questions(), "60", prefill_block="turn")], set())


def test_a_plan_is_continued_by_point(tmp_path: Path) -> None:
    cell = cell_of(task_of(tmp_path, measure="likelihood"), "60", prefill_block="turn")
    (group,) = plan([cell], {(cell.id, 0)}).groups
    assert [list(job.missing) for job in group.jobs] == [[1]]
    assert plan([cell, replace(cell, schedule=Schedule("context"))], set()).prefills_to_do == 4
