"""A small choice of benchmarks/command_lines.py: good lines, faulty ones and lines with changed letters."""

import pytest

from benchmarks.command_lines import failures
from kvbench.cli.main import commands


@pytest.mark.parametrize("lines_a_command", [3, pytest.param(5, marks=pytest.mark.slow)])
def test_generated_lines_end_well(lines_a_command: int) -> None:
    """No traceback, no hang, and none that is accepted though wrong."""
    assert failures(lines_a_command * len(commands()), seed=25) == []
