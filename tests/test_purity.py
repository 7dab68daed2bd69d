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


def test_text_knows_nothing_of_torch_and_the_core_nothing_of_hydra() -> None:
    """transformers is entered only when a model is loaded. That torch is there shows that the check sees."""
    text = ["tasks.ruler.niah", "records", "models.loading.spec", "cli.data", "run.runner"]
    core = ["run.local", "eviction.evict", "models.engine", "models.bridge", "models.loading.load", "run.answers"]
    forbidden = ("hydra", "omegaconf", "pydantic", "torch", "transformers")
    loaded = imported(*((f"import kvbench.{name}", forbidden) for name in (*text, *core)))
    assert dict(zip((*text, *core), loaded, strict=True)) == {
        name: ["torch"] * (name in core) for name in (*text, *core)
    }


def test_declarations_and_help_import_nothing_heavy() -> None:
    """Completion and help of a command come from its declaration, within the time of a key press."""
    heavy = ("torch", "transformers", "hydra", "omegaconf", "pydantic", "rich", "pandas", "numpy", "pyarrow")
    calls = [f"declared({name!r}).format_help()" for name in commands()]
    calls += [f"main({arguments!r})" for arguments in (["--help"], ["--version"], [])]
    steps = [(f"from kvbench.cli.main import declared, main; {call}", heavy) for call in calls]
    assert dict(zip(calls, imported(*steps), strict=True)) == {call: [] for call in calls}
