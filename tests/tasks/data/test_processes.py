"""A process that is killed, and the next one."""

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

from tests.tasks.data.conftest import CONTENT, Locked, files, hub, sha
from tests.tasks.data.host import Fault, Host

PROGRAM = """
import sys
from pathlib import Path
from huggingface_hub import constants
constants.DOWNLOAD_CHUNK_SIZE = 1000
from kvbench.tasks.data import lock
lock.FILE = Path(sys.argv[1])
from kvbench.cli.main import main
raise SystemExit(main(["data", "pull", "mine", f"data.root={sys.argv[2]}"]))
"""


def process(file: Path, root: Path, host: Host) -> "subprocess.Popen[str]":
    """`kvbench data pull mine` in a process of its own."""
    hub = {"HF_HUB_OFFLINE": "0", "HF_ENDPOINT": host.url, "HF_HOME": str(root.parent / "home")}
    command = [sys.executable, "-c", PROGRAM, str(file), str(root)]
    return subprocess.Popen(command, env=os.environ | hub, stderr=subprocess.PIPE, text=True)


def test_a_killed_pull_goes_on_in_the_next_process(host: Host, tmp_path: Path, locked: Locked) -> None:
    """The kernel ends the lock with the process that held it."""
    stall, root = threading.Event(), tmp_path / "root"
    served = host.serve("/datasets/some/one/resolve/c1/a", CONTENT, Fault(drop_after=300_007, stall=stall))
    file = locked(hub("a", "c1", sha256=sha(CONTENT), bytes=len(CONTENT)))
    killed, part, end = process(file, root, host), root / ".pull" / "mine-a.part", time.monotonic() + 60
    while not (part.is_file() and part.stat().st_size):
        assert time.monotonic() < end, "nothing came within a minute"
        time.sleep(0.01)
    killed.send_signal(signal.SIGKILL)
    killed.communicate()
    stall.set()
    had = part.stat().st_size
    assert 0 < had < len(CONTENT) and files(root) == []
    finished = process(file, root, host)
    _, errors = finished.communicate(timeout=60)
    assert finished.returncode == 0, errors
    assert (root / "mine/a").read_bytes() == CONTENT and served.ranges == [None, f"bytes={had}-"]
    assert "continued after" in errors and "licence: CC BY 4.0" in errors and "waiting" not in errors
