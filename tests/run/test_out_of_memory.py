"""Memory runs out while a prompt is read, in every way that torch says so: what is tried, and what rows then say."""

import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from kvbench.eviction.policy import Policy
from kvbench.extras.gpu_decoding.decoding import GpuDecoding
from kvbench.extras.gpu_decoding.rooms import Rooms
from kvbench.models import bridge
from kvbench.models.engine import Counters, Engine
from kvbench.models.loading.load import LoadedModel, load
from kvbench.models.loading.spec import ModelSpec
from kvbench.models.prefill import Prefill
from kvbench.records import ResultsFolder, read_rows
from kvbench.run import answers, local, runner
from kvbench.run.cell import Cell
from kvbench.run.job_queue import JobQueue
from kvbench.run.memory import FREE_SHARE, halve_on_oom, reads_at_once
from kvbench.run.plan import PrefillJob, plan
from kvbench.run.prefill_job import ONE_PASS, prompt_of, run_prefill_job
from kvbench.run.rows import JobResult
from kvbench.support.errors import out_of_memory
from tests.models.conftest import tiny_llama
from tests.pretended_gpu import PretendedGpu
from tests.run.test_prefill_job import cells, outcomes, samples_of
from tests.run.test_runner import Silent

EXHAUSTED = {
    "torch": torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.\nGPU 0 has 1 GiB free."),
    "cuda": torch.AcceleratorError("CUDA error: out of memory\nCUDA kernel errors might be asynchronously reported"),
    "triton": RuntimeError("Triton Error [CUDA]: out of memory"),
    "cublas": RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"),
    "cudnn": RuntimeError("cuDNN error: CUDNN_STATUS_ALLOC_FAILED"),
    "cpu": RuntimeError("[enforce fail] DefaultCPUAllocator: not enough memory: you tried to allocate 8 bytes."),
}
BROKEN = torch.AcceleratorError("CUDA error: an illegal memory access was encountered")
SNAPKV = cells("0.3")
ALL_ROWS = SNAPKV[1].with_method(
    policy=Policy("h2o_obcache", window="all", recent=4, reduce="observed_attention"), policy_label="h2o"
)


@pytest.fixture(scope="module")
def model(load: Callable[..., LoadedModel]) -> LoadedModel:
    """A tiny model that reads 16 tokens at a time."""
    return load(prefill_chunk=16)


@pytest.fixture
def exhaust(monkeypatch: pytest.MonkeyPatch) -> Callable[..., list[tuple[int, bool]]]:
    """Lets memory run out for passes of more than `block` tokens, and where all rows are recorded.

    Returns the prefills that are begun: the tokens of the first pass, and whether all rows are recorded.
    """
    attend = Prefill.attend

    def start(block: int = 10**9, all_rows: bool = True, error: Exception = EXHAUSTED["torch"]) -> list[Any]:
        begun: list[tuple[int, bool]] = []

        def attended(self: Prefill, layer: int, queries: Any, *rest: Any) -> Any:
            every = self.tokens in self.windows
            if layer == 0 and self.num_tokens == 0:
                begun.append((queries.shape[2], every))
            if queries.shape[2] > block or (every and not all_rows and self.num_tokens > 0):
                raise error
            return attend(self, layer, queries, *rest)

        monkeypatch.setattr(Prefill, "attend", attended)
        return begun

    return start


def job_of(model: LoadedModel, wanted: tuple[Cell, ...], block: int = 16) -> JobResult:
    fresh = replace(model, engine=replace(model.engine, prefill_chunk=block, counters=Counters()))
    return run_prefill_job(fresh, PrefillJob({0: wanted, 2: wanted}), samples_of(0, 2), "here")


@pytest.mark.parametrize("error", EXHAUSTED.values(), ids=EXHAUSTED)
def test_every_way_of_saying_it_is_understood(error: Exception) -> None:
    failed: list[tuple[int, str]] = []

    def work(part: list[int]) -> None:
        if len(part) > 1 or part == [3]:
            raise error

    assert out_of_memory(error)
    halve_on_oom([1, 2, 3], work, lambda cell, reason: failed.append((cell, reason)), Engine(None))
    assert failed == [(3, f"out of memory: {str(error).splitlines()[0]}")]


def test_rooms_are_given_up_before_a_part_is_halved() -> None:
    rooms, parts = Rooms(), list[list[int]]()
    engine = Engine(None, decoding=GpuDecoding(None, "torch", None, rooms))
    rooms.take(object.__new__(Rooms), torch.zeros(1, 4), 1, (1,), (8, 8, 8))

    def work(part: list[int]) -> None:
        parts.append(part)
        if engine.decoding.bytes_held:
            raise torch.OutOfMemoryError("CUDA out of memory")

    halve_on_oom([1, 2, 3], work, lambda cell, reason: pytest.fail(reason), engine)
    assert parts == [[1, 2, 3], [1, 2, 3]] and not engine.counters.oom_splits


