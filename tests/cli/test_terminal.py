"""Streams, screens and pipes: nothing a terminal cannot show, nothing said where nobody reads."""

import io
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from kvbench.cli.main import main
from kvbench.cli.terminal import forgive, tell
from kvbench.records import Recorder
from kvbench.support.children import python
from tests.cli.conftest import Command
from tests.cli.test_comparing import rows

NARROW = 40


def stream(encoding: str, path: Path) -> io.TextIOWrapper:
    return io.TextIOWrapper(path.open("wb"), encoding=encoding, write_through=True)


@pytest.mark.parametrize(
    ("encoding", "written"),
    [
        ("ascii", r"95 % +- 2 x 3, -> ... naive ^v+ \u6771 \ud800"),
        ("latin-1", r"95 % ± 2 × 3, -> ... naïve ^v+ \u6771 \ud800"),
        ("utf-8", r"95 % ± 2 × 3, → … naïve ▲▼† 東 \ud800"),
    ],
)
def test_what_an_encoding_lacks_is_written_as_the_nearest(tmp_path: Path, encoding: str, written: str) -> None:
    out = stream(encoding, tmp_path / "out")
    forgive(out, None, io.StringIO())
    out.write("95 % ± 2 × 3, → … naïve ▲▼† 東 \ud800")
    out.flush()
    assert (tmp_path / "out").read_bytes().decode(encoding) == written


@pytest.fixture
def compared(tmp_path: Path) -> list[str]:
    """Arguments of a table with marks and a dagger."""
    with Recorder(tmp_path / "out") as recorder:
        for policy, right in (("snapkv", 29), ("h2o_obcache", 3)):
            recorder.append(rows(policy, right))
        blank = rows("tova_obcache", 5)
        recorder.append([*blank[1:]])
    return ["report", "table", "--results", str(tmp_path / "out"), "against=h2o_obcache"]


