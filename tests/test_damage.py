"""A choice of the damages of benchmarks/damage.py, and a few flipped bits."""

import os
from pathlib import Path

import pytest

from benchmarks.damage import (
    ATTACKS,
    COMMANDS,
    DAMAGES,
    OTHER_COMMANDS,
    attacked,
    flipped,
    flipped_beside,
    lost_file,
    side_table,
    table,
)

CHOICE = [
    *("a digit of a value", "a value of 5.0", "a misspelt column", "a column twice", "a spliced row"),
    *("a row of another run", "a row of another cell", "a cut at a line's end", "lines end with CRLF"),
    *("rows without checksums", "rows of a later schema"),
    *("a cell file edited", "cell files exchanged", "cell files gone"),
]
FEW = ["a value of 5.0", "a spliced row", "a row of another cell", "a cell file edited", "cell files gone"]
FEW += ["rows without checksums", "rows of a later schema"]
"""What is tried every time."""


@pytest.mark.parametrize("choice", [FEW, pytest.param(CHOICE, marks=pytest.mark.slow)], ids=len)
def test_no_damage_gives_a_wrong_number(choice: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert table(tmp_path, choice) == 0
    printed = capsys.readouterr().out
    assert f"{len(choice)} damages, {len(choice) * len(COMMANDS)} commands, 0 WRONG" in printed
    assert f"| a value of 5.0 |{' warned |' * len(COMMANDS)}" in printed
    assert f"| cell files gone |{' same number |' * len(COMMANDS)}" in printed
    assert set(choice) <= set(DAMAGES)


def test_a_number_that_changes_in_silence_is_wrong(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kvbench.records.rows_files.zlib.crc32", lambda data, start=0: 0)
    monkeypatch.setattr("kvbench.records.row.zlib.crc32", lambda data, start=0: 0)
    assert table(tmp_path, ["a digit of a value"]) > 0


def test_no_damage_beside_the_rows_gives_a_wrong_number(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    damages = ["a digit of a curve", "a digit of a timing", "a line that is gone", "a probe under another name"]
    damages += ["a second line of a row that differs", "a curve of another row"]
    assert side_table(tmp_path, damages) == 0
    printed = capsys.readouterr().out
    for verdicts in (  # table, efficiency, latency, perplexity, html, probe
        "a digit of a curve | same number | same number | same number | refused | same number | same number",
        "a digit of a timing | same number | refused | refused | same number | same number | same number",
        "a line that is gone | same number | warned | warned | warned | same number | same number",
        "a second line of a row that differs | same number | refused | refused | refused | same number | same number",
        "a curve of another row | same number | same number | same number | refused | same number | same number",
        "a probe under another name | same number | same number | same number | same number | same number | refused",
    ):
        assert f"| {verdicts} |" in printed


@pytest.mark.parametrize("file", ["rows", pytest.param("jobs", marks=pytest.mark.slow)])
def test_no_file_keeps_a_command_waiting_or_ends_it_as_a_bug(
    file: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", os.environ["PATH"])  # which the attacks change
    assert attacked(tmp_path, [file]) == 0
    assert f"1 files, {len(ATTACKS) * len(OTHER_COMMANDS)} commands, 0 WRONG" in capsys.readouterr().out


@pytest.mark.parametrize(("flips", "beside"), [(50, 20), pytest.param(100, 60, marks=pytest.mark.slow)])
def test_no_flipped_bit_is_silent(tmp_path: Path, flips: int, beside: int) -> None:
    assert flipped(tmp_path / "flips", flips) == 0
    assert flipped_beside(tmp_path / "beside", beside) == 0


def test_no_lost_file_of_rows_is_silent(tmp_path: Path) -> None:
    assert lost_file(tmp_path) == 0
