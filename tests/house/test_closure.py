"""How much of the package a reader of the main job must know: what it imports, in all. These limits only fall."""

from functools import cache
from pathlib import Path

import grimp
import pytest

ROOT = Path(__file__).parents[2]
NAMED = ("kvbench.run.local", "kvbench.run.answers")
"""What the runner names and does not import: the backend of the usual model, the procedure of the usual task."""
LIMITS = {
    ("kvbench.run.runner",): (35, 4_974),
    ("kvbench.run.runner", *NAMED): (84, 14_579),
    ("kvbench.cli.run", *NAMED): (131, 21_110),
}
"""Files and lines that modules import directly or not, they and imports within functions included."""


@cache
def graph() -> grimp.ImportGraph:
    return grimp.build_graph("kvbench", cache_dir=None, exclude_type_checking_imports=True)


def file_of(module: str) -> Path:
    path = ROOT.joinpath(*module.split("."))
    return path / "__init__.py" if path.is_dir() else path.with_suffix(".py")


@pytest.mark.parametrize("modules", LIMITS, ids=lambda modules: f"{modules[0]} and {len(modules) - 1}")
def test_the_main_job_imports_no_more_than_before(modules: tuple[str, ...]) -> None:
    imported = set(modules).union(*map(graph().find_upstream_modules, modules))
    files = [file_of(module) for module in imported]
    most_files, most_lines = LIMITS[modules]
    assert len(files) <= most_files
    assert sum(len(file.read_text("utf-8").splitlines()) for file in files) <= most_lines
    assert not [file for file in files if "extras" in file.parts]
