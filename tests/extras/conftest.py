"""Fixtures of tests of reports, for extras that report."""

from tests.report.conftest import cell

__all__ = ["cell"]
