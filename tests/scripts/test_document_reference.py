"""The generated pages of docs/reference are current, and hold every command, setting, column and extra."""

import re

import pytest

from kvbench.cli.all_settings import lines_of
from kvbench.cli.main import commands
from kvbench.records import COLUMNS
from kvbench.support import paths
from scripts.document_reference import FOLDER, PAGES, SAMPLE


@pytest.mark.parametrize("name", PAGES)
def test_a_page_is_as_it_would_be_written(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "")
    current = (FOLDER / name).read_text("utf-8")
    assert PAGES[name]() == current, "run make pages"


def test_nothing_is_left_out() -> None:
    line, settings, columns, extras = ((FOLDER / name).read_text("utf-8") for name in PAGES)
    assert re.findall(r"^### (\w+)$", line, re.MULTILINE) == [*commands()]
    documented = set(re.findall(r"^\| `([a-z_.]+)", settings, re.MULTILINE))
    assert documented == {line.key for line in lines_of(SAMPLE)}
    rows = re.findall(r"^\| `(\w+)` \| (?:text|integer|number)[\w, ]* \| .+ \|$", columns, re.MULTILINE)
    assert tuple(rows) == COLUMNS
    shown = re.findall(r"^\| \[?`(\w+)`.* \| [A-Z].+ \| .+ \|$", extras, re.MULTILINE)
    assert shown == [folder.name for folder in paths.extras()]
