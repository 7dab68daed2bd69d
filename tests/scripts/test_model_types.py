"""docs/reference/model-types.md: each type is read as transformers reads it, or refused for a reason."""

import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from scripts.model_types.__main__ import PAGE, outcomes
from scripts.model_types.checks import Outcome, outcome_of

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize(
    ("model_type", "layers"),
    [
        ("deepseek_v3", "2 evicted, latents"),
        ("kimi_linear", "1 evicted, 1 recurrent, latents"),
        ("bart", "2 evicted"),
        ("roberta", "2 evicted"),
        ("jamba", "1 evicted, 1 recurrent"),
        ("zamba2", "2 evicted, 3 recurrent"),
    ],
)
def test_types_that_differ_most_from_llama_are_read(model_type: str, layers: str) -> None:
    """Latents; positions by the length of a cache, also from the padding token; shared layers."""
    outcome = outcome_of(model_type)
    assert (outcome.reason, outcome.layers) == ("", layers)
    assert 0 < max(outcome.keep_all, outcome.evicted) < 1e-3


def test_values_narrower_than_keys_are_refused() -> None:
    assert outcome_of("mimo_v2_flash").reason.startswith("layer 0 has keys of 12 numbers and values of 8: only caches")


def test_a_type_that_fails_does_not_stop_the_others() -> None:
    torch.set_num_threads(1)
    failed, refused = sorted(outcomes(["no_such_type", "mamba"], 2), key=lambda outcome: "mamba" in outcome.model_type)
    assert failed.reason.startswith("FAILED: ") and "no_such_type" in failed.reason
    assert refused == Outcome("mamba", "no layer of mamba caches keys and values, so nothing can be evicted")


@pytest.mark.slow
def test_the_page_is_current(tmp_path: Path) -> None:
    """All types: five minutes on two cores."""
    page = tmp_path / "page.md"
    done = subprocess.run(
        [sys.executable, "-m", "scripts.model_types", "--page", page], cwd=ROOT, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert page.read_text("utf-8") == PAGE.read_text("utf-8")
    read = re.search(r"(\d+) of the \d+ causal types", page.read_text("utf-8"))
    assert read and int(read[1]) >= 150
