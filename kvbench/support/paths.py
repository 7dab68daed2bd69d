"""Paths of the data files that are shipped with the code: settings, published numbers, the embedded model.

In a wheel `conf` and `results/papers` are inside the package (`hatch_build.py` puts them there), in a checkout beside
it. The package is searched first: folders beside an installed package belong to other software.
"""

import os
from functools import cache
from importlib.resources import files
from pathlib import Path

from kvbench.support.errors import MissingFile


def conf() -> Path:
    """Return the folder of the YAML settings: policies, scores, tasks, models. Raises `MissingFile` without it."""
    return _shipped("conf")


@cache
def extras() -> tuple[Path, ...]:
    """Return the folders of the extras inside the package, by name; they stay as they are while a process runs."""
    return tuple(sorted(path.parent for path in (Path(str(files("kvbench"))) / "extras").glob("*/__init__.py")))


def papers() -> Path:
    """Return the folder of the numbers that papers published, one CSV per paper. Raises `MissingFile` without it."""
    return _shipped("results/papers")


def assets() -> Path:
    """Return the folder of the embedded model and its tokenizer. Raises `MissingFile` without it."""
    return _shipped("models/assets")


def home() -> Path:
    """Return the folder of caches that outlive a command: `KVBENCH_HOME`, or `~/.cache/kvbench`."""
    return Path(os.environ.get("KVBENCH_HOME") or Path.home() / ".cache" / "kvbench")


def _shipped(name: str) -> Path:
    """Return the folder `name` inside the package (a wheel), else beside it (a checkout)."""
    package = Path(str(files("kvbench")))
    is_checkout = (package.parent / "pyproject.toml").is_file()
    folders = [package / name, package.parent / name] if is_checkout else [package / name]
    for folder in filter(Path.is_dir, folders):
        return folder
    searched = " or ".join(map(str, folders))
    raise MissingFile(f"no folder {searched}: the installation is incomplete; install kvbench again")
