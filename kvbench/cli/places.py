"""What `kvbench doctor` finds out about folders: caches, benchmark data, and the room on their disks."""

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

from kvbench.cli.finding import Finding
from kvbench.support import paths
from kvbench.tasks.files import HOME, SOURCES, VARIABLE, absent, command, folder
from kvbench.tasks.ruler.sentences import DOWNLOAD, resolved


def places(root: str | None) -> Iterator[Finding]:
    """The folders that runs read from, and what each family of tasks lacks under `data.root`."""
    yield _hub()
    yield Finding("ok", "KVBENCH_HOME", f"{_room(paths.home())}; hashes of large model files")
    under = folder(root)
    whose = (
        "data.root"
        if root
        else VARIABLE
        if os.environ.get(VARIABLE)
        else HOME
        if os.environ.get(HOME)
        else f"the default; data.root or {VARIABLE} names another"
    )
    yield Finding("ok" if under.is_dir() else "-", "data.root", f"{_room(under)} ({whose})")
    for name, source in SOURCES.items():
        lacking = absent(root, source)
        if lacking:
            text = f"{source.tasks}: no {', '.join(lacking)} under {under}"
            yield Finding("-", f"data {name}", text, command(root, name))
        else:
            yield Finding("ok", f"data {name}", source.tasks)
    yield _splitter()


def _hub() -> Finding:
    try:
        from huggingface_hub import constants
    except Exception:  # transformers does not load either, which is said with the packages
        return Finding("-", "HF_HOME", "huggingface_hub does not load: models of the hub cannot be had")
    offline = "; HF_HUB_OFFLINE is set: only what is there already" if constants.HF_HUB_OFFLINE else ""
    return Finding("ok", "HF_HOME", f"{_room(Path(constants.HF_HOME))}{offline}")


def _splitter() -> Finding:
    """Haystacks of essays differ between the two splitters, and so does their task's version."""
    try:
        if resolved("auto") == "english":
            return Finding("ok", "sentences", "the English Punkt model, as RULER uses it")
    except ValueError as error:
        return Finding("-", "sentences", str(error))
    text = "Punkt without its English model: RULER tasks with essays are not the official ones"
    return Finding("-", "sentences", text, DOWNLOAD)


def _room(path: Path) -> str:
    """A folder, whether it is there, and what is free on the disk that holds it or would hold it."""
    at = path.absolute()
    while not at.exists():
        at = at.parent
    free = shutil.disk_usage(at).free / 2**30
    return f"{path}{'' if path.is_dir() else ' (not there yet)'}, {free:.0f} GiB free"
