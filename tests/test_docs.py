"""The pages of docs/ and README.md: their commands are allowed, their links lead somewhere, their pictures are there.

Here every command is read word by word, which costs milliseconds; tests/test_docs_run.py composes them all and runs
those that can run on the embedded model.
"""

import contextlib
import io
import re
from collections.abc import Callable
from dataclasses import fields
from fnmatch import fnmatchcase
from functools import cache
from pathlib import Path
from pkgutil import resolve_name

import pytest
from hydra.utils import get_class

from kvbench.cli import data
from kvbench.cli.errors import ExitCode
from kvbench.cli.main import declared, main
from kvbench.cli.parser import split_settings
from kvbench.config.compose import RUN
from kvbench.config.entries import content, flat, folders, load_entry, options, step_settings
from kvbench.config.overrides import GROUPS, parse
from kvbench.eviction.budget import parse_budget, parse_bytes
from kvbench.eviction.policy import Policy
from kvbench.eviction.scores.score import Score, ScoreInputs
from kvbench.support import noted
from kvbench.support.named import member
from kvbench.support.plugins import items
from scripts.site_hooks import moved, pages_of_extras
from tests.documented import (
    DOCS,
    MARKS,
    PAGES,
    ROOT,
    Command,
    anchors,
    commands,
    every_block,
    every_command,
    inline_commands,
    links,
    prose,
)
from tests.plugins import made_up

TARGETS = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text("utf-8"), re.MULTILINE))
KVBENCH = [command for command in every_command() if command.program == "kvbench"]
SWEEPS = [
    command
    for command in KVBENCH
    if command.words[1] in ("run", "plan", "heads", "probe", "paper")
    and not command.block.page.startswith("docs/reference")
]
READING = ("report", "compare", "gate", "export", "status", "cancel", "data", "list", "paper", "probe")
READERS = [command for command in KVBENCH if command.words[1] in READING and not command.is_pattern]
OF_RUNS = {name for name, _ in flat(noted.declared(RUN))}
SERVER = content(items("model")["endpoint"])["endpoint"]
"""The settings of a server are beside those of its model."""
PLUGIN = {"half_life"}
"""The setting of the score that docs/extend.md builds, which tests/support/test_plugins.py runs."""


@pytest.mark.parametrize("block", every_block(), ids=str)
def test_a_block_says_what_it_needs(block) -> None:
    is_file = block.language == "python" and block.title.endswith(".py")
    assert is_file or block.title in ("", *MARKS), f"{block}: title {block.title!r} is none of {', '.join(MARKS)}"
    if list(commands(block)):
        assert block.language in ("bash", "console", "text"), f"{block}: commands stand in a bash block"


def test_no_command_hides_in_an_indented_block() -> None:
    for page in PAGES:
        if page.parent.name == "docs":
            assert not re.search(r"^ {4}(kvbench|make|python) ", prose(page), re.MULTILINE), page


@pytest.mark.parametrize("command", every_command(), ids=str)
def test_a_command_exists_with_its_flags(command: Command, help_of: Callable[[str], str]) -> None:
    program, name, *rest = command.words
    if program == "make":
        assert name in TARGETS
    elif program == "python":
        assert name in ("-m",) or (ROOT / name).is_file()
    else:
        assert member("command", name)
        known = help_of(name)
        for word in rest:
            flag = re.match(r"\[?(--[a-z-]+)", word)
            assert flag is None or flag[1] in (*known.split(), *re.findall(r"--[a-z-]+", known)), (
                f"{name} has no {word}"
            )


def test_commands_in_the_text_exist() -> None:
    for page, words in inline_commands():
        if words[0] == "make":
            assert words[1] in TARGETS, (page, words)
        elif re.fullmatch(r"[a-z]+", words[1]):
            assert member("command", words[1]), (page, words)


@pytest.mark.parametrize("command", SWEEPS, ids=str)
def test_settings_of_a_sweep_exist(command: Command) -> None:
    """Names of parts and settings; what they make together is composed by the slow tests."""
    chosen: dict[str, list[str]] = {}
    words = [word for word in command.words[2:] if "=" in word and word[0] not in "-'"]
    for override in parse(words):
        if override.key.startswith("probe."):
            continue
        values = [value.text for value in override.values]
        group, _, field = override.key.partition(".")
        if override.is_group:
            chosen[group] = [name for text in values for name in members(group, text) or [text] * text.endswith(".py")]
            assert chosen[group], f"no {override.text}"
        elif group in GROUPS:
            named = chosen.get(group) or options(group)
            named = [choice for choice in named if not choice.endswith(".py")]
            allowed = {name for choice in named for name in settings_of(group, choice)} | PLUGIN
            assert field.partition(".")[0] in allowed, f"no setting {override.key}"
        else:
            found = override.key in OF_RUNS
            assert found or (group == "endpoint" and field in {*SERVER.keys()}), f"no setting {override.key}"
        if override.key == "budget":
            assert all(parse_bytes(text) is not None or parse_budget(text) for text in values)


