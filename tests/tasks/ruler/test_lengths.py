"""Prompts are as long as the official rule makes them: never above the label, and few steps of the search below it."""

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.tasks.ruler.conftest import make

STEPS = {
    "niah_single_1": 25,
    "niah_single_2": 500,
    "niah_multikey_1": 500,
    "niah_multikey_2": 25,
    "niah_multikey_3": 25,
    "niah_multiquery": 500,
    "vt": 10,
    "cwe": 60,
}
"""Lines, or words and numbers of a text, by which sizes change from 4096 tokens up; fwe's is a 32nd of them."""
Count = Callable[[str], int]


def check(name: str, context_length: int, era: str, samples: int, root: Path, count_tokens: Count) -> None:
    """Each of so many samples, counted with the tokens to generate."""
    task = make(name, root, context_length=context_length, era=era, samples=samples)
    for sample in task.generate(count_tokens, range(samples)):
        tokens = count_tokens(sample.prompt)
        units = sample.context.count("\n") + 1 if name in ("vt", "niah_single_1") or "multikey_" in name else 0
        lines = units if units > 20 else len(sample.context.split())
        step = (context_length // 32 if name == "fwe" else STEPS[name]) * tokens / lines
        most = context_length + (sample.max_new_tokens if (name, era) == ("fwe", "2024") else 0)
        assert most - sample.max_new_tokens - 3 * step <= tokens <= most - sample.max_new_tokens, (tokens, step)


@pytest.mark.parametrize(
    ("name", "context_length"), [*((name, 4096) for name in [*STEPS, "fwe"]), ("niah_single_2", 8192), ("cwe", 8192)]
)
def test_prompts_of_2026_reach_their_length(name: str, context_length: int, root: Path, count_tokens: Count):
    check(name, context_length, "2026", 1, root, count_tokens)


@pytest.mark.parametrize("name", ["niah_single_1", "niah_multikey_3", "vt", "cwe", "fwe"])
def test_prompts_of_2024_reach_their_length(name: str, root: Path, count_tokens: Count):
    check(name, 4096, "2024", 1, root, count_tokens)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["niah_single_1", "niah_single_2", "vt", "fwe"])
def test_prompts_of_128k_reach_their_length(name: str, root: Path, count_tokens: Count):
    check(name, 131072, "2026", 1, root, count_tokens)
