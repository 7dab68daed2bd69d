"""Where the files that travel with the code lie: settings, published numbers, the embedded model.

Two arrangements exist. In a wheel ``conf`` and ``results/papers`` lie inside the package; in a checkout, and so in an
editable install, they lie beside it (``hatch_build.py`` is the writing side). The package is asked first, because what
happens to lie beside an installed one belongs to somebody else. Knows nothing about what is in the folders.
"""

import os
from importlib.resources import files
from pathlib import Path

from kvbench.support.errors import MissingFile


def conf() -> Path:
    """The folder of the YAML settings: policies, scores, tasks, models.

    Raises ``FileNotFoundError`` where the installation has lost it.
    """
    return _travelling("conf", package=_package())


def papers() -> Path:
    """The folder of the numbers that papers published, one CSV a paper.

    Raises ``FileNotFoundError`` where the installation has lost it.
    """
    return _travelling("results/papers", package=_package())


def assets() -> Path:
    """The folder of the embedded model and its tokenizer: part of the package wherever it is installed.

    Raises ``FileNotFoundError`` where the installation has lost it.
    """
    return _found([_package() / "models" / "assets"])


def home() -> Path:
    """The folder for what is worth remembering between commands: `KVBENCH_HOME`, or `~/.cache/kvbench`."""
    named = os.environ.get("KVBENCH_HOME")
    return Path(named) if named else Path.home() / ".cache" / "kvbench"


def _package() -> Path:
    return Path(str(files("kvbench")))


def _travelling(name: str, package: Path) -> Path:
    """The folder ``name`` of a wheel, else the one of the checkout that ``package`` stands in."""
    inside, beside = package / name, package.parent / name
    is_checkout = (package.parent / "pyproject.toml").is_file()
    return _found([inside, beside] if is_checkout else [inside])


def _found(places: list[Path]) -> Path:
    for place in places:
        if place.is_dir():
            return place
    looked = " or ".join(str(place) for place in places)
    raise MissingFile(f"no folder {looked}: the installation is incomplete; install kvbench again")
