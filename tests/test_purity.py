"""What a room must not import, checked in a fresh interpreter, and the check itself checked."""

import subprocess
import sys

from kvbench.cli.main import commands

PROGRAM = """
import sys
for statement, forbidden in {steps!r}:
    exec(statement)
    print("==", *sorted({{name.partition(".")[0] for name in sys.modules}} & set(forbidden)))
"""
Step = tuple[str, tuple[str, ...]]


def imported(*steps: Step) -> list[list[str]]:
    """Of each statement and what is forbidden there: which of it is loaded, in one fresh interpreter for all."""
    done = subprocess.run([sys.executable, "-c", PROGRAM.format(steps=steps)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return [line.split()[1:] for line in done.stdout.splitlines() if line.startswith("==")]


def test_the_core_knows_nothing_of_hydra_and_registers_nothing_when_imported() -> None:
    """transformers is entered only when a model is loaded. That torch is there shows that the check sees."""
    modules = [
        "eviction.evict",
        "models.engine",
        "models.bridge",
        "models.loading.load",
        "run.answers",
    ]
    forbidden = ("hydra", "omegaconf", "pydantic", "torch", "transformers")
    loaded = imported(*((f"import kvbench.{name}", forbidden) for name in modules))
    assert dict(zip(modules, loaded, strict=True)) == {name: ["torch"] for name in modules}


def test_text_and_rows_know_nothing_of_torch() -> None:
    modules = ["tasks.ruler.niah", "records", "models.loading.spec", "cli.data", "run.runner", "run.local"]
    loaded = imported(*((f"import kvbench.{name}", ("torch", "transformers", "hydra")) for name in modules))
    assert loaded == [[], [], [], [], [], ["torch"]], "the last is there to show that the check sees"


def test_help_imports_nothing_heavy() -> None:
    heavy = ("torch", "transformers", "hydra", "omegaconf", "rich", "pandas", "numpy")
    command_lines: tuple[list[str], ...] = (["--help"], ["--version"], [])
    assert imported(
        *((f"from kvbench.cli.main import main; main({arguments!r})", heavy) for arguments in command_lines)
    ) == [[], [], []]


def test_declarations_import_nothing_heavy() -> None:
    """Completion and help of a command come from its declaration, within the time of a key press."""
    heavy = ("torch", "transformers", "hydra", "omegaconf", "pydantic", "rich", "pandas", "numpy", "pyarrow")
    steps = [(f"from kvbench.cli.main import declared; declared({name!r}).format_help()", heavy) for name in commands()]
    assert dict(zip(commands(), imported(*steps), strict=True)) == {name: [] for name in commands()}
