"""Prompts whose answers are decoded as one batch: rows are those of prompts that are answered one after the other."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from kvbench.eviction.policy import Policy
from kvbench.eviction.schedule import Schedule
from kvbench.extras.readers.quest import Quest
from kvbench.extras.stores.packed import Packed
from kvbench.models import bridge
from kvbench.models.engine import Counters, Engine
from kvbench.models.loading.load import LoadedModel
from kvbench.models.loading.spec import ModelSpec
from kvbench.records import ResultsFolder, Row, StopRequested, read_rows
from kvbench.run import joint_batch, memory, runner
from kvbench.run.cell import Cell
from kvbench.run.job_queue import JobQueue, RunContext
from kvbench.run.joint_batch import JointBatch, decodes_jointly
from kvbench.run.local import LocalSession
from kvbench.run.plan import PrefillJob, plan
from kvbench.run.prefill_job import run_prefill_job
from kvbench.tasks.task import Sample
from tests.models.families import tiny
from tests.questions import Questions
from tests.run.test_out_of_memory import EXHAUSTED
from tests.run.test_out_of_memory import exhaust as exhausting  # noqa: F401
from tests.run.test_prefill_job import cells, samples_of
from tests.run.test_runner import Silent
from tests.run.test_runner import model as reading_words  # noqa: F401
from tests.steps import with_steps

TASK = Questions(contexts=6, max_new_tokens=12)
CELLS = cells("0.3", evict_after="prompt", task=TASK)


@pytest.fixture(scope="module")
def load(load: Callable[..., LoadedModel]) -> Callable[..., LoadedModel]:
    """Make a tiny model whose batch holds eight cells."""
    return partial(load, max_batch=8)


def prompts(*lengths: int) -> list[Sample]:
    """Prompts of so many words of context."""
    return [
        replace(sample, context=" ".join(sample.context.split()[:words]))
        for sample, words in zip(samples_of(*range(len(lengths)), task=TASK), lengths, strict=True)
    ]


def alone(model: LoadedModel, samples: Sequence[Sample], own: Sequence[Cell] = CELLS) -> list[dict[str, Any]]:
    jobs = ((PrefillJob({sample.id: tuple(own)}, sample.id), sample) for sample in samples)
    return [row.outcome() for job, sample in jobs for row in run_prefill_job(model, job, [sample], "here").rows]


def together(model: LoadedModel, samples: Sequence[Sample], own: Sequence[Cell] = CELLS) -> dict[int, list[Row]]:
    joint = JointBatch(model, "here")
    for sample in samples:
        joint.add(PrefillJob({sample.id: tuple(own)}, sample.id), sample)
    return {key: result.rows for key, result in joint.finish().items()}


@pytest.mark.parametrize(
    ("schedule", "stops"),
    [
        (Schedule("prompt"), False),
        (Schedule("prompt"), True),
        (Schedule("context"), True),
        (Schedule("prompt", prefill_block=16), False),
    ],
    ids=str,
)
def test_rows_are_those_of_prompts_answered_alone(
    load: Callable[..., LoadedModel], schedule: Schedule, stops: bool
) -> None:
    """Every column, the gap between logits and the bytes of a cell included; answers may end at different times, and
    questions that are read after the eviction have different lengths.
    """
    samples, own = prompts(60, 17, 41, 60), tuple(replace(cell, schedule=schedule) for cell in CELLS)
    own = own[1:] if schedule.prefill_block else own  # such a cell shares no prefill
    samples[0] = replace(samples[0], question=samples[0].question * 20)  # more than one block
    expected = alone(load(), samples, own)
    assert len({row["prompt_tokens"] for row in expected}) > 2 and not any(row["error"] for row in expected)
    stop: list[int] = []
    if stops:
        answers = [set(load().tokenizer(row["prediction"]).input_ids) for row in expected]
        for token in sorted(set.union(*answers), key=lambda token: -sum(token in ids for ids in answers)):
            stop, expected = [token], alone(load(stop=[token]), samples, own)
            if len({row["new_tokens"] for row in expected}) > 1:
                break
        assert len({row["new_tokens"] for row in expected}) > 1
    model = load(stop=stop)
    assert [row.outcome() for rows in together(model, samples, own).values() for row in rows] == expected
    counters, blocks = model.engine.counters, 6 if schedule.evict_after == "context" else 0
    assert counters.prefills == 4 and counters.decode_steps <= TASK.max_new_tokens - 1 + blocks


def test_what_one_prompt_cannot_do_leaves_the_others(load: Callable[..., LoadedModel]) -> None:
    """One is too long for the model, a cell of another has a budget below its protected tokens."""
    samples = prompts(60, 30, 10)
    samples[1] = replace(samples[1], context=samples[1].context * 40)
    small = CELLS[1].with_method(policy=Policy("snapkv", window=24, recent=24))
    model = load()
    rows = together(model, samples, (CELLS[0], small))
    expected = alone(load(), [samples[0], samples[2]], (CELLS[0], small))
    assert [row.outcome() for each in rows.values() for row in each] == expected
    errors = {key: [row.error is not None for row in each] for key, each in rows.items()}
    assert errors == {0: [False, False], 2: [False, True]}, "made alone, as nothing of it is to be decoded"


def test_answers_of_other_lengths_are_left_to_be_made_alone(load: Callable[..., LoadedModel]) -> None:
    """`peak_bytes` counts the room for an answer, which a batch has once for all cells."""
    samples = prompts(60, 30, 10)
    samples[1] = replace(samples[1], max_new_tokens=3)
    model = load()
    assert together(model, samples).keys() == {0, 2} and model.engine.counters.prefills == 2


def test_without_memory_for_all_there_are_no_results_and_fewer_next_time(
    load: Callable[..., LoadedModel], monkeypatch: pytest.MonkeyPatch
) -> None:
    def exhausted(*_: object) -> None:
        raise EXHAUSTED["torch"]

    model, samples = load(), prompts(60, 30)
    with monkeypatch.context() as changed:
        changed.setattr(joint_batch, "batch_of", exhausted)
        assert together(model, samples) == {}
    assert (model.engine.counters.oom_splits, model.engine.counters.max_cells) == (1, 2)
    joint = JointBatch(model, "here")
    joint.add(PrefillJob({0: CELLS}), samples[0])
    assert joint.is_full


def test_memory_that_those_who_wait_take_changes_nothing(load: Callable[..., LoadedModel], exhausting: Any) -> None:  # noqa: F811
    """A prompt that cannot be read beside them is made by itself, in blocks of the usual size."""
    model, samples = load(), prompts(60, 30)
    joint = JointBatch(model, "here")
    assert joint.add(PrefillJob({0: CELLS}), samples[0])
    exhausting(block=8)
    assert not joint.add(PrefillJob({1: CELLS}, 1), samples[1])
    assert model.engine.counters.oom_at == {} and joint.finish().keys() == {0}


@pytest.mark.parametrize("limit", ["cells", "memory", "seconds"])
def test_a_batch_is_full(load: Callable[..., LoadedModel], monkeypatch: pytest.MonkeyPatch, limit: str) -> None:
    model, samples, added = load(max_batch=6), prompts(20, 20, 20), 0
    if limit == "memory":
        monkeypatch.setattr(memory, "free_bytes", lambda devices: 10**9 if added < 2 else 10_000)
    if limit == "seconds":
        monkeypatch.setattr(joint_batch.time, "monotonic", lambda: 100.0 * (added >= 2))
    joint = JointBatch(model, "here")
    while not joint.is_full:
        joint.add(PrefillJob({added: CELLS}, added), samples[added])
        added += 1
    assert added == (3 if limit == "cells" else 2)


def test_what_is_not_decoded_together(load: Callable[..., LoadedModel], tokenizer: Any) -> None:
    model, (full, snapkv) = load(), CELLS
    assert decodes_jointly(model, CELLS) and decodes_jointly(model, [full] * 4)
    after_context = replace(full, schedule=Schedule("context"))
    assert decodes_jointly(model, [after_context])
    assert not decodes_jointly(replace(model, engine=replace(model.engine, kernels="triton")), [after_context])
    others: Iterator[Cell] = iter(
        (
            replace(
                snapkv.with_method(policy=with_steps(snapkv.policy, positions="cache")), schedule=Schedule("context")
            ),
            replace(snapkv, schedule=Schedule("prompt", decode_every=4)),
            snapkv.with_method(holder=Packed("int8")),
            snapkv.with_method(holder=Quest(budget=8)),
            replace(full, task=replace(TASK, temperature=0.5)),
        )
    )
    assert not any(decodes_jointly(model, [other]) for other in others)
    assert not decodes_jointly(model, [full, snapkv.with_method(policy=replace(snapkv.policy, layout="query_heads"))])
    assert not decodes_jointly(model, [full] * 5), "no room for a second prompt"
    local = tiny("gemma2", vocab_size=len(tokenizer))  # with local layers
    bridge.attach(local)
    assert not decodes_jointly(replace(model, engine=Engine(local, max_batch=8)), [full])


@pytest.fixture
def planned(reading_words: ModelSpec) -> tuple[Cell, ...]:  # noqa: F811
    return tuple(replace(cell, model=reading_words, task=replace(TASK, samples=6)) for cell in CELLS)


def test_a_run_decodes_prompts_together_and_makes_what_fails_alone(
    planned: tuple[Cell, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The rows of a run with a tile of one cell, which decodes each prompt by itself."""
    counters: list[Counters] = []
    for folder, tile, fails in (("one", 1, False), ("all", 16, False), ("failing", 16, True)):
        cells = [replace(cell, model=replace(cell.model, max_batch=tile)) for cell in planned]
        opened = runner.Opened()
        with monkeypatch.context() as changed:
            if fails:
                changed.setattr(joint_batch, "_answer", lambda *_: 1 / 0)
            results = ResultsFolder(tmp_path / folder)
            outcome = runner.run(plan(cells, set()), results, JobQueue(results), Silent(), opened=opened)
        assert (outcome.rows, outcome.errors) == (12, 0)
        assert isinstance(opened.session, LocalSession)
        counters.append(opened.session.work)
    one, all_, failing = counters
    assert (one.prefills, all_.prefills, failing.prefills) == (6, 6, 12)
    assert all_.decode_steps < TASK.max_new_tokens, "one batch"
    rows = [{(row.cell, row.sample): row.outcome() for row in read_rows(tmp_path / name)} for name in ("one", "all")]
    assert rows[0] == rows[1]


