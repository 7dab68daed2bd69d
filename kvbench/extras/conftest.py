"""Fixtures of tests of reports and of commands, for extras that bring one."""

from tests.cli.conftest import kvbench, stopping_model, tiny, tiny_model
from tests.report.conftest import cell, results, small

__all__ = ["cell", "kvbench", "results", "small", "stopping_model", "tiny", "tiny_model"]
