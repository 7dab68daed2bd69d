"""Processes that cost next to nothing: forks of the one that tests."""

import gc
import os
import signal
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path


class Forked:
    """Work in a child of this process, which has imported torch already; what it says goes to files of a folder."""

    def __init__(self, work: Callable[[], int], cwd: Path, output_folder: Path) -> None:
        self.returncode: int | None = None
        self._output_paths = [output_folder / name for name in ("out", "err")]
        self.pid = os.fork()
        if self.pid == 0:
            code = 1
            gc.freeze()  # what the parent made is none of the child's garbage
            try:
                for number, path in enumerate(self._output_paths, start=1):
                    os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND), number)
                sys.stdout, sys.stderr = (os.fdopen(number, "w", 1, closefd=False) for number in (1, 2))
                signal.signal(signal.SIGINT, signal.default_int_handler)
                os.chdir(cwd)
                code = int(work())
            except BaseException:
                traceback.print_exc()
            finally:
                sys.stdout.flush()
                os._exit(code)

    def poll(self) -> int | None:
        """Its exit code, minus the signal that ended it, or None while it runs."""
        if self.returncode is None:
            child, status = os.waitpid(self.pid, os.WNOHANG)
            self.returncode = os.waitstatus_to_exitcode(status) if child else None
        return self.returncode

    def wait(self, timeout: float = 180.0) -> int:
        """Its exit code, once it has ended."""
        end = time.monotonic() + timeout
        while (code := self.poll()) is None:
            assert time.monotonic() < end, f"process {self.pid} still runs"
            time.sleep(0.01)
        return code

    def communicate(self, timeout: float = 180.0) -> tuple[str, str]:
        """What it wrote to standard output and to standard error, once it has ended."""
        self.wait(timeout)
        out, err = (path.read_text() for path in self._output_paths)
        return out, err

    def send_signal(self, number: int) -> None:
        """Send it a signal."""
        os.kill(self.pid, number)
