"""Several processes of this machine work on one sweep; leases divide it among them, unit by unit."""

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import IO

from kvbench.run.launch.work import SIGNALS, Work, check_signals
from kvbench.support.errors import UserError

VISIBLE = "CUDA_VISIBLE_DEVICES"


@dataclass(frozen=True)
class Local:
    """processes: how many; null is one a GPU, and on a machine without any one a processor."""

    name: str = "local"
    processes: int | None = None
    signals: tuple[str, ...] = SIGNALS

    def __post_init__(self) -> None:
        check_signals(self.signals)
        if self.processes is not None and self.processes < 1:
            raise UserError(f"launcher.processes={self.processes}: legal: null or a number of at least 1")

    def launch(self, work: Work) -> int:
        """Start the processes, pass on signals and what they say, and wait for all.

        The code of the worst: an error before a stop, a stop before rows with errors, those before success.
        """
        gpus = devices(os.environ)
        number = self.processes or len(gpus) or os.cpu_count() or 1
        children = [
            subprocess.Popen(
                [sys.executable, "-m", *work.command],
                env=_environment(os.environ, gpus, place),
                stdout=subprocess.DEVNULL,  # each would print the table
                stderr=subprocess.PIPE,
                text=True,
                errors="replace",
            )
            for place in range(number)
        ]
        speakers = [threading.Thread(target=_tell, args=(place, child.stderr)) for place, child in enumerate(children)]
        for speaker in speakers:
            speaker.start()
        codes = _wait(children, self.signals)
        for speaker in speakers:
            speaker.join()
        return worst(codes)


def devices(variables: Mapping[str, str]) -> Sequence[str]:
    """The GPUs that this process may use, as CUDA_VISIBLE_DEVICES names them."""
    if VISIBLE in variables:
        return [name for name in variables[VISIBLE].split(",") if name.strip() and name.strip() != "-1"]
    try:
        listed = subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True, timeout=60, check=True).stdout
    except (OSError, subprocess.SubprocessError):
        return []
    return [str(number) for number, line in enumerate(line for line in listed.splitlines() if line.startswith("GPU "))]


def worst(codes: Sequence[int]) -> int:
    """One code for several processes. A process that a signal ended is unexpected (1), unless others went on."""
    order = (0, 4, 130, 75, 5, 3, 2, 1)
    return max((code if code in order else 1 for code in codes), key=order.index, default=0)


def _environment(variables: Mapping[str, str], gpus: Sequence[str], place: int) -> dict[str, str]:
    """One GPU a process, in turn where there are more processes."""
    return {**variables, **({VISIBLE: gpus[place % len(gpus)]} if gpus else {})}


def _tell(place: int, said: IO[str] | None) -> None:
    assert said is not None
    with said:
        for line in said:
            print(f"[{place}] {line}", end="", file=sys.stderr, flush=True)


def _wait(children: Sequence["subprocess.Popen[str]"], names: Sequence[str]) -> list[int]:
    """The codes of all. Signals go on to them; an interrupt too, unless the terminal has told them already."""

    def pass_on(number: int, frame: object) -> None:
        for child in children:
            if child.poll() is None:
                child.send_signal(number)

    before = {}
    try:
        for name in ("SIGINT", *names):
            before[signal.Signals[name]] = signal.signal(signal.Signals[name], pass_on)
        return [child.wait() for child in children]
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
