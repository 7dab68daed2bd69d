"""Every command of the pages is composed; those that can run on the embedded model are run, on two samples."""

import contextlib
import io
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from urllib.parse import quote, urlencode

import pytest

from kvbench.cli.errors import ExitCode
from kvbench.cli.main import declared, main
from kvbench.config.overrides import parse
from kvbench.extras.probes.run import probing_of
from kvbench.support.errors import MissingFile
from kvbench.work import planned
from tests.documented import ROOT, Block, Command, commands, every_block, every_command
from tests.documented import blocks as blocks_of

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
QUESTIONS = {
    "install": "quick-start",
    "own model": "models",
    "own data": "tasks",
    "write a score": "extend",
    "budget in bytes": "concepts",
    "is the difference significant": "statistics",
    "reproduce a table of a paper": "papers",
    "slurm": "sweeps",
    "out of memory": "models",
    "exit code": "sweeps",
    "meaning of columns": "columns",
    "snapkv": "methods",
}
"""What a newcomer searches for, and the page that answers."""
ELSEWHERE = ("in the plugin's folder", "needs kvpress")
KVBENCH = [
    command for command in every_command() if command.program == "kvbench" and command.block.title not in ELSEWHERE
]
KVBENCH = [command for command in KVBENCH if not command.is_pattern]
RUNNABLE = [
    page
    for page in dict.fromkeys(block.page for block in every_block())
    if any(_.program == "kvbench" for b in blocks_of(ROOT / page) for _ in commands(b))
]
SMALL = ("task.samples=2",)
EFFICIENCY = ("task.context_length=256", "task.batch=1", "task.new_tokens=4", "task.repeats=1", "budget=64")
LONG = dict.fromkeys(("docs/cost.md", "kvbench/extras/efficiency/efficiency.md"), EFFICIENCY)
"""Pages whose commands take long as they stand, and what makes them short."""
WITH_ERRORS = ("docs/reference/disagreements.md",)
"""Pages that say which rows of their runs have an error: budgets that cannot hold the protected tokens."""


def runs_here(block: Block) -> bool:
    """Whether a block needs nothing but kvbench."""
    return block.language == "bash" and (not block.title or block.page in LONG)


def shown(page: str) -> list[Command]:
    """The commands of a page that run on the embedded model."""
    page_commands = [command for block in blocks_of(ROOT / page) if runs_here(block) for command in commands(block)]
    return [command for command in page_commands if command.program == "kvbench" and not command.is_pattern]


@pytest.fixture
def unseen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Look at neither data nor the folder of results, in an empty folder."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(planned, "check_data", lambda cells: None)
    monkeypatch.setattr(planned, "check_unaltered", lambda cells, verifies, tell: None)
    monkeypatch.setattr(planned, "check_writable", lambda path: None)


@pytest.mark.slow
@pytest.mark.usefixtures("unseen")
@pytest.mark.parametrize("command", [command for command in KVBENCH if command.words[1] in ("run", "plan")], ids=str)
def test_a_run_is_legal(command: Command, tmp_path: Path) -> None:
    """Composed and checked, as far as neither data, model nor folder is looked at."""
    words = declared(command.words[1]).read(command.words[2:]).words
    shutil.copy(ROOT / "tests/golden/heads/full_attention_heads.tsv", tmp_path / "heads.json")
    shutil.copy(ROOT / "tests/plugin_sample/kvbench_sample/__init__.py", tmp_path / "my_score.py")
    try:
        with contextlib.redirect_stderr(io.StringIO()):
            _, cells = planned.checked(parse(words), print)
    except MissingFile as error:  # a file of the user's own, such as the weights of gates
        pytest.skip(str(error))
    assert cells


@pytest.mark.slow
@pytest.mark.usefixtures("unseen")
@pytest.mark.parametrize("command", [command for command in KVBENCH if command.words[1] == "probe"], ids=str)
def test_a_probe_is_legal(command: Command) -> None:
    flags = declared("probe").read(command.words[2:])
    try:
        assert probing_of(flags.words[0], flags.words[1:], print, flags.results)[0].cells
    except MissingFile as error:  # the cells of a model are named by its files
        pytest.skip(str(error))


@pytest.mark.slow
@pytest.mark.parametrize("command", [command for command in KVBENCH if command.words[1] == "paper"], ids=str)
def test_an_item_of_a_paper_is_planned(command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    words = [word for word in command.words[1:] if word != "--plan"]
    without_runs = {"--published", "--commands", "--audit", "list"}
    code = main(words if without_runs & {*words} else [*words, "--plan"])
    assert code == ExitCode.OK or (code == ExitCode.INCOMPLETE and "all" in words)  # of all items some need data


@pytest.mark.slow
@pytest.mark.parametrize("page", [page for page in RUNNABLE if shown(page)])
def test_the_commands_of_a_page_run(page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for committed in ("reference", "smollm2"):
        shutil.copytree(ROOT / "results" / committed, tmp_path / "results" / committed)
    for block in blocks_of(ROOT / page):
        if block.language == "python" and block.title.endswith(".py"):
            (tmp_path / block.title).write_text(block.text, "utf-8")
    for command in shown(page):
        name, *words = command.words[1:]
        if name in ("run", "heads", "probe"):
            small = SMALL if name == "probe" else LONG.get(page, SMALL)
            replaced = {word.partition("=")[0] for word in small}
            words = [*(word for word in words if word.partition("=")[0] not in replaced), *small]
        code = main([name, *words])
        incomplete = name in ("report", "compare") or (name == "run" and page in WITH_ERRORS)
        allowed = {ExitCode.OK, ExitCode.INCOMPLETE} if incomplete else {ExitCode.OK}
        assert code in allowed, f"{shlex.join(command.words)}: exit code {code}"


@pytest.mark.slow
def test_plain_python_reads_a_model(capsys: pytest.CaptureFixture[str]) -> None:
    """The examples of docs/python.md, the one with the embedded model too."""
    shared: dict[str, object] = {}
    for block in blocks_of(ROOT / "docs" / "python.md"):
        if block.language == "python" and not block.title:
            exec(compile(block.text, str(block), "exec"), shared)
    assert "4821" in capsys.readouterr().out


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the site, built as `make docs` does."""
    pytest.importorskip("mkdocs")
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    return folder


@pytest.mark.slow
def test_the_site_loads_nothing_from_elsewhere(site: Path) -> None:
    for page in site.rglob("*.html"):
        loaded = re.findall(
            r'<(?:script|img|iframe|link)\b[^>]*(?:src|href)="((?:https?:)?//[^"]+)"', page.read_text("utf-8")
        )
        assert not loaded, f"{page.name}: {loaded}"


@pytest.mark.slow
@pytest.mark.parametrize(("question", "page"), QUESTIONS.items())
def test_one_of_two_first_hits_answers_a_newcomer(question: str, page: str, site: Path, tmp_path: Path) -> None:
    """The site's own search, in a browser, on its pages as files."""
    if CHROMIUM is None:
        pytest.skip("no chromium: apt-get install chromium")
    command = [CHROMIUM, "--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={tmp_path}"]
    command += ["--virtual-time-budget=15000", "--dump-dom"]
    command.append(f"file://{site}/reference/api/eviction.html?{urlencode({'q': question}, quote_via=quote)}")
    dom = subprocess.run(command, capture_output=True, text=True, timeout=240, check=True).stdout
    hits = re.findall(r'<li class="md-search-result__item"><a href="[^"]*?/([\w-]+(?:/[\w-]+)*)\.html', dom)
    assert page in {hit.rpartition("/")[2] for hit in hits[:2]}, hits[:5]
