"""Fixtures of tests of commands: `kvbench heads` is one."""

from tests.cli.conftest import kvbench, stopping_model, tiny, tiny_model

__all__ = ["kvbench", "stopping_model", "tiny", "tiny_model"]