def members(group: str, text: str) -> list[str]:
    """The files of a group that a word of the command line means."""
    if text.startswith("sample_"):  # of the plugin that the page builds
        return options(group)[:1]
    pattern = f"{text}/*" if text in folders(group) else text
    return [name for name in options(group) if fnmatchcase(name, pattern)]


@cache
def settings_of(group: str, name: str) -> set[str]:
    """The settings of a file of a group."""
    target = get_class(load_entry(group, name)["_target_"])
    return {*(step_settings() if issubclass(target, Policy) else ()), *(field.name for field in fields(target))}


@pytest.mark.parametrize("command", READERS, ids=str)
def test_words_of_a_report_are_read(command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In an empty folder rows are missing (3); a wrong word is refused before they are looked for (2)."""
    monkeypatch.chdir(tmp_path)
    words = list(command.words[1:])
    match words[0]:
        case "data":
            flags = declared("data").read(words[1:])
            _, names = split_settings(flags.words, ("data.root",))
            assert not any("=" in name for name in names)
            assert flags.verb == "list" or data.chosen(data.read_lock(), names or ("all",))
        case "paper":
            name = declared("paper").read(words[1:]).words[0]
            assert name in ("all", "list", *options("paper"))
        case "probe":
            flags = declared("probe").read(words[1:])
            assert flags.words[0] in options("probe")
        case "list":
            assert main(words) == ExitCode.OK
        case _:
            assert main(words) == ExitCode.DATA


def test_names_of_the_api_exist() -> None:
    pages = sorted((ROOT / "docs" / "reference" / "api").glob("*.md"))
    names = [name for page in pages for name in re.findall(r"^::: (\S+)$", page.read_text("utf-8"), re.MULTILINE)]
    assert names and all(resolve_name(name) for name in names)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_links_lead_somewhere(page: Path) -> None:
    for link in links(page):
        if re.match(r"https?://|mailto:", link):
            continue
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        assert target.exists(), f"{page.name}: no {path}"
        assert target.is_relative_to(ROOT), f"{page.name}: {path} leaves the repository"
        if anchor and target.suffix == ".md" and "api" not in target.parts:
            assert anchor in anchors(target), f"{page.name}: {path} has no heading {anchor}"


def test_former_addresses_lead_to_pages() -> None:
    of_extras = {address: page for page, address in pages_of_extras().items()}
    for former, now in moved().items():
        address, _, heading = now.partition("#")
        page = of_extras.get(f"{address}.md", DOCS / f"{address}.md")
        assert page.is_file() and not (DOCS / f"{former}.md").exists(), former
        assert not heading or heading in anchors(page), now


def test_every_picture_is_shown_and_small() -> None:
    shown = {Path(link).name for page in PAGES for link in links(page)}
    for picture in (DOCS / "images").iterdir():
        assert picture.name in shown, f"{picture.name} is on no page"
        assert picture.stat().st_size < 150_000


def test_python_examples_are_python() -> None:
    for block in every_block():
        if block.language == "python":
            compile(block.text, str(block), "exec")


def test_plain_python_runs(capsys: pytest.CaptureFixture[str]) -> None:
    """The examples of docs/python.md that need no model, one after the other."""
    shared: dict[str, object] = {}
    examples = [block for block in every_block() if block.page == "docs/python.md" and block.language == "python"]
    first = next(i for i, block in enumerate(examples) if "from_dense" in block.text)
    for block in examples[first : first + 2]:
        exec(compile(block.text, str(block), "exec"), shared)
    assert "tensor" in capsys.readouterr().out


def test_what_a_score_declares_is_there() -> None:
    """docs/extend.md: the table names attributes of `Score`, the paragraph below it fields of `ScoreInputs`."""
    page = (DOCS / "extend.md").read_text("utf-8")
    part = page.partition("## What a score declares\n")[2].partition("\n## ")[0]
    first_columns = [row.split("|")[1] for row in re.findall(r"^\|.*`.*", part, re.MULTILINE)]
    names = {name for column in first_columns for name in re.findall(r"`(\w+)", column)}
    assert len(names) > 8 and {name for name in names if not hasattr(Score, name)} == set()
    given = set(re.findall(r"`(\w+)=`", part))
    assert given == {field.name for field in fields(ScoreInputs)}


def part_of(page: str, heading: str) -> str:
    """The text of a page under a heading of the second level."""
    return (DOCS / page).read_text("utf-8").partition(f"\n## {heading}\n")[2].partition("\n## ")[0]


def test_the_files_of_a_new_thing_are_there() -> None:
    """docs/develop.md: the files of one policy, benchmark, report, store, reader and backend, and how many they are."""
    lines = re.findall(
        r"^\| (\w+) \| (`.*`) \| (\d) \|$", part_of("develop.md", "Where a new thing goes"), re.MULTILINE
    )
    assert [thing for thing, *_ in lines] == ["policy", "benchmark", "report", "store", "reader", "backend"]
    for _, files, number in lines:
        paths = re.findall(r"`([^`]+)`", files)
        assert len(paths) == int(number) <= 3 and [path for path in paths if not (ROOT / path).is_file()] == []
        settings = next(path for path in paths if path.endswith(".yaml"))
        target = re.search(r"_target_: ([\w.]+)\.\w+", (ROOT / settings).read_text("utf-8"))
        written = [path for path in paths if path.endswith(".py")]
        assert target and (not written or target[1].replace(".", "/") + ".py" in written)


def test_bases_and_examples_of_other_parts_are_there() -> None:
    """docs/extend.md: stores, readers, steps and backends."""
    part = part_of("extend.md", "Stores, readers, steps and backends")
    lines = [re.findall(r"`([^`]+)`", line) for line in part.splitlines() if line.startswith("|")][2:]
    assert len(lines) == 4
    for named in lines:
        paths = [name for name in named if "/" in name]
        assert len(paths) == 2 and all((ROOT / path).is_file() for path in paths)
        classes = re.findall(r"`(\w+)` of `(kvbench[\w.]+)`", part)
        assert all(hasattr(resolve_name(module), name) for name, module in classes) and len(classes) == 5


def test_the_report_of_the_page_works(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """docs/extend.md: as a part of a plugin, on recorded rows."""
    shown = [block for block in every_block() if block.page == "docs/extend.md"]
    (code,) = (block.text for block in shown if block.title == "longest_answers/__init__.py")
    (settings,) = (block.text for block in shown if "_target_: longest_answers" in block.text)
    files = {"__init__.py": code, "conf/report/longest.yaml": settings}
    monkeypatch.syspath_prepend(str(made_up(tmp_path, "longest_answers", files)))
    rows = ["--results", str(ROOT / "results/reference/variants.parquet"), "--partial"]
    assert main(["report", "longest", *rows, "least=2"]) == 0
    assert re.search(
        r"^Longest answers\n.*^tova_obcache +\d+\n.*^\d+ rows$", capsys.readouterr().out, re.MULTILINE | re.DOTALL
    )
    assert main(["report", "longest", *rows, "least=100000", "--format", "csv"]) == 0
    assert "tova" not in capsys.readouterr().out


def test_fields_of_a_docstring_become_a_list() -> None:
    pytest.importorskip("griffe")
    from scripts.site_docstrings import listed

    text = "What it is.\n\nFirst words. size, kind: how much,\nand what. Raises ValueError: never."
    expected = "What it is.\n\nFirst words.\n\n- `size`, `kind`: how much, and what. Raises ValueError: never."
    assert listed(text, ["size", "kind"]) == expected
    assert listed("size: again; kind: too", ["size", "kind"]) == "- `size`: again;\n- `kind`: too"


@pytest.fixture(scope="module")
def help_of() -> Callable[[str], str]:
    """What a command says of itself."""
    known: dict[str, str] = {}

    def find(name: str) -> str:
        if name not in known:
            out = io.StringIO()
            with contextlib.redirect_stdout(out):
                assert main([name, "--help"]) == ExitCode.OK
            known[name] = out.getvalue()
        return known[name]

    return find


def test_the_first_screen_shows_what_make_demo_runs() -> None:
    """The command of the README is that of the Makefile, but for the folder of the rows."""
    makefile = (ROOT / "Makefile").read_text("utf-8").replace("\\\n", " ")
    demo = set(re.search(r"^DEMO := (.*)$", makefile, re.MULTILINE)[1].split())  # type: ignore[index]
    (shown, *_) = [
        command
        for block in every_block()
        if block.page == "README.md"
        for command in commands(block)
        if "run" in command.words
    ]
    assert demo - set(shown.words) == {"results.dir=results/demo"}
    assert set(shown.words[2:]) <= demo
    text = (ROOT / "README.md").read_text("utf-8")
    tasks = next(word for word in shown.words if word.startswith("task=")).removeprefix("task=").split(",")
    assert [
        task for task in tasks if f"model reference, task {task}, context length 1024, prompts of " in text
    ] == tasks
