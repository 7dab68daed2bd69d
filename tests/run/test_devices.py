"""A model on the second GPU, or on two: which device each call of torch.cuda names. The GPUs are pretended."""

import io
import subprocess
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from kvbench.extras.efficiency import timed
from kvbench.extras.efficiency.timed import StepClock
from kvbench.models.engine import Engine
from kvbench.models.loading.load import choose_device, load, model_info
from kvbench.models.loading.spec import ModelSpec
from kvbench.models.marks import Timed
from kvbench.records import ResultsFolder
from kvbench.run import energy
from kvbench.run.job_queue import RunContext
from kvbench.run.launch.launcher import PendingSweep
from kvbench.run.launch.local import LocalProcesses
from kvbench.run.memory import free_bytes
from kvbench.support.shared_gpus import PROCESSES
from kvbench.work import sweep as work_sweep
from tests.pretended_gpu import PretendedGpu

FIRST, SECOND, CPU = torch.device("cuda", 0), torch.device("cuda", 1), torch.device("cpu")
GIB = 2**30


class Event:
    """Refuses a stream that is not named: that would be the one of the first GPU."""

    def __init__(self, calls: list[tuple[str, torch.device]], enable_timing: bool) -> None:
        assert enable_timing
        self.calls, self.place = calls, len(calls)

    def record(self, stream: torch.device) -> None:
        self.calls.append(("record", stream))

    def synchronize(self) -> None:
        self.calls.append(("wait", self.calls[self.place][1]))

    def elapsed_time(self, end: "Event") -> float:
        return 1000.0 * (end.place - self.place)


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, torch.device]]:
    """What torch.cuda was asked for, and of which device. The first GPU has 10 GiB free, the second 3."""
    recorded: list[tuple[str, torch.device]] = []

    def pretend(name: str, value: Any = None) -> None:
        def call(device: torch.device) -> Any:
            recorded.append((name, device))
            return value(device) if value else None

        monkeypatch.setattr(torch.cuda, name, call)

    pretend("synchronize")
    pretend("reset_peak_memory_stats")
    pretend("max_memory_allocated", lambda device: (5 + device.index) * GIB)
    pretend("mem_get_info", lambda device: ((2 if device.index else 9) * GIB, 80 * GIB))
    pretend("memory_reserved", lambda device: 4 * GIB)
    pretend("memory_allocated", lambda device: 3 * GIB)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: device)
    monkeypatch.setattr(torch.cuda, "Event", lambda enable_timing: Event(recorded, enable_timing))
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    return recorded


def engine_on(*devices: torch.device) -> Engine:
    """Of a model whose weights lie on these devices, in this order."""
    weights = [SimpleNamespace(device=device) for device in devices]
    return Engine(SimpleNamespace(parameters=lambda: iter(weights)))


@pytest.mark.parametrize("devices", [(SECOND,), (FIRST, SECOND)], ids=["cuda:1", "device_map"])
def test_every_gpu_of_the_model_is_waited_for_and_measured(
    devices: tuple[torch.device, ...], calls: list[tuple[str, torch.device]]
) -> None:
    engine = engine_on(*devices, *devices)
    engine.sync()
    timed._reset_peaks(engine)
    peaks = timed._peaks(engine, "decode_peak_bytes")
    names = ("synchronize", "reset_peak_memory_stats", "max_memory_allocated")
    assert calls == [(name, device) for name in names for device in devices]
    assert peaks == {"decode_peak_bytes": sum((5 + device.index) * GIB for device in devices)}


def test_work_of_several_gpus_is_timed_without_a_wait(calls: list[tuple[str, torch.device]]) -> None:
    engine = engine_on(FIRST, SECOND)
    began, ended = engine.mark(), engine.mark()
    assert calls == 2 * [("record", FIRST), ("record", SECOND)]
    assert Timed(0.5, ((began, ended),)).seconds == 2.5  # an event of the fake is a second
    assert calls[4:] == [("wait", FIRST), ("wait", SECOND)]


def test_a_cpu_is_not_waited_for(calls: list[tuple[str, torch.device]]) -> None:
    engine = engine_on(CPU)
    engine.sync()
    assert timed._peaks(engine, "decode_peak_bytes") == {} and calls == []


