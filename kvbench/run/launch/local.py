"""The launcher that starts several processes of this machine."""

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import IO, Annotated

from kvbench.run.launch.launcher import Launcher, PendingSweep
from kvbench.run.signals import handling
from kvbench.support.annotations import Help, Range, check_ranges
from kvbench.support.children import python
from kvbench.support.shared_gpus import PROCESSES

VISIBLE = "CUDA_VISIBLE_DEVICES"
MOST_PROCESSES = 1024


@dataclass(frozen=True)
class LocalProcesses(Launcher):
    """Several processes of this machine; leases divide the sweep among them, one prefill job at a time.

    The GPUs are divided among them: with fewer processes than GPUs each has several, which `model.device_map` uses;
    with more, several share one, each with an equal part of its memory.
    """

    name: str = "local"
    processes: Annotated[
        int | None,
        Help("null: one per GPU; more share GPUs; without a GPU one per processor (then set model.threads=1)"),
        Range(1, MOST_PROCESSES),
    ] = None

    def __post_init__(self) -> None:
        check_ranges(self, "launcher")

    def launch(self, work: PendingSweep) -> int | None:
        """Start the processes, pass signals on to them and their stderr through, and wait for all.

        Processes that were killed (out of memory, kill -9) are named, and the others take their prompts over. Returns
        the worst exit code of the others: an error before a stop, a stop before failed rows, those before success; None
        if processes were killed and the others are done, so that the caller makes what is left.
        """
        gpus = devices(os.environ)
        number = self.processes or len(gpus) or os.cpu_count() or 1
        gpus_each = max(1, len(gpus) // number)
        starts = [index * gpus_each % max(1, len(gpus)) for index in range(number)]
        children = [
            subprocess.Popen(
                python("-m", *work.command),
                env={**os.environ, **_of_gpus(gpus[start : start + gpus_each], starts.count(start))},
                stdout=subprocess.DEVNULL,  # each would print the table
                stderr=subprocess.PIPE,
                text=True,
                errors="replace",
            )
            for start in starts
        ]
        readers = [threading.Thread(target=_print, args=(index, child.stderr)) for index, child in enumerate(children)]
        for reader in readers:
            reader.start()
        codes = _wait(children, self.signals)
        for reader in readers:
            reader.join()
        names = {-number: number.name for number in signal.Signals}
        killed = [f"[{index}] {names.get(code, f'signal {-code}')}" for index, code in enumerate(codes) if code < 0]
        code = worst([code for code in codes if code >= 0])
        if not killed:
            return code
        verb = "was" if len(killed) == 1 else "were"
        text = f"kvbench: {len(killed)} of {number} processes {verb} killed ({', '.join(killed)})"
        is_complete = code in (0, 4)
        print(f"{text}; this process runs what the others left" if is_complete else text, file=sys.stderr, flush=True)
        return None if is_complete else code


def devices(variables: Mapping[str, str]) -> Sequence[str]:
    """Return the GPUs that this process may use, as CUDA_VISIBLE_DEVICES names them."""
    if VISIBLE in variables:
        return [name for name in variables[VISIBLE].split(",") if name.strip() and name.strip() != "-1"]
    try:
        listed = subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True, timeout=60, check=True).stdout
    except (OSError, subprocess.SubprocessError):
        return []
    return [str(number) for number, line in enumerate(line for line in listed.splitlines() if line.startswith("GPU "))]


def _of_gpus(gpus: Sequence[str], sharing: int) -> dict[str, str]:
    """Return the variables of a process of so many that share these GPUs, if there are any."""
    return {VISIBLE: ",".join(gpus), PROCESSES: str(sharing)} if gpus else {PROCESSES: "1"}


def worst(codes: Sequence[int]) -> int:
    """Return one exit code for several processes. A process that a signal killed counts as unexpected (1)."""
    order = (0, 4, 130, 75, 5, 3, 2, 1)
    return max((code if code in order else 1 for code in codes), key=order.index, default=0)


def _print(index: int, stream: IO[str] | None) -> None:
    assert stream is not None
    with stream:
        for line in stream:
            print(f"[{index}] {line}", end="", file=sys.stderr, flush=True)


def _wait(children: Sequence["subprocess.Popen[str]"], names: Sequence[str]) -> list[int]:
    """Return the exit codes of all children, minus a signal for one that it killed.

    SIGINT and the named signals are passed on to those that still run; one that is too young to handle it, and ends by
    it, counts as stopped or interrupted.
    """
    stops: dict[int, int] = {}

    def pass_on(number: int, frame: object) -> None:
        stops[-number] = 130 if number == signal.SIGINT else 75
        for child in children:
            if child.poll() is None:
                child.send_signal(number)

    with handling(("SIGINT", *names), pass_on):
        codes = [child.wait() for child in children]
    return [stops.get(code, code) for code in codes]
