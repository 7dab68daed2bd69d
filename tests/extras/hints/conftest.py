"""Fixtures of tests of commands: a hint follows a run."""

from tests.cli.conftest import kvbench, stopping_model, tiny, tiny_model

__all__ = ["kvbench", "stopping_model", "tiny", "tiny_model"]
