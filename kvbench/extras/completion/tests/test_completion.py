"""`kvbench completion`: what is offered is what is allowed, and the scripts say it to their shells."""

import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import get_args

import pytest

from kvbench.cli.list import GROUPS
from kvbench.cli.main import commands, declared, main
from kvbench.config.entries import options
from kvbench.config.overrides import parse
from kvbench.extras.completion import completion
from kvbench.extras.completion.completion import CHOICES, candidates
from kvbench.extras.export import export
from kvbench.report import report_file, row_formats
from kvbench.report.tables import table
from kvbench.run.settings import Reference
from tests.cli.conftest import Command


@pytest.mark.parametrize(
    ("words", "offered"),
    [
        (["st"], ["status"]),
        (["run", "pol"], ["policy=", "policy."]),
        (["run", "policy=h2o_obcache,sn"], ["policy=h2o_obcache,snapkv"]),
        (["run", "score.host=obcache_v"], ["score.host=obcache_value"]),
        (
            ["run", "task=rul"],
            [f"task={name}{end}" for end in ("", "/") for name in ("ruler", "ruler_published", "ruler_v2")],
        ),
        (["run", "task=ruler/niah_single_"], [f"task=ruler/niah_single_{number}" for number in (1, 2, 3)]),
        (["run", "policy.pool.s"], ["policy.pool.size="]),
        (["run", "results."], ["results.dir=", "results.kept=", "results.lease_seconds="]),
        (["run", "policy=h2o_obcache", "--q"], ["--quiet"]),
        (["report", "plot", "n"], ["needle", "new_tokens="]),
        (["report", "table", "policy=h2o_obcache,sn"], ["policy=h2o_obcache,snapkv"]),
        (["compare", "policy=snapkv,score=lav"], ["policy=snapkv,score=lava"]),
        (["report", "table", "--format", "mark"], ["markdown"]),
        (["report", "table", "--results", "res"], []),
        (["paper", "kvzip/chunk"], ["kvzip/chunk_size"]),
        (["data", "pull", "pg"], ["pg19"]),
        (["nothing", ""], []),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else None,
)
def test_what_is_offered(words: list[str], offered: list[str]) -> None:
    assert candidates(words) == offered


def test_every_setting_that_is_offered_is_one(capsys: pytest.CaptureFixture[str]) -> None:
    """Each can be read by the grammar, and belongs to a run or to a name of a group. It is printed in a line."""
    for group in ("model", "task", "policy", "score", "schedule", "results", "data", "launcher", "logger"):
        offered = candidates(["run", f"{group}."])
        assert offered and len(offered) == len(set(offered))
        for word in offered:
            parse([f"{word}1"])
    assert main(["completion", "--ask", "run", "policy=ada"]) == 0
    assert capsys.readouterr().out == "policy=ada_pyramidkv\npolicy=ada_snapkv\n"
    assert main(["completion", "--ask", "gate", "--"]) == 0
    assert {"--allow-undecided", "--baseline"} <= {*capsys.readouterr().out.split()}, "a line that ends with two dashes"


def test_names_are_those_of_the_lists(kvbench: Command) -> None:
    assert set(candidates(["list", ""])) == {*GROUPS, "reports", "settings", "columns"}
    for group in ("policy", "score", "model"):
        assert {word.partition("=")[2] for word in candidates(["run", f"{group}="])} >= {
            name for name in options(group) if "/" not in name
        }
    from kvbench.records import COLUMNS as columns
    from kvbench.support.named import named

    offered = candidates(["report", "plot", ""])
    assert tuple(word for word in offered if "=" not in word) == tuple(named("plot"))
    assert [word.removesuffix("=") for word in offered if "=" in word] == list(columns)


@pytest.mark.parametrize("command", commands())
def test_flags_are_those_that_help_tells(kvbench: Command, command: str) -> None:
    finished = kvbench("help", command)
    flags = set(re.findall(r"(?<![\w-])--[a-z][a-z-]+", finished.out))
    assert flags <= {*declared(command).flags(), "--help"}


def test_formats_are_those_that_commands_take() -> None:
    assert candidates(["report", "table", "--format", ""]) == list(table.FORMATS)
    for line in ("report efficiency", "report cost", "compare", "probe"):
        assert candidates([*line.split(), "--format", ""]) == list(report_file.FORMATS), line
    assert candidates(["report", "rows", "--format", ""]) == list(row_formats.ROW_FORMATS)
    assert candidates(["export", "--format", ""]) == list(export.FORMATS)


def script(shell: str, folder: Path) -> str:
    """A script, and a `kvbench` of this checkout on the path."""
    (folder / "bin").mkdir()
    command = folder / "bin" / "kvbench"
    command.write_text(f'#!/bin/sh\nexec {sys.executable} -m kvbench "$@"\n')
    command.chmod(0o755)
    (folder / "script").write_text(Path(completion.__file__).with_suffix(f".{shell}").read_text("utf-8"))
    return f"PATH={folder}/bin:$PATH"


BASH = """
set -u; {path}; source {folder}/script
COMP_WORDBREAKS=$' \\t\\n"\\'><=;|&(:'
COMP_LINE='{line}'; COMP_POINT=${{#COMP_LINE}}; _kvbench; printf '%s\\n' "${{COMPREPLY[@]}}"
"""


@pytest.mark.parametrize(
    ("line", "replies"),
    [
        ("kvbench run policy=h2o_obcache,sn", ["h2o_obcache,snapkv"]),
        ("kvbench run policy=h2o_obcache sc", ["score=", "score.", "schedule."]),
    ],
)
def test_bash_replaces_what_comes_after_the_sign(tmp_path: Path, line: str, replies: list[str]) -> None:
    """readline breaks words at = and puts the reply behind it."""
    text = BASH.format(path=script("bash", tmp_path), folder=tmp_path, line=line)
    done = subprocess.run(["bash", "-c", text], capture_output=True, text=True, check=True, timeout=60)
    assert (done.stdout.split(), done.stderr) == (replies, "")


@pytest.mark.skipif(shutil.which("fish") is None, reason="no fish here")
def test_fish_offers_whole_words(tmp_path: Path) -> None:
    text = f"set -x PATH {tmp_path}/bin $PATH; source {tmp_path}/script; complete -C 'kvbench run policy=sn'"
    script("fish", tmp_path)
    done = subprocess.run(["fish", "-c", text], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.split("\t")[0].strip() == "policy=snapkv", done.stderr


@pytest.mark.skipif(shutil.which("zsh") is None, reason="no zsh here")
def test_zsh_reads_its_script(tmp_path: Path) -> None:
    """That it parses and registers; what is offered is the same answer as elsewhere."""
    script("zsh", tmp_path)
    text = f"autoload -U compinit; compinit -D -u; source {tmp_path}/script; print -r -- $_comps[kvbench]"
    done = subprocess.run(["zsh", "-f", "-c", text], capture_output=True, text=True, check=True, timeout=60)
    assert (done.stdout.strip(), done.stderr) == ("_kvbench", "")


def test_values_that_are_words_are_those_of_a_run() -> None:
    """One list for completion, one for what a cell takes."""
    assert get_args(Reference) == CHOICES["reference"]
    assert set(candidates(["run", "store=flat,k"])) == {"store=flat,kivi4", "store=flat,kivi2"}
    assert candidates(["plan", "protocol=p"]) == ["protocol=paper"]
    assert candidates(["conform", "store=k"]) == []
    assert candidates(["list", "scores", "ob"]) == ["obcache_joint", "obcache_key", "obcache_value"]
    assert "snapkv" in candidates(["list", "policies", "h2o_obcache", "sn"])
