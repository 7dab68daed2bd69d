"""Timing cells: what is recorded, what is the same in every repetition, what is refused, and how it resumes."""

import json
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from kvbench.cli.main import main
from kvbench.eviction.budget import TokenBudget, parse_budget
from kvbench.eviction.policy import Policy
from kvbench.eviction.schedule import Schedule
from kvbench.eviction.scores.attn import Attention
from kvbench.eviction.scores.recency import Recency
from kvbench.extras.efficiency import roofline, timed
from kvbench.extras.efficiency.efficiency import Efficiency
from kvbench.extras.efficiency.roofline import ceiling
from kvbench.extras.efficiency.timed import Repetition, Timings
from kvbench.models.decode.evicting_batch import EvictingBatch
from kvbench.models.loading.spec import ModelSpec
from kvbench.records import Heartbeat, ResultsFolder, Timing, read_processes, read_rows
from kvbench.records.lines import read_lines
from kvbench.records.sidecars import QUANTITIES
from kvbench.run.cell import Cell
from kvbench.run.energy import energy_meter
from kvbench.run.estimate import SimilarRuns, estimate
from kvbench.run.eviction_method import EvictionMethod
from kvbench.run.job_queue import JobQueue
from kvbench.run.plan import Plan, plan
from kvbench.run.progress import RunStats
from kvbench.run.runner import run
from tests.pretended_gpu import PretendedGpu
from tests.run.already import recorded_samples
from tests.run.test_runner import Silent, model  # noqa: F401

TASK = Efficiency(context_length=53, batch=1, new_tokens=5, repeats=2, warmup=0)
ON_CPU = set(QUANTITIES) - {"prefill_peak_bytes", "decode_peak_bytes", "joules", "load"}


@pytest.fixture(scope="module")
def cells(model: ModelSpec) -> list[Cell]:  # noqa: F811
    """The full cache, a policy at two budgets, one whose answers are cut too, and a batch of three."""
    full = Cell(
        model, TASK, EvictionMethod(Policy("full"), Recency(), parse_budget("1.0"), "full", None), Schedule("prompt"), 1
    )
    policy = Policy("h2o_obcache", window=8, recent=4)
    labels = {"policy_label": policy.name, "score_label": "attn"}
    h2o_obcache = full.with_method(policy=policy, score=Attention(), **labels)
    return [
        full,
        h2o_obcache.with_method(budget=TokenBudget(11)),
        h2o_obcache.with_method(budget=TokenBudget(23)),
        replace(h2o_obcache.with_method(budget=TokenBudget(23)), schedule=Schedule("prompt", decode_every=1)),
        replace(h2o_obcache.with_method(budget=TokenBudget(11)), task=replace(TASK, batch=3)),
    ]


def go(folder: Path, cells: list[Cell]) -> RunStats:
    results = ResultsFolder(folder)
    return run(plan(cells, recorded_samples(folder)), results, JobQueue(results), Silent())


def timings(folder: Path) -> dict[tuple[str, int], Timing]:
    files = sorted((folder / "timings").glob("*.jsonl"))
    measured = [timing for file in files for timing in read_lines(file, Timing.from_json, "a timing", print)]
    assert len(measured) == len({(timing.cell, timing.sample) for timing in measured})
    return {(timing.cell, timing.sample): timing for timing in measured}


