"""English that is hard to read, counted, and the length of the pages: each limit only falls."""

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from tests.documented import DOCS, PAGES, prose
from tests.repository import ROOT, code, parsed

CODE = code()
MOST = {"that of, those of": 18, "docstrings that begin with What": 0, "long sentences": 3}
STAND_IN = re.compile(r"\b(?:that|those) of\b|\bof those\b")
"""A word that stands for a noun; the noun itself reads better."""
LONGEST = 35
"""Words of a sentence."""


PROSE = sorted(DOCS.glob("*.md"))
MOST_PAGES, MOST_WORDS, MOST_WORDS_OF_A_PAGE = 16, 16_000, 1_500
"""Of the pages that are written by hand; those of docs/reference are looked up, not read."""


def docstrings(file: Path) -> Iterator[str]:
    """The docstrings of a file."""
    for node in ast.walk(parsed(file)):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef) and (text := ast.get_docstring(node)):
            yield text


def sentences(page: Path) -> Iterator[str]:
    """The sentences of a page outside of tables, blocks, headings and comments."""
    text = re.sub(r"<!--.*?-->", "", prose(page), flags=re.DOTALL)
    lines = ("" if line.lstrip().startswith(("|", "#", "!", "<")) else line for line in text.splitlines())
    for paragraph in re.split(r"\n\s*\n|\n\s*(?:[*-]|\d+\.) ", "\n".join(lines)):
        yield from re.split(r"(?<=[.:;?!])\s+", " ".join(paragraph.split()))


def test_hard_words_grow_fewer() -> None:
    found = {
        "that of, those of": sum(len(STAND_IN.findall(file.read_text("utf-8"))) for file in CODE),
        "docstrings that begin with What": sum(text.startswith("What ") for file in CODE for text in docstrings(file)),
        "long sentences": sum(len(sentence.split()) > LONGEST for page in PAGES for sentence in sentences(page)),
    }
    assert {name: count for name, count in found.items() if count > MOST[name]} == {}


@cache
def defined(file: Path) -> set[str]:
    """Names that a file assigns, defines or imports, at its top or in its classes."""
    names = set[str]()
    for node in ast.walk(parsed(file)):
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            names.add(node.name)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            names.add(node.id)
        elif isinstance(node, ast.alias):
            names.add(node.asname or node.name)
    return names


def test_what_docstrings_name_is_there() -> None:
    """`kvbench.package.module.Name`: a rename leaves no old name behind."""
    found = [
        f"{file.relative_to(ROOT)}: {name}"
        for file in CODE
        for text in docstrings(file)
        for name in re.findall(r"`(kvbench(?:\.\w+){2,})", text)
        if not is_there(name.split("."))
    ]
    assert found == []


def is_there(parts: list[str]) -> bool:
    """Whether a dotted name is a package, a module, or something in one."""
    for end in range(len(parts), 0, -1):
        path = ROOT.joinpath(*parts[:end])
        for file in (path / "__init__.py", path.with_suffix(".py")):
            if file.is_file():
                return set(parts[end:]) <= defined(file)
    return False


def words(page: Path) -> int:
    """Count the words of a page outside of blocks and of what scripts write between markers."""
    text = re.sub(r"<!-- (\w+)[^>]*-->.*?<!-- end[^>]*-->", "", prose(page), flags=re.DOTALL)
    return len(re.findall(r"\w[^\s|]*", text))


def test_there_are_few_pages_and_they_are_short() -> None:
    lengths = {page.name: words(page) for page in PROSE}
    assert len(lengths) <= MOST_PAGES
    assert sum(lengths.values()) <= MOST_WORDS
    assert {name: length for name, length in lengths.items() if length > MOST_WORDS_OF_A_PAGE} == {}
