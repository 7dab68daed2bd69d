"""A small choice of benchmarks/command_lines.py: good lines, faulty ones and lines with changed letters."""

from benchmarks.command_lines import failures
from kvbench.cli.main import commands


def test_generated_lines_end_well() -> None:
    """No traceback, no hang, and none that is accepted though wrong."""
    assert failures(5 * len(commands()), seed=25) == []
