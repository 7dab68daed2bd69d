"""What a module or a command must not import, checked in a fresh interpreter, and the check itself checked."""

import os
import subprocess
import sys

from kvbench.cli.main import commands
from tests.embedded import HEAD_DIM, KV_HEADS, LAYERS, QUERY_HEADS

PROGRAM = """
import sys
for statement, forbidden in {steps!r}:
    exec(statement)
    print("==", *sorted({{*sys.modules}} & set(forbidden)))
"""
Step = tuple[str, tuple[str, ...]]
"""A statement, and the modules that may not be loaded after it."""


def imported(*steps: Step) -> dict[str, list[str]]:
    """Of each statement what is loaded that is forbidden there, in one fresh interpreter for all statements."""
    command = [sys.executable, "-c", PROGRAM.format(steps=steps)]
    without_data = {name: value for name, value in os.environ.items() if name != "KVBENCH_DATA"}
    done = subprocess.run(command, env=without_data, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    loaded = [line.split()[1:] for line in done.stdout.splitlines() if line.startswith("==")]
    return dict(zip((statement for statement, _ in steps), loaded, strict=True))


def test_text_knows_nothing_of_torch_and_the_core_nothing_of_hydra() -> None:
    """transformers is entered only when a model is loaded. That torch is there shows that the check sees."""
    text = ["tasks.ruler.niah", "records", "models.loading.spec", "cli.data", "run.runner"]
    core = ["run.local", "eviction.evict", "models.engine", "models.bridge", "models.loading.load", "run.answers"]
    forbidden = ("hydra", "omegaconf", "pydantic", "torch", "transformers")
    steps = {f"import kvbench.{name}": ["torch"] * (name in core) for name in (*text, *core)}
    heads = LAYERS * KV_HEADS
    size = 512 * heads * 2 * HEAD_DIM * 4, heads, QUERY_HEADS // KV_HEADS
    spec = "from kvbench.models.loading.spec import ModelSpec"
    plan = f"{spec}; from kvbench.run.plan_memory import full_bytes; assert full_bytes(ModelSpec('reference'), 512)"
    steps[f"{plan} == {size}"] = ["torch"]
    assert imported(*((step, forbidden) for step in steps)) == steps


def test_declarations_lists_and_records_import_nothing_heavy() -> None:
    """Completion and help of a command come from its declaration, within the time of a key press."""
    heavy = ("torch", "transformers", "hydra", "pandas")
    by_help = (*heavy, "omegaconf", "pydantic", "rich", "numpy", "pyarrow")
    of_library = "import kvbench.run.plan; assert callable(kvbench.run) and kvbench.run.cell.Cell"
    declared = [f"declared({name!r}).format_help()" for name in commands()]
    helped = [f"main({words!r})" for words in (["--help"], ["--version"], [])]
    lists = (["list", "policies", "snapkv"], ["list", "settings", "policy"])
    steps: list[Step] = [
        ("import kvbench", (*by_help, "kvbench.run")),
        *((f"from kvbench.cli.main import declared, main; {call}", by_help) for call in (*declared, *helped)),
        ("import kvbench.records as records; records.environment('cpu')", (*heavy, "tokenizers", "numpy")),
        ("records.read_kept('nowhere')", heavy),
        *((f"assert main({words!r}) == 0", (*heavy, "matplotlib")) for words in lists),
        (f"{of_library} and kvbench.__version__", heavy),
        ("assert main(['doctor']) == 0", (*heavy, "nltk")),
    ]
    assert imported(*steps) == {statement: [] for statement, _ in steps}
