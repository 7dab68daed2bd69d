"""What plans and runs warn of: cells whose budget is below the protected tokens, as their rows then say."""

import json
from pathlib import Path

import pytest

from kvbench.config.cells import CellBuilder
from kvbench.config.compose import combinations
from kvbench.config.overrides import parse
from kvbench.extras.hints.below_protected import below_protected
from kvbench.run.plan import plan
from kvbench.support.shared_gpus import PROCESSES
from tests.cli.conftest import Command, rows_of

WARNING = (
    "kvbench: warning: each row of 2 cells will fail, as the budget is below the tokens that the policy protects: "
    "snapkv attn at budget=0.01 (5 of at most 512 tokens, 32 protected); raise budget= or protect fewer tokens\n"
)


def warned(words: str) -> str | None:
    return below_protected(plan([CellBuilder().cell(tree) for tree in combinations(parse(words.split()))], set()))


def test_a_plan_and_a_run_name_the_cells_of_which_each_row_fails(kvbench: Command, tiny: tuple[str, ...]) -> None:
    """Once per method, whatever the tasks; not again where the rows are there."""
    words = (*tiny, "policy=snapkv,streaming_llm", "budget=0.01,0.1", "task=ruler/niah_single_1,ruler/fwe")
    assert WARNING in kvbench("plan", *words).err and WARNING in kvbench("plan", *words, "--json").err
    ran = kvbench("run", *words, "--quiet")
    assert ran.code == 4 and ran.err.startswith(WARNING)
    failed = {(row.policy, row.budget) for row in rows_of(Path("out")) if row.error is not None}
    assert failed == {("snapkv", "0.01")}
    assert "will fail" not in kvbench("run", *words).err


def test_a_process_of_a_launcher_leaves_warnings_to_it(
    kvbench: Command, tiny: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(PROCESSES, "1")
    assert "will fail" not in kvbench("run", *tiny, "policy=snapkv", "budget=0.01", "task=ruler/fwe").err


def test_texts_of_their_own_lengths_are_counted(tmp_path: Path) -> None:
    """The longest prompt decides: what fails there fails on each. A share of the budget is never above it."""
    file, long = tmp_path / "prompts.jsonl", "The sky is blue today. " * 60
    file.write_text("".join(json.dumps({"context": text, "answers": ["blue"]}) + "\n" for text in ("The sky", long)))
    words = f"task=jsonl task.path={file} task.samples=2"
    assert warned(f"{words} policy=snapkv,h2o,streaming_llm budget=0.2") is None
    told = warned(f"{words} policy=snapkv,h2o budget=0.01")
    assert told is not None and "each row of 1 cell will fail" in told and ", 32 protected)" in told


@pytest.mark.parametrize(
    "words",
    [
        "policy=full,plain budget=0.001",
        "policy=snapkv budget=64",
        "policy=snapkv budget=0.001 policy.recent=0",
        "task=efficiency policy=snapkv budget=0.001",
        "policy=snapkv budget=1.0",
    ],
)
def test_what_protects_nothing_or_has_no_prompts_is_not_named(words: str) -> None:
    assert warned(words) is None
