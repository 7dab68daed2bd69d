"""Wheels of a package index, downloaded by pip: its settings name the index, mirror, proxy and certificates.

Nothing is installed, and no package that the wheel depends on is downloaded.
"""

import math
import os
import re
import shutil
import subprocess
import sys
import time
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from tempfile import mkdtemp

from kvbench.support.children import python
from kvbench.tasks.data.download import FIRST_SECONDS, Unobtained, Unreachable, Watcher
from kvbench.tasks.data.lock import Download

SECONDS_BETWEEN_LOOKS = 0.5
RETRIES = "2"
"""How often pip asks again, unless PIP_RETRIES says it."""
PATIENCE = ("PIP_RETRIES", "PIP_DEFAULT_TIMEOUT")
"""Variables with which a user says how long pip waits for its index; otherwise it has `FIRST_SECONDS` for a first byte
of the wheel: a machine without a network says so soon.
"""
BROKEN = "after connection broken by"
_ERRNO = re.compile(r"\[Errno -?\d+\] ([^'\")]+)")
"""What pip says when it asks again, and why."""


def fetch_wheel(download: Download, partial: Path, watcher: Watcher) -> None:
    """Write the wheel to `partial`. pip compares it with the locked SHA-256 before it is moved there.

    Raises Unobtained without pip, and with the reason of pip if it cannot download the wheel or it has another SHA-256;
    Unreachable if nothing of it comes.
    """
    if find_spec("pip") is None:
        raise Unobtained(f"{download.origin} is downloaded by pip: {sys.executable} -m ensurepip installs it")
    for stale in partial.parent.glob(f"{partial.stem}.pip*"):  # of a process that was killed
        shutil.rmtree(stale, ignore_errors=True)
    folder = Path(mkdtemp(prefix=f"{partial.stem}.pip", dir=partial.parent))
    try:
        pinned = folder / "requirements.txt"
        pinned.write_text(f"{download.package}=={download.revision} --hash=sha256:{download.sha256}\n")
        watcher.begin(download.name, download.bytes, 0)
        _run_pip(["--requirement", str(pinned), "--dest", str(folder)], folder, watcher, download)
        (folder / download.name).replace(partial)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _run_pip(options: list[str], folder: Path, watcher: Watcher, download: Download) -> None:
    """Download what the options name, and tell the watcher how the largest file of pip grows."""
    flags = ["--no-deps", "--only-binary=:all:", "--require-hashes", "--progress-bar=off", "--no-input", "--quiet"]
    command, temporary = python("-m", "pip", "download", *flags, *options), folder / "temporary"
    temporary.mkdir()
    with (folder / "errors").open("w+", encoding="utf-8", errors="replace") as errors:
        environment = {"PIP_RETRIES": RETRIES} | os.environ
        environment |= {"TMPDIR": str(temporary), "PIP_DISABLE_PIP_VERSION_CHECK": "1"}
        end = math.inf if any(name in os.environ for name in PATIENCE) else time.monotonic() + FIRST_SECONDS
        process = subprocess.Popen(command, stdout=errors, stderr=errors, env=environment)
        try:
            reported = 0
            while process.poll() is None:
                try:
                    process.wait(SECONDS_BETWEEN_LOOKS)
                except subprocess.TimeoutExpired:
                    size = _largest(temporary)
                    watcher.advance(max(0, size - reported))
                    reported = max(reported, size)
                if not reported and time.monotonic() >= end:
                    raise Unreachable(
                        f"pip has nothing of {download.package}=={download.revision} after {FIRST_SECONDS:g} s: its "
                        f"index does not answer; {PATIENCE[1]}=SECONDS waits longer"
                    )
        finally:
            process.kill()
            process.wait()
        errors.seek(0)
        lines = [line.strip() for line in errors if line.strip()]
    if process.returncode or not (folder / download.name).is_file():
        reasons = [line.removeprefix("ERROR: ") for line in lines if line.startswith("ERROR: ")] or lines[-1:]
        reason = "; ".join(reasons) or f"it ended with {process.returncode}"
        failed = f"pip could not download {download.package}=={download.revision}"
        if broken := [line for line in lines if BROKEN in line]:  # and therefore found no version
            cause = _ERRNO.search(broken[-1])
            raise Unreachable(f"{failed}: no connection to its index{f': {cause[1]}' if cause else ''}")
        raise Unobtained(f"{failed}: {reason}")


def _largest(folder: Path) -> int:
    """Return bytes of the largest file in a folder that another process writes, and takes files and folders away
    from.
    """
    largest = 0
    for parent, _, names in os.walk(folder):
        for name in names:
            with suppress(FileNotFoundError):
                largest = max(largest, os.lstat(os.path.join(parent, name)).st_size)
    return largest
