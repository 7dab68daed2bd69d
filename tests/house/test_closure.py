"""How much of the package a reader of the main job must know: what it imports, in all. These limits only fall."""

from functools import cache
from pathlib import Path

import grimp
import pytest

ROOT = Path(__file__).parents[2]
LIMITS = {"kvbench.run.runner": (109, 20_059), "kvbench.cli.run": (196, 32_514)}
"""Files and lines that a module imports directly or not, itself and imports within functions included."""


@cache
def graph() -> grimp.ImportGraph:
    return grimp.build_graph("kvbench", cache_dir=None, exclude_type_checking_imports=True)


def file_of(module: str) -> Path:
    path = ROOT.joinpath(*module.split("."))
    return path / "__init__.py" if path.is_dir() else path.with_suffix(".py")


@pytest.mark.parametrize("module", LIMITS)
def test_the_main_job_imports_no_more_than_before(module: str) -> None:
    files = [file_of(each) for each in {module} | graph().find_upstream_modules(module)]
    most_files, most_lines = LIMITS[module]
    assert len(files) <= most_files
    assert sum(len(file.read_text("utf-8").splitlines()) for file in files) <= most_lines
    assert not [file for file in files if "extras" in file.parts]
