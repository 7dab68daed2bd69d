"""results.kept: what cells kept, beside their rows."""

from pathlib import Path

from kvbench.records import read_kept
from tests.cli.conftest import Command, rows_of


def test_kept_sets_are_written_beside_the_rows(kvbench: Command, tiny: tuple[str, ...]) -> None:
    kvbench("run", *tiny, "policy=full,h2o", "budget=0.2", "results.kept=positions")
    kept = read_kept("out")
    assert {(row.cell, row.sample): row.kept_sha256 for row in rows_of(Path("out"))} == {
        key: own.sha256 for key, own in kept.items()
    }
    bad = kvbench("run", *tiny, "results.kept=everything")
    assert bad.code == 2 and "results.kept=everything: legal: 'none', 'lengths' or 'positions'" in bad.err
    several = kvbench("run", *tiny, "results.kept=none,lengths")
    assert several.code == 2 and "results.kept lists 2 values: none, lengths; a sweep has one" in several.err