def test_a_run_that_is_stopped_answers_the_prompts_that_it_has_read(
    planned: tuple[Cell, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    add, added = JointBatch.add, list[int]()

    def adding(self: JointBatch, job: PrefillJob, sample: Sample) -> bool:
        added.append(sample.id)
        return add(self, job, sample)

    monkeypatch.setattr(JointBatch, "add", adding)
    results = ResultsFolder(tmp_path / "out")
    jobs = JobQueue(results, RunContext(stop=lambda: "SIGTERM" if len(added) == 2 else None))
    with pytest.raises(StopRequested):
        runner.run(plan(planned, set()), results, jobs, Silent())
    assert sorted(row.sample for row in read_rows(tmp_path / "out")) == [0, 0, 1, 1]


@pytest.mark.parametrize(("others", "share"), [(0, 12), (2, 2)])
def test_processes_claim_a_part_of_what_is_left(
    planned: tuple[Cell, ...], tmp_path: Path, others: int, share: int
) -> None:
    (group,) = plan(planned, set()).groups
    with ExitStack() as running:
        processes = [running.enter_context(JobQueue(ResultsFolder(tmp_path / "out"))) for _ in range(1 + others)]
        assert all(process.take(group, job) for process, job in zip(processes, group.jobs, strict=False))
        assert processes[0].share(12) == share
