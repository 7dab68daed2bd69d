"""Wheels of a package index, downloaded by pip: its settings name the index, mirror, proxy and certificates.

Nothing is installed, and no package that the wheel depends on is downloaded.
"""

import os
import shutil
import subprocess
import sys
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path

from kvbench.support.children import python
from kvbench.tasks.data.download import Unobtained, Unreachable, Watcher
from kvbench.tasks.data.lock import Download

SECONDS_BETWEEN_LOOKS = 0.5
SETTINGS = {"PIP_RETRIES": "2", "PIP_DISABLE_PIP_VERSION_CHECK": "1"}
"""Of pip, unless the environment has others: a machine without a network says so soon."""
BROKEN = "connection broken by "
FLAGS = ("--no-deps", "--only-binary=:all:", "--require-hashes", "--progress-bar=off", "--no-input", "--quiet")


def fetch_wheel(download: Download, partial: Path, watcher: Watcher) -> None:
    """Write the wheel to `partial`. pip compares it with the locked SHA-256 before it is moved there.

    Raises Unobtained without pip, and with the reason of pip if it cannot download the wheel or it has another SHA-256;
    Unreachable if its index does not answer.
    """
    if find_spec("pip") is None:
        raise Unobtained(f"{download.origin} is downloaded by pip: {sys.executable} -m ensurepip installs it")
    folder = partial.with_suffix(".pip")
    shutil.rmtree(folder, ignore_errors=True)  # of a process that was killed
    folder.mkdir()
    try:
        _run_pip(download, folder, watcher)
        (folder / download.name).replace(partial)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _run_pip(download: Download, folder: Path, watcher: Watcher) -> None:
    """Download the wheel into a folder, and tell the watcher how it grows."""
    requirement = f"{download.package}=={download.revision}"
    pinned, output = folder / "pinned.txt", folder / "output.txt"
    pinned.write_text(f"{requirement} --hash=sha256:{download.sha256}\n")
    command = python("-m", "pip", "download", *FLAGS, "--requirement", str(pinned), "--dest", str(folder))
    environment, reported = SETTINGS | os.environ | {"TMPDIR": str(folder)}, 0
    watcher.begin(download.name, download.bytes, 0)
    with output.open("wb") as words:
        process = subprocess.Popen(command, stdout=words, stderr=words, env=environment)
        try:
            while process.poll() is None:
                with suppress(subprocess.TimeoutExpired):
                    process.wait(SECONDS_BETWEEN_LOOKS)
                with suppress(OSError):  # pip moves and removes what it has
                    size = max((path.stat().st_size for path in folder.rglob(download.name)), default=0)
                    watcher.advance(max(0, size - reported))
                    reported = max(reported, size)
        finally:
            process.kill()
            process.wait()
    if process.returncode or not (folder / download.name).is_file():
        lines = [line.strip() for line in output.read_text("utf-8", "replace").splitlines() if line.strip()]
        if broken := [line.split(BROKEN)[1] for line in lines if BROKEN in line]:  # and therefore pip found no version
            raise Unreachable(f"pip could not download {requirement}: no connection to its index: {broken[-1]}")
        reasons = [line.removeprefix("ERROR: ") for line in lines if line.startswith("ERROR: ")] or lines[-1:]
        raise Unobtained(f"pip could not download {requirement}: {'; '.join(reasons) or process.returncode}")