def test_other_failures_pass() -> None:
    for error in (BROKEN, ValueError("out of memory"), RuntimeError("shapes do not match")):
        assert not out_of_memory(error)

    def broken(part: list[int]) -> None:
        raise RuntimeError("shapes")

    with pytest.raises(RuntimeError, match="shapes"):
        halve_on_oom([1, 2], broken, lambda cell, why: None, Engine(None))


def test_a_prompt_is_read_in_smaller_blocks(model: LoadedModel, exhaust: Any) -> None:
    """Rows are those of a run that reads as many tokens at a time from the start."""
    expected = job_of(model, SNAPKV, block=4)
    begun = exhaust(block=8, error=EXHAUSTED["cuda"])
    result = job_of(model, SNAPKV)
    assert begun == [(16, False), (4, False)]
    assert result.chunk == 4 and expected.chunk is None
    assert outcomes(result.rows) == outcomes(expected.rows)


def test_the_next_prompts_begin_with_what_fitted(model: LoadedModel, exhaust: Any) -> None:
    """The second prompt is as long as the first; a shorter one begins with the usual block."""
    begun, engine = exhaust(block=8), replace(model.engine, counters=Counters())
    job, samples = PrefillJob({0: SNAPKV}), samples_of(0)
    tokens = len(prompt_of(model, samples[0], SNAPKV[0]).prefill)
    for _ in range(2):
        assert run_prefill_job(replace(model, engine=engine), job, samples, "here").chunk == 4
    assert begun == [(16, False), (4, False), (4, False)] and engine.counters.oom_at == {(16, False): tokens}
    engine.counters.oom_at = {(16, False): tokens + 1}
    run_prefill_job(replace(model, engine=engine), job, samples, "here")
    assert begun[3:] == [(16, False), (4, False)] and engine.counters.oom_at == {(16, False): tokens}


def test_then_without_the_cells_for_which_all_rows_are_recorded(model: LoadedModel, exhaust: Any) -> None:
    """The others are read at the usual size, and their rows are those of a run without the failed ones."""
    expected = outcomes(job_of(model, SNAPKV).rows)
    begun = exhaust(all_rows=False)
    result = job_of(model, (ALL_ROWS, *SNAPKV))
    assert begun == [(16, True), (4, True), (1, True), (16, False)] and result.chunk is None
    failed = [row for row in result.rows if row.cell == ALL_ROWS.id]
    assert [row.error for row in failed] == ["out of memory: CUDA out of memory. Tried to allocate 2.00 GiB."] * 2
    assert all(row.prompt_sha256 is not None for row in failed)
    assert outcomes([row for row in result.rows if row.cell != ALL_ROWS.id]) == expected
    assert [(row.sample, row.cell) for row in result.rows] == [
        (sample, cell.id) for sample in (0, 2) for cell in (ALL_ROWS, *SNAPKV)
    ]


def test_what_fits_in_no_way_is_an_error_of_its_rows(model: LoadedModel, exhaust: Any) -> None:
    begun = exhaust(block=0)
    rows = job_of(model, (*SNAPKV, ALL_ROWS)).rows
    assert [block for block, _ in begun] == [16, 4, 1] * 2 and len(rows) == 6
    assert {row.error for row in rows} == {"out of memory: CUDA out of memory. Tried to allocate 2.00 GiB."}


def test_an_eviction_in_blocks_is_read_as_its_schedule_says(
    model: LoadedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun: list[int] = []

    def prefill_evicting(self: Engine, ids: Any, evictor: Any, block: int) -> Any:
        begun.append(block)
        raise EXHAUSTED["torch"]

    monkeypatch.setattr(Engine, "prefill_evicting", prefill_evicting)
    cell = replace(SNAPKV[1], schedule=replace(SNAPKV[1].schedule, prefill_block=8))
    rows = job_of(model, (cell,)).rows
    assert begun == [8] and all((row.error or "").startswith("out of memory: CUDA") for row in rows)


@pytest.fixture
def planned(tokenizer: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Cell, ...]]:
    """Cells of a model in a folder, which reads 16 tokens at a time."""
    folder = tmp_path / "model"
    tiny_llama(vocab_size=len(tokenizer), bos_token_id=None, eos_token_id=None).save_pretrained(folder)
    tokenizer.save_pretrained(folder)

    def loaded(info: Any, begun: Any) -> LoadedModel:
        model = load(info, begun)
        model.engine.prefill_chunk = model.device["prefill_chunk"] = 16
        return model

    monkeypatch.setattr(local, "load", loaded)
    spec = ModelSpec("hf", str(folder), dtype="float32", threads=1)
    yield tuple(replace(cell, model=spec, task=replace(cell.task, samples=2)) for cell in SNAPKV)


