"""Several processes and one folder: two at once, one that is killed, one that left its lock behind."""

import fcntl
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from huggingface_hub import constants

from kvbench.tasks.data.pull import exclusive, pull
from tests.tasks.data.conftest import Locked, plain, sha
from tests.tasks.data.host import Fault, Host
from tests.tasks.data.test_download import CONTENT, Silent
from tests.tasks.data.test_pull import files, hub, only


def until(done: Callable[[], object]) -> None:
    """Wait for something, not for ever."""
    end = time.monotonic() + 20
    while not done():
        assert time.monotonic() < end, "it did not happen within 20 seconds"
        time.sleep(0.005)


@pytest.mark.slow  # depends on two threads meeting while one of them waits
def test_two_pulls_at_once_fetch_once(host: Host, root: Path, locked: Locked, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()  # threads really wait here
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    go = threading.Event()
    served = host.serve("/r1/a", CONTENT, Fault(drop_after=len(CONTENT), stall=go))
    download, watchers = only(locked(plain(host, "a", CONTENT))), [Silent(), Silent()]
    threads = [threading.Thread(target=pull, args=(download, root, watcher)) for watcher in watchers]
    threads[0].start()
    until(lambda: served.ranges)
    threads[1].start()
    until(lambda: watchers[1].messages)
    go.set()
    for thread in threads:
        thread.join(20)
    assert watchers[1].messages == ["a: another process is fetching it; waiting"]
    assert (root / "mine/a").read_bytes() == CONTENT and len(served.ranges) == 1


PROGRAM = """
import sys
from pathlib import Path
from kvbench.tasks.data import lock
lock.FILE = Path(sys.argv[1])
from kvbench.cli.main import main
raise SystemExit(main(["data", "pull", "mine", f"data.root={sys.argv[2]}"]))
"""


def process(file: Path, root: Path, **environment: str) -> "subprocess.Popen[str]":
    """`kvbench data pull mine` in a process of its own."""
    return subprocess.Popen(
        [sys.executable, "-c", PROGRAM, str(file), str(root)],
        env=os.environ | {"HF_HUB_OFFLINE": "0"} | environment,
        stderr=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


def test_a_killed_pull_goes_on_in_the_next_process(host: Host, root: Path, locked: Locked) -> None:
    stall = threading.Event()
    served = host.serve("/datasets/some/one/resolve/c1/a", CONTENT, Fault(drop_after=300_007, stall=stall))
    file = locked(hub("a", "c1", sha256=sha(CONTENT), bytes=len(CONTENT)))
    environment = {"HF_ENDPOINT": host.url, "HF_HOME": str(root.parent / "home")}
    killed = process(file, root, **environment)
    part = root / ".pull" / "mine-a.part"
    until = time.monotonic() + 30
    while not (part.is_file() and part.stat().st_size) and time.monotonic() < until:
        time.sleep(0.01)
    killed.send_signal(signal.SIGKILL)
    killed.communicate()
    stall.set()
    had = part.stat().st_size
    assert 0 < had < len(CONTENT) and files(root) == []
    finished = process(file, root, **environment)
    _, errors = finished.communicate(timeout=60)
    assert finished.returncode == 0, errors
    assert (root / "mine/a").read_bytes() == CONTENT and served.ranges == [None, f"bytes={had}-"]
    assert "continued after" in errors and "licence: CC BY 4.0" in errors


def test_a_lock_of_a_dead_process_is_none(root: Path) -> None:
    """The lock is the kernel's: a file that was left behind holds nobody up."""
    (root / ".pull").mkdir(parents=True)
    lock = root / ".pull" / "x.lock"
    holder = f"import fcntl, os; fcntl.flock(open({str(lock)!r}, 'a'), fcntl.LOCK_EX); os._exit(1)"
    assert subprocess.run([sys.executable, "-c", holder], check=False).returncode == 1 and lock.is_file()
    waited: list[str] = []
    with exclusive(root, "x", lambda: waited.append("x")), lock.open("a") as file:
        assert waited == []
        with pytest.raises(BlockingIOError):
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    with exclusive(root, "x", lambda: waited.append("x")):
        assert waited == []
