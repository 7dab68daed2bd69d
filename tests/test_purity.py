"""What a room must not import, checked in a fresh interpreter, and the check itself checked."""

import subprocess
import sys

import pytest

PROGRAM = """
import sys
{statement}
found = sorted({{name.partition(".")[0] for name in sys.modules}} & set({forbidden!r}))
print(",".join(found))
"""


def imported(statement: str, *forbidden: str) -> list[str]:
    """Which of `forbidden` a statement imports in a fresh interpreter."""
    program = PROGRAM.format(statement=statement, forbidden=forbidden)
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    return [name for name in done.stdout.splitlines()[-1].split(",") if name]


@pytest.mark.parametrize(
    "module", ["kvbench.eviction", "kvbench.models.engine", "kvbench.models.load", "kvbench.runner", "kvbench.golden"]
)
def test_the_core_knows_nothing_of_hydra(module: str) -> None:
    assert imported(f"import {module}", "hydra", "omegaconf", "pydantic") == []


@pytest.mark.parametrize(
    "module", ["kvbench.tasks.ruler.niah", "kvbench.records", "kvbench.models.spec", "kvbench.cli.data"]
)
def test_text_and_rows_know_nothing_of_torch(module: str) -> None:
    assert imported(f"import {module}", "torch", "transformers", "hydra") == []


@pytest.mark.parametrize("arguments", [["--help"], ["--version"], []])
def test_help_imports_nothing_heavy(arguments: list[str]) -> None:
    statement = f"from kvbench.cli.main import main; main({arguments!r})"
    assert imported(statement, "torch", "transformers", "hydra", "omegaconf", "rich", "pandas", "numpy") == []


def test_importing_kvbench_registers_nothing() -> None:
    """transformers is entered only when a model is loaded."""
    assert imported("import kvbench.models.bridge, kvbench.models.load", "transformers") == []


def test_the_check_sees_what_is_there() -> None:
    assert imported("import kvbench.cli.compose", "hydra", "torch") == ["hydra"]
    assert imported("import kvbench.eviction", "torch") == ["torch"]
