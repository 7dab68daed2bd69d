"""The script behind the history page: each run is added, compared with the one before, and drawn."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "scripts" / "history.sh"
SUITE = ["policy=full,snapkv", "budget=0.2", "task.context_length=512", "task.samples=1"]


@pytest.mark.slow
def test_two_runs_make_a_history(tmp_path):
    environment = os.environ | {"KVBENCH": f"{sys.executable} -m kvbench", "KVBENCH_GATE": "--allow-undecided"}
    for _ in range(2):
        command = ["bash", str(SCRIPT), str(tmp_path / "site"), *SUITE]
        ran = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300)
        assert ran.returncode == 0, ran.stderr
    assert "gate INCONCLUSIVE" in ran.stdout and "which is allowed" in ran.stdout
    page = (tmp_path / "site" / "index.html").read_text()
    assert page.count("<h3") == 2 and ": inconclusive" in page and ": first" in page
    assert (tmp_path / "site" / "latest.html").exists()
