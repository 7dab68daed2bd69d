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


READING = ("report", "compare", "gate", "export", "status", "cancel", "list", "completion")


@pytest.mark.parametrize("command", [name for name in READING if name != "completion"])
def test_examples_that_read_are_run(
    kvbench: Command, examples: dict[str, list[str]], tmp_path: Path, command: str
) -> None:
    """On results as the examples name them; a usage error is one whatever the rows are."""
    for name in ("runs", "before", "after", "reference"):
        cells = [
            rows(policy, 20, score=score) for policy in ("snapkv", "h2o_obcache") for score in ("attn", "obcache_joint")
        ]
        for cell in cells:
            cell[:] = [row.__class__(**{**_asdict(row), "cell": f"{row.policy}-{row.score}"}) for row in cell]
        folder(tmp_path / "results" / name, *cells)
    for line in examples[command]:
        words = shlex.split(line)[1:]
        if words[0] != command or words[1:2] in (["history"], ["efficiency"]) or "average" in line:
            continue
        done = kvbench(*words)
        assert done.code in (0, 4, 5), (line, done.err)


def _asdict(row: object) -> dict[str, object]:
    from dataclasses import asdict

    return asdict(row)  # type: ignore[call-overload]


@pytest.mark.parametrize("command", ["run", "plan", "heads", "probe"])
def test_settings_of_examples_are_legal(kvbench: Command, examples: dict[str, list[str]], command: str) -> None:
    """Planned; a model or data that is not here ends it with 3, never with 2."""
    for line in examples[command]:
        _, verb, *words = shlex.split(line.replace("--measure", ""))
        if verb not in ("run", "plan", "heads", "probe") or "launcher=slurm" in line or "score.path" in line:
            continue
        flags = {word for word in words if word.startswith("-")} | {
            "heads.json",
            "queries.safetensors",
            "budgets.npy",
            "heads.png",
            "layer,quantity",
            "markdown",
        }
        settings = [word for word in words if word not in flags and not word.startswith("probe.")]
        if verb == "probe":
            assert settings[0] in options("probe")
            settings = settings[1:]
        done = kvbench("plan", *settings, "task.samples=1")
        assert done.code in (0, 3), (line, done.err)


@pytest.mark.parametrize("width", [40, 80])
@pytest.mark.parametrize("command", commands())
def test_help_fits_the_screen(kvbench: Command, monkeypatch: pytest.MonkeyPatch, command: str, width: int) -> None:
    """Words that cannot be cut aside."""
    monkeypatch.setenv("COLUMNS", str(width))
    narrow = kvbench("help", command).out
    monkeypatch.setenv("COLUMNS", "500")
    whole = kvbench("help", command).out
    assert [word for word in narrow.split() if word != "\\"] == whole.split()
    for line in narrow.splitlines():
        assert len(line) <= width or len(line.removesuffix(" \\").split()) <= 2 or "#" in line or width < 80, line


def test_the_help_of_a_run_is_a_screen_and_fits_80_columns(kvbench: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    assert len(kvbench("run", "--help").out.splitlines()) <= 40
    monkeypatch.setenv("COLUMNS", "80")
    help_text = kvbench("run", "--help").out
    assert max(map(len, help_text.splitlines())) <= 80 and "Exit codes" in help_text
    assert not re.search(r"\w-$", help_text, re.MULTILINE), "folded inside a name"


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
    assert [*explained, *more.split()] == [*commands()]
    assert kvbench("help").out == kvbench().out == finished.out
