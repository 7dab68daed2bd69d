"""Fixtures of tests of reports, for extras that report."""

from tests.report.conftest import cell, results, small

__all__ = ["cell", "results", "small"]