@pytest.fixture(scope="module")
def folder(cells: list[Cell], tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("timed")
    assert go(folder, cells).rows == len(cells) * 2
    return folder


def test_every_row_has_its_timing_with_every_quantity(folder: Path, cells: list[Cell]) -> None:
    rows, measured = read_rows(folder), timings(folder)
    assert not [row.error for row in rows if row.error]
    assert {(row.cell, row.sample) for row in rows} == set(measured)
    for timing in measured.values():
        own = {"production_seconds"} if timing.cell == cells[0].id else set()
        assert set(timing.quantities) - {"load"} == ON_CPU - {"production_seconds"} | own
        assert len(timing.steps) == TASK.new_tokens - 1 and min(timing.steps) > 0
    for row in rows:
        assert (row.production_seconds is not None) == (row.cell == cells[0].id)
        assert (row.metric, row.prompt_tokens, row.new_tokens) == ("seconds_per_token", 53, 5)
        assert row.value is not None and row.prefill_seconds is not None and row.prefill_seconds > 0


def test_repetitions_differ_in_seconds_alone(folder: Path) -> None:
    by_cell: dict[str, list[dict[str, Any]]] = {}
    for row in read_rows(folder):
        outcome = {name: value for name, value in row.outcome().items() if name not in ("sample", "value")}
        by_cell.setdefault(row.cell, []).append(outcome)
    assert all(first == second for first, second in by_cell.values())


def test_bytes_follow_the_budget_and_the_batch(folder: Path, cells: list[Cell]) -> None:
    measured = timings(folder)
    full, small, large, cut, batch = (measured[cell.id, 0].quantities for cell in cells)
    assert full["held_bytes"] == full["full_bytes"] > large["held_bytes"] > small["held_bytes"]
    assert large["held_bytes"] == cut["held_bytes"]
    assert batch["held_bytes"] == 3 * small["held_bytes"] and batch["full_bytes"] == 3 * full["full_bytes"]
    for name in ("decode_bytes", "step_moved_bytes", "step_flops", "score_moved_bytes"):
        assert full[name] > large[name] > small[name]
    for name in ("prefill_flops", "prefill_moved_bytes"):
        assert batch[name] == 3 * small[name] == 3 * full[name]


def test_all_sequences_of_a_batch_answer_as_one_does(folder: Path, cells: list[Cell]) -> None:
    rows = {(row.cell, row.sample): row for row in read_rows(folder)}
    single, triple = rows[cells[1].id, 0], rows[cells[4].id, 0]
    assert single.output_sha256 == triple.output_sha256 and single.kept_sha256 == triple.kept_sha256
    assert single.cache_bytes == triple.cache_bytes and single.peak_bytes == triple.peak_bytes
    evictions = [rows[cell.id, 0].decode_evictions for cell in cells]
    assert evictions == [0, 0, 0, (rows[cells[3].id, 0].new_tokens or 0) - 1, 0]


def repetitions(cells: list[Cell], folder: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, list[Repetition]]:
    """The repetitions of a run, by cell."""
    real, seen = timed._time_cell, dict[str, list[Repetition]]()

    def kept(loaded: Any, cell: Cell, *rest: Any) -> Repetition:
        seen.setdefault(cell.id, []).append(real(loaded, cell, *rest))
        return seen[cell.id][-1]

    monkeypatch.setattr(timed, "_time_cell", kept)
    assert not go(folder, cells).errors
    return seen


def test_the_full_cache_of_transformers_gives_the_tokens_of_the_timed_steps(
    cells: list[Cell], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    batch = replace(cells[0], task=replace(TASK, batch=3))
    seen = repetitions([cells[0], cells[1], batch], tmp_path, monkeypatch)
    for cell in (cells[0], batch):
        assert all(each.in_production == each.ids and len(each.ids) == 5 for each in seen[cell.id])
    assert not any(each.in_production for each in seen[cells[1].id])


@pytest.fixture
def known_speed(monkeypatch: pytest.MonkeyPatch) -> None:
    """A device is not timed: a pretended GPU takes minutes for the work of one."""
    speeds = {"device_copy_bytes_per_second": 1e9, "device_flops_per_second": 1e9}
    monkeypatch.setattr(roofline, "ceiling", lambda device, dtype: speeds)


@pytest.mark.slow  # all kernels run in the interpreter
@pytest.mark.usefixtures("known_speed")
def test_on_a_gpu_replays_give_the_tokens_of_the_timed_steps(
    cells: list[Cell], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A method that evicts from its answer has no graph: only then are the full caches two."""
    task = replace(TASK, new_tokens=18, repeats=1, batch=2)
    full, evicted, cut = (replace(cells[place], task=task) for place in (0, 1, 3))
    with PretendedGpu() as gpu:
        seen = repetitions([full, evicted, cut], tmp_path, monkeypatch)
    assert not gpu.mixed
    for cell in (full, evicted):
        assert all(each.in_production == each.ids and len(each.ids) == 18 for each in seen[cell.id])
    measured = timings(tmp_path)
    assert [measured[cell.id, 0].quantities.get("production_seconds", 0) > 0 for cell in (full, evicted, cut)] == [
        *(True, True, False)
    ]


@pytest.mark.usefixtures("known_speed")
def test_on_a_gpu_a_cell_is_timed_as_a_run_decodes_it(cells: list[Cell], tmp_path: Path) -> None:
    """In memory of rounded sizes, of this cell alone; its rows name why there are no replays."""
    short, evicting = (replace(cells[place], task=replace(TASK, repeats=1)) for place in (1, 3))
    with PretendedGpu(interpret=False) as gpu:
        assert not go(tmp_path, [short, evicting]).errors
    assert gpu.captures == 1
    folder = ResultsFolder(tmp_path)
    devices = {row.cell: (folder.read_environment(row.environment) or {})["device"] for row in read_rows(tmp_path)}
    assert "steps" not in devices[short.id], "a graph of a run's memory has the steps of any answer"
    assert devices[evicting.id]["steps"] == f"one by one: {EvictingBatch.uncaptured}"


def test_it_resumes_with_more_repetitions_and_loads_nothing_when_done(cells: list[Cell], tmp_path: Path) -> None:
    assert go(tmp_path, cells[:2]).rows == 4
    assert go(tmp_path, cells[:2]).rows == 0
    more = [replace(cell, task=replace(cell.task, repeats=3)) for cell in cells[:2]]
    assert [cell.id for cell in more] == [cell.id for cell in cells[:2]]
    assert go(tmp_path, more).rows == 2
    assert {sample for _, sample in timings(tmp_path)} == {0, 1, 2}


def test_a_cell_that_runs_out_of_memory_fails_alone(
    cells: list[Cell], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = timed.evict_cell

    def fail_one(loaded: Any, cell: Cell, shared: Any) -> Any:
        if cell.id == cells[1].id:
            raise torch.OutOfMemoryError("no room for 7 GiB\nsecond line")
        return real(loaded, cell, shared)

    monkeypatch.setattr(timed, "evict_cell", fail_one)
    assert go(tmp_path, cells[:3]).errors == 2
    errors = {row.cell: row.error for row in read_rows(tmp_path)}
    assert errors == {cells[0].id: None, cells[1].id: "out of memory: no room for 7 GiB", cells[2].id: None}


def test_a_prompt_beyond_the_model_is_an_error_row(cells: list[Cell], tmp_path: Path) -> None:
    long = replace(cells[0], task=replace(TASK, context_length=490, new_tokens=30))
    assert go(tmp_path, [long]).errors == 2
    assert "the model reads at most" in (read_rows(tmp_path)[0].error or "")


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        (["task.batch=0"], "task.batch=0: allowed: 1 or more"),
        (["task.new_tokens=1"], "task.new_tokens=1: allowed: 2 or more"),
        (["task.samples=3"], "unknown setting task.samples"),
        (["task.chat=true"], "task.chat=false"),
        (["schedule.evict_after=context"], "has no question: use another task, or schedule.evict_after=prompt"),
    ],
    ids=["batch", "new_tokens", "samples", "chat", "context"],
)
def test_refusals(settings: list[str], says: str, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert main(["plan", "task=efficiency", f"results.dir={tmp_path}", *settings]) == 2
    assert says in capsys.readouterr().err


def test_what_a_device_can_do_is_measured() -> None:
    speeds = ceiling(torch.device("cpu"), torch.float32, scale=0.01)
    assert len(speeds) == 2 and all(speed > 0 for speed in speeds.values())


class Nvml:
    """A counter a device, which goes up by 1500 mJ each time it is read."""

    NVMLError = KeyError

    def __init__(self, counts: bool) -> None:
        self.counts = counts
        self.millijoules: dict[str, int] = {}

    def nvmlInit(self) -> None:
        pass

    def nvmlDeviceGetHandleByUUID(self, uuid: str) -> str:
        return uuid

    def nvmlDeviceGetTotalEnergyConsumption(self, handle: str) -> int:
        if not self.counts:
            raise KeyError("not supported")
        self.millijoules[handle] = self.millijoules.get(handle, 0) + 1500
        return self.millijoules[handle]


def test_energy_is_read_where_a_device_counts_it(monkeypatch: pytest.MonkeyPatch) -> None:
    devices: Any = [SimpleNamespace(type="cuda", index=index) for index in range(2)]
    monkeypatch.setitem(sys.modules, "pynvml", Nvml(counts=True))
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: SimpleNamespace(uuid=device.index))
    meter = energy_meter(devices)
    assert meter is not None
    before = meter()
    assert meter() - before == 3.0  # two devices, each read once
    assert energy_meter([torch.device("cpu")]) is None
    nvml = Nvml(counts=True)
    monkeypatch.setitem(sys.modules, "pynvml", nvml)
    failing = energy_meter(devices)
    nvml.counts = False
    assert failing is not None and failing() == 3.0, "a device that stops telling leaves the last sum"
    assert energy_meter(devices) is None
    monkeypatch.setitem(sys.modules, "pynvml", None)
    assert energy_meter(devices) is None


def test_a_line_that_is_no_timing_is_refused() -> None:
    true = '{"cell": "0f", "sample": 1, "quantities": {"load": true}, "steps": []}'
    for line in ('{"cell": "0f", "sample": 1}', true, "[]"):
        with pytest.raises(ValueError):
            Timing.from_json(line)


def test_a_timing_survives_its_line() -> None:
    timing = Timing("0f", 3, {"prefill_seconds": 1.25, "held_bytes": 10.0}, (0.5, 0.25))
    assert Timing.from_json(timing.to_json()) == timing
    newer = json.loads(timing.to_json())
    newer["quantities"]["of_tomorrow"] = 1.0
    assert Timing.from_json(json.dumps(newer)) == timing
    with pytest.raises(ValueError, match="there is no quantity 'of_tomorrow'"):
        Timing("0f", 3, {"of_tomorrow": 1.0}, ())


def test_a_process_says_what_its_devices_took(tmp_path: Path) -> None:
    """From its start to its last heartbeat; blank where no device counts."""
    counts = iter([100.0, 107.5])
    for name, joules in (("told", lambda: next(counts)), ("untold", None)):
        heart = Heartbeat(ResultsFolder(tmp_path / name), 60, 60, joules=joules)
        heart.start()
        heart.end("finished")
    assert [process.joules for process in read_processes(tmp_path / "told")] == [7.5]
    assert [process.joules for process in read_processes(tmp_path / "untold")] == [None]


def test_a_plan_says_what_is_to_be_read_and_how_long_it_may_take(
    cells: list[Cell],
    folder: Path,
) -> None:
    more = [replace(cell, task=replace(cell.task, repeats=3)) for cell in cells[:2]]
    (group,) = plan(more, recorded_samples(folder)).groups
    rows = [row for row in read_rows(folder) if row.cell in {cell.id for cell in more}]
    alone = [row for row in rows if row.cell == more[0].id]
    expected = 2 * sum(row.prefill_seconds or 0 for row in rows) / 4
    expected += sum((row.evict_seconds or 0) + (row.decode_seconds or 0) for row in rows) / 2
    sweep = plan(more, recorded_samples(folder))
    assert estimate(sweep, SimilarRuns(tuple(rows))) == {group.key: pytest.approx(expected)}
    assert estimate(sweep, SimilarRuns(tuple(alone))) == {group.key: None}
    assert estimate(Plan((replace(group, jobs=()),)), SimilarRuns(tuple(rows))) == {}
    assert "prefill: 2 prompts, 106 tokens, warming up included; answers: 10 tokens" in Timings.cost(group)