def test_rows_name_the_block_that_they_were_read_with(planned: tuple[Cell, ...], exhaust: Any, tmp_path: Path) -> None:
    exhaust(block=8, error=EXHAUSTED["cuda"])
    results = ResultsFolder(tmp_path / "out")
    outcome = runner.run(plan(planned, set()), results, JobQueue(results), Silent())
    rows = read_rows(tmp_path / "out")
    assert (outcome.rows, outcome.errors) == (len(planned) * 2, 0) == (len(rows), 0)
    (name,) = {row.environment for row in rows}
    (described,) = (path for path in (tmp_path / "out" / "environments").iterdir() if path.stem == name)
    assert json.loads(described.read_text("utf-8"))["device"]["prefill_chunk"] == 4


def test_memory_that_runs_out_anywhere_else_is_an_error_of_the_rows(
    planned: tuple[Cell, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def exhausted(*arguments: Any) -> JobResult:
        raise EXHAUSTED["cuda"]

    monkeypatch.setattr(answers, "decodes_jointly", lambda *_: False)
    monkeypatch.setattr(answers, "run_prefill_job", exhausted)
    results = ResultsFolder(tmp_path / "out")
    outcome = runner.run(plan(planned, set()), results, JobQueue(results), Silent())
    assert outcome.rows == outcome.errors == len(planned) * 2


def test_a_device_that_has_failed_ends_the_run(planned: tuple[Cell, ...], exhaust: Any, tmp_path: Path) -> None:
    exhaust(block=8, error=BROKEN)
    with pytest.raises(torch.AcceleratorError, match="illegal memory access"):
        results = ResultsFolder(tmp_path / "out")
        runner.run(plan(planned, set()), results, JobQueue(results), Silent())


def on_gpu(tokenizer: Any) -> LoadedModel:
    llama = tiny_llama(vocab_size=len(tokenizer)).to("cuda")
    bridge.attach(llama)
    engine = Engine(llama, max_batch=3, prefill_chunk=16, max_length=512)
    return LoadedModel(engine, tokenizer, frozenset(), 512, {"name": "gpu"})


def test_a_gpu_reads_a_prompt_in_one_pass_where_that_fits(tokenizer: Any, exhaust: Any) -> None:
    """By what was free before the first prompt; where it runs out all the same, in blocks. Answers are the same."""
    job, samples = PrefillJob({0: SNAPKV}), samples_of(0)
    with PretendedGpu(total=2**30):
        model = on_gpu(tokenizer)
        begun, tokens = exhaust(), len(prompt_of(model, samples[0], SNAPKV[0]).prefill)
        whole = run_prefill_job(model, job, samples, "here")
        assert whole.chunk == ONE_PASS and model.engine.counters.room is not None
        model.engine.counters.room = 10**5
        blocks = run_prefill_job(model, job, samples, "here")
        model.engine.counters.room = 2**30
        again = exhaust(block=20)
        fallen_back = run_prefill_job(model, job, samples, "here")
        assert begun[:2] == [(tokens, False), (16, False)] and again == [(tokens, False), (16, False)]
        assert model.engine.counters.oom_at == {(0, False): tokens}
    assert blocks.chunk is fallen_back.chunk is None, "as many tokens as usual"
    answers = [[(row.error, row.prediction) for row in result.rows] for result in (whole, blocks, fallen_back)]
    assert answers[0] == answers[1] == answers[2] and all(error is None for error, _ in answers[0])


def test_what_one_pass_takes_decides(tokenizer: Any) -> None:
    """Caches, queries, sums and a pass, in bytes; a CPU reads in blocks, as does a GPU that has not as much."""
    with PretendedGpu(total=2**30):
        model, tokens, rows = on_gpu(tokenizer), 48, 20
        config, (layers, kv_heads, heads) = model.engine.model.config, (3, 2, 6)
        size = model.engine.model.dtype.itemsize
        a_pass = tokens * (5 * config.hidden_size + 3 * config.intermediate_size) * size
        head_dim = config.head_dim
        taken = layers * (tokens * kv_heads * 2 * head_dim * size + rows * heads * (2 * head_dim * size + 4))
        taken += a_pass + 2 * layers * heads * tokens * 4
        for room, fits in ((int(taken / FREE_SHARE) + 2, True), (int(taken / FREE_SHARE) - 2, False)):
            model.engine.counters.room = room
            assert reads_at_once(model.engine, tokens, rows, 2) is fits
        assert not reads_at_once(model.engine, 16, 0, 0), "one block"
    assert not reads_at_once(Engine(tiny_llama(), prefill_chunk=16), tokens, 0, 0)