def test_steps_end_on_the_gpu_of_the_logits(calls: list[tuple[str, torch.device]]) -> None:
    clock = StepClock(SECOND)
    for _ in range(3):
        clock.mark()
    assert clock.seconds() == [1.0, 1.0]
    assert calls == [("record", SECOND)] * 3 + [("wait", SECOND)]


def test_the_gpu_with_least_room_for_each_of_its_layers_limits_all(calls: list[tuple[str, torch.device]]) -> None:
    assert free_bytes([SECOND] * 4) == 3 * GIB
    assert {device for _, device in calls} == {SECOND}
    assert free_bytes([FIRST] * 4) == 10 * GIB
    assert free_bytes([FIRST, SECOND]) == 6 * GIB  # 3 GiB on each
    assert free_bytes([FIRST] * 9 + [SECOND]) == 10 * GIB * 10 // 9


def test_a_device_has_its_number(calls: list[tuple[str, torch.device]]) -> None:
    for device, chosen in ((None, FIRST), ("cuda", FIRST), ("cuda:1", SECOND), ("cpu", CPU)):
        assert choose_device(ModelSpec("reference", device=device)) == chosen
    with pytest.raises(ValueError, match=r"model\.device=cuda:2: torch sees 2 GPUs"):
        choose_device(ModelSpec("reference", device="cuda:2"))


@pytest.mark.parametrize(
    ("processes", "visible", "sharing"),
    [
        (None, ["2", "3", "5", "7"], "1111"),
        (2, ["2,3", "5,7"], "11"),
        (1, ["2,3,5,7"], "1"),
        (3, ["2", "3", "5"], "111"),
        (5, ["2", "3", "5", "7", "2"], "21112"),
    ],
)
def test_processes_divide_the_gpus(
    processes: int | None, visible: list[str], sharing: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One each by default; with fewer processes, several, for `model.device_map`; with more, some share one."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "2,3,5,7")
    given, shared = list[str](), list[str]()

    def popen(command: list[str], env: dict[str, str], **options: Any) -> Any:
        given.append(env["CUDA_VISIBLE_DEVICES"])
        shared.append(env[PROCESSES])
        return SimpleNamespace(stderr=io.StringIO(), wait=lambda: 0)

    monkeypatch.setattr(subprocess, "Popen", popen)
    sweep = PendingSweep(("kvbench",), ResultsFolder(tmp_path), lambda shards: [])
    assert LocalProcesses(processes=processes).launch(sweep) == 0
    assert (given, "".join(shared)) == (visible, sharing)


def test_processes_of_a_gpu_have_equal_parts_of_it(
    calls: list[tuple[str, torch.device]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of 80 GiB, 4 of them reserved by this process, 1 of these free: 9 are free in all, 7 left of an eighth."""
    for processes, free in (("1", 10), ("8", 7), ("2", 10), ("none", 10)):
        monkeypatch.setenv(PROCESSES, processes)
        assert free_bytes([FIRST]) == free * GIB


def test_what_a_process_holds_of_a_shared_gpu_is_counted_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Hours of a device, and its energy."""
    monkeypatch.setattr(energy, "energy_meter", lambda devices: lambda: 100.0)
    for processes, held in (("1", 1), ("4", 0.25)):
        monkeypatch.setenv(PROCESSES, processes)
        context = work_sweep._with_devices(RunContext(), {FIRST}, 1)
        assert context.devices == held and context.joules is not None and context.joules() == 100 * held


def test_a_model_on_a_shared_gpu_runs_out_of_its_own_part(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows name the number of processes, since times depend on it."""
    limits: list[tuple[float, torch.device]] = []
    with PretendedGpu(interpret=False):
        monkeypatch.setattr(torch.cuda, "set_per_process_memory_fraction", lambda *limit: limits.append(limit))
        info, devices = model_info(ModelSpec("reference", device="cuda", kernels="torch")), []
        for processes in ("1", "4"):
            monkeypatch.setenv(PROCESSES, processes)
            devices.append(load(info).device)
    assert limits == [(0.25, FIRST)] and [device.get("processes") for device in devices] == [None, 4]