@pytest.mark.parametrize("encoding", ["ascii", "idna", "undefined"])
def test_a_terminal_without_unicode_gets_the_table(
    encoding: str, compared: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """PYTHONIOENCODING=ascii, and errors=strict as the interpreter has it; what writes no lines is UTF-8."""
    monkeypatch.setattr(sys, "stdout", stream(encoding, tmp_path / "said"))
    for command in (compared, ["list", "tasks", "--long"], ["--help"]):
        assert main(command) == 0
    sys.stdout.flush()
    printed = (tmp_path / "said").read_bytes().decode("ascii" if encoding == "ascii" else "utf-8")
    assert "better or worse than h2o_obcache" in printed and ("^" if encoding == "ascii" else "▲") in printed


@pytest.mark.parametrize("command", [["list", "tasks"], ["report", "rows", "--results", "out"]])
def test_a_reader_that_goes_away_is_no_error(
    compared: list[str],
    capfd: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    command: list[str],
) -> None:
    """kvbench list tasks | head -1"""
    monkeypatch.chdir(tmp_path)
    reading, writing = os.pipe()
    os.close(reading)
    out = os.fdopen(writing, "w")
    monkeypatch.setattr(sys, "stdout", out)
    assert main(command) == 0
    out.close()
    assert capfd.readouterr().err == ""


def test_a_run_whose_progress_nobody_reads_is_stopped(tiny: tuple[str, ...], tmp_path: Path) -> None:
    """kvbench run ... 2>&1 | head -1; what was recorded stays, and success would hide what is missing."""
    reading, writing = os.pipe()
    os.close(reading)
    command = python("-m", "kvbench", "run", *tiny, "policy=full")
    ended = subprocess.run(command, cwd=tmp_path, stdout=subprocess.PIPE, stderr=writing)
    os.close(writing)
    assert ended.returncode == 75 and not ended.stdout


def test_an_exit_of_others_is_no_broken_pipe(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.import_module", lambda name: sys.exit(1))
    with pytest.raises(SystemExit):
        main(["list", "tasks"])


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full on this system")
def test_a_full_disk_behind_the_output_is_a_line(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with open("/dev/full", "w") as out:
        monkeypatch.setattr(sys, "stdout", out)
        assert main(["list", "tasks"]) == 1
    assert re.fullmatch(r"kvbench: .*No space left on device.*\n", capfd.readouterr().err)


def test_an_interrupt_before_a_command_is_a_line(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(name: str) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("importlib.import_module", interrupted)
    assert main(["list", "tasks"]) == 130
    assert capsys.readouterr().err == "kvbench: interrupted; run the same command to continue\n"


def test_a_message_is_one_line_whatever_was_in_it(capsys: pytest.CaptureFixture[str]) -> None:
    tell("a\nb\x1b[31m\u202e\r\tc")
    assert capsys.readouterr().err == "kvbench: a b\\x1b[31m\\u202e c\n"


@pytest.mark.parametrize("command", [["list", "scores", "--long"], ["doctor", "--all"]])
def test_lists_fit_a_narrow_screen(kvbench: Command, monkeypatch: pytest.MonkeyPatch, command: list[str]) -> None:
    """Words that are longer than the screen aside: names, paths, commands to paste."""
    monkeypatch.setenv("COLUMNS", str(NARROW))
    table = kvbench(*command).out.partition("\nTo get what only some")[0]
    for line in table.splitlines():
        assert len(line) <= NARROW or not line.strip().rpartition(" ")[0].strip(), line


def test_tables_fit_a_narrow_screen(kvbench: Command, compared: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    from kvbench.report.tables.table import print_table

    out = io.StringIO()
    monkeypatch.setenv("COLUMNS", str(NARROW))
    print_table(compared[3], "text", out)
    assert max(map(len, out.getvalue().splitlines())) <= NARROW


def test_lists_in_a_pipe_are_a_line_each(kvbench: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)
    out = kvbench("list", "policies").out
    assert len(out.splitlines()) == len(json.loads(kvbench("list", "policies", "--json").out))
    assert all(line == line.rstrip() for line in out.splitlines())


@pytest.mark.parametrize(("variables", "coloured"), [({}, True), ({"NO_COLOR": "1"}, False), ({"TERM": "dumb"}, False)])
def test_colour_is_for_terminals_that_want_it(
    kvbench: Command, compared: list[str], monkeypatch: pytest.MonkeyPatch, variables: dict[str, str], coloured: bool
) -> None:
    monkeypatch.delenv("NO_COLOR", raising=False)
    for name, value in ({"TERM": "xterm-256color", "COLUMNS": "100"} | variables).items():
        monkeypatch.setenv(name, value)
    assert "\x1b[" not in kvbench(*compared).out + kvbench("list", "policies").out
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    for command in (compared, ["list", "policies"]):
        shown = kvbench(*command).out
        assert ("\x1b[3" in shown or "\x1b[1m" in shown) == coloured or variables
        assert coloured or not any(f"\x1b[{code}" in shown for code in (31, 32, 33))


def test_json_is_for_programs(kvbench: Command, tmp_path: Path) -> None:
    listed = json.loads(kvbench("list", "scores", "lava", "--json").out)
    assert (
        [score["name"] for score in listed] == ["lava"] and listed[0]["verified"] and listed[0]["source"] == "kvbench"
    )
    checks = json.loads(kvbench("doctor", "--json").out)
    assert {"mark", "name", "text", "command"} == set(checks[0]) and checks[0]["name"] == "kvbench"
    planned = json.loads(kvbench("plan", "policy=full,h2o_obcache", "task.samples=2", "budget=0.1", "--json").out)
    assert (planned["rows"], planned["rows_to_do"]) == (4, 4)
    full, evicting = planned["groups"][0]["cells"]
    assert (full["score"], full["rows"], full["rows_to_do"]) == (None, 2, 2) and evicting["score"] == "attn"
    assert list(tmp_path.iterdir()) == []
    assert kvbench("plan", "policy=h2o_obcache", "--json").err == ""


def test_a_quiet_run_says_nothing(kvbench: Command, tiny: tuple[str, ...]) -> None:
    quiet = kvbench("run", *tiny, "policy=full,h2o_obcache", "budget=0.2", "--quiet")
    assert (quiet.code, quiet.out, quiet.err) == (0, "", "")
    loud = kvbench("run", *tiny, "policy=full,h2o_obcache", "budget=0.2")
    assert "all 6 rows are in out" in loud.err and "h2o_obcache" in loud.out
    failed = kvbench("run", *tiny, "policy=h2o_obcache", "budget=0.01", "--quiet")
    assert failed.code == 4 and failed.out == ""
