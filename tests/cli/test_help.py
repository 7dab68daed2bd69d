"""Help of every command: what it is, examples that can be run as they stand, and it fits the screen."""

import re
import shlex
from pathlib import Path

import pytest

from kvbench.cli.main import commands
from kvbench.cli.parser import fold
from kvbench.config.entries import options
from tests.cli.conftest import Command
from tests.cli.test_comparing import folder, rows

EXAMPLE = re.compile(r"^ +(kvbench .*)$", re.MULTILINE)
HYDRA = "== Groups"


@pytest.fixture(scope="module")
def examples() -> dict[str, list[str]]:
    """Examples by command, from their help."""
    import contextlib
    import io

    from kvbench.cli.main import main

    by_command = {}
    for command in commands():
        out = io.StringIO()
        with contextlib.redirect_stdout(out):
            assert main([command, "--help"]) == 0
        by_command[command] = [line.strip() for line in EXAMPLE.findall(out.getvalue().partition(HYDRA)[0])]
    return by_command


def test_every_command_has_examples(examples: dict[str, list[str]]) -> None:
    for command, lines in examples.items():
        own = [line for line in lines if line.startswith(f"kvbench {command}")]
        assert own or command == "completion", command
        assert all(line.split()[1] in commands() for line in lines), command


@pytest.mark.parametrize("command", ["report", "compare", "gate", "export", "status", "cancel", "list"])
def test_examples_that_read_are_run(
    kvbench: Command, examples: dict[str, list[str]], tmp_path: Path, command: str
) -> None:
    """On results as the examples name them; a usage error is one whatever the rows are."""
    for name in ("runs", "before", "after", "reference"):
        cells = [
            rows(policy, 20, score=score, cell=f"{policy}-{score}")
            for policy in ("snapkv", "h2o_obcache")
            for score in ("attn", "obcache_joint")
        ]
        folder(tmp_path / "results" / name, *cells)
    for line in examples[command]:
        words = shlex.split(line)[1:]
        if words[0] != command or words[1:2] in (["history"], ["efficiency"]) or "average" in line:
            continue
        done = kvbench(*words)
        assert done.code in (0, 4, 5), (line, done.err)


@pytest.mark.parametrize("command", ["run", "plan", "heads", "probe"])
def test_settings_of_examples_are_legal(kvbench: Command, examples: dict[str, list[str]], command: str) -> None:
    """Planned; a model or data that is not here ends it with 3, never with 2."""
    for line in examples[command]:
        _, verb, *words = shlex.split(line.replace("--measure", ""))
        if verb not in ("run", "plan", "heads", "probe") or "launcher=slurm" in line or "score.path" in line:
            continue
        files = {"heads.json", "queries.safetensors", "budgets.npy", "heads.png"}
        flags = {word for word in words if word.startswith("-")} | files | {"layer,quantity", "markdown"}
        settings = [word for word in words if word not in flags and not word.startswith("probe.")]
        if verb == "probe":
            assert settings[0] in options("probe")
            settings = settings[1:]
        done = kvbench("plan", *settings, "task.samples=1")
        assert done.code in (0, 3), (line, done.err)


@pytest.mark.parametrize("command", commands())
def test_help_fits_the_screen(kvbench: Command, monkeypatch: pytest.MonkeyPatch, command: str) -> None:
    """Words that cannot be cut aside."""
    texts = {}
    for width in (40, 80, 500):
        monkeypatch.setenv("COLUMNS", str(width))
        texts[width] = kvbench("help", command).out
    for width in (40, 80):
        assert [word for word in texts[width].split() if word != "\\"] == texts[500].split()
    for line in texts[80].splitlines():
        assert len(line) <= 80 or len(line.removesuffix(" \\").split()) <= 2 or "#" in line, line
    assert texts[500].startswith(f"kvbench {command}")
    assert command != "run" or (len(texts[500].splitlines()) <= 40 and "Exit codes" in texts[500])
    assert not re.search(r"\w-$", texts[80], re.MULTILINE), "folded inside a name"


@pytest.mark.parametrize("words", [(), ("model=hf", "policy=cake", "task=longbench/qasper", "launcher=slurm")])
def test_a_list_explains_every_setting(kvbench: Command, words: tuple[str, ...]) -> None:
    """By fields and files; values are those of the line."""
    settings = kvbench("list", "settings", *words, "policy.window=9").out.partition("== All settings")[2]
    lines = dict(re.findall(r"^  ([a-z_.0-9]+)=(?:\S*)(.*)$", settings, re.MULTILINE))
    inner = re.compile(r"task\.(seed|root|member)|policy\.(pool|layers|phases)\.")  # parts are explained as a whole
    assert [name for name, comment in lines.items() if not (comment.strip() or inner.match(name))] == []
    assert {"budget", "results.dir", "policy.window", "launcher.signals"} < set(lines)
    assert "policy.window=9 " in settings


def test_an_example_is_cut_where_a_shell_goes_on() -> None:
    line = "  kvbench compare --results results/runs policy=snapkv,score=attn policy=snapkv,score=obcache_joint"
    (first, second) = fold(line, 80)
    assert first.endswith(" \\") and shlex.split(f"{first}\n{second}".replace("\\\n", "")) == shlex.split(line)


def test_help_of_nothing_is_the_list_of_commands(kvbench: Command) -> None:
    finished = kvbench("--help")
    (more,) = re.findall(r"^More: (.*)$", finished.out, re.MULTILINE)
    explained = re.findall(r"^  ([a-z]+)  +\w", finished.out, re.MULTILINE)
    assert finished.code == 0 and [*explained, *more.split()] == [*commands()]
    assert kvbench("help").out == kvbench("-h").out == kvbench().out == finished.out
