"""What the pages show: fenced blocks, the commands in them, links and anchors. Knows nothing about what they do."""

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
DOCS = ROOT / "docs"
OF_EXTRAS = sorted((ROOT / "kvbench" / "extras").glob("*/*.md"))
PAGES = sorted([*DOCS.rglob("*.md"), *OF_EXTRAS, ROOT / "README.md"])
MARKS = (
    "beside my_score.py",
    "needs a GPU",
    "needs SLURM",
    "needs data",
    "needs kvpress",
    "needs a network",
    "takes long",
    "in the plugin's folder",
    "after a run",
    "serves until Ctrl+C",
)
"""What a block may say of itself, as its title, so that readers see it; a bash block without one runs anywhere."""
PROGRAMS = ("kvbench", "make", "python")
FENCE = re.compile(r'^(?P<indent> *)```(?P<language>[\w-]*)(?: title="(?P<title>[^"]*)")?(?P<rest>.*)$')
PLACEHOLDER = re.compile(r"^\[|^\(|^\.\.\.$|\||^[A-Z_]{3,}$|^--\w+=?[A-Z]{3,}$")


@dataclass(frozen=True)
class Block:
    """A fenced block: the page, the line of its first line, its language and title, its text."""

    page: str
    line: int
    language: str
    title: str
    text: str

    def __str__(self) -> str:
        return f"{self.page}:{self.line}"


@dataclass(frozen=True)
class Command:
    """A command of a block, its words without comments and redirections."""

    block: Block
    words: tuple[str, ...]

    @property
    def program(self) -> str:
        """Its first word."""
        return self.words[0]

    @property
    def is_pattern(self) -> bool:
        """Whether it stands for many: it has alternatives, brackets or capitals to fill in."""
        return any(PLACEHOLDER.search(word) for word in self.words[1:])

    def __str__(self) -> str:
        text = " ".join(self.words)
        return f"{self.block.page}:{text[:70]}"


def blocks(path: Path) -> Iterator[Block]:
    """The fenced blocks of a page. Raises ValueError for one that does not end."""
    open_fence: tuple[int, re.Match[str]] | None = None
    lines = path.read_text("utf-8").splitlines()
    for number, line in enumerate(lines, start=1):
        match = FENCE.match(line)
        if open_fence is None and match:
            open_fence = (number, match)
        elif open_fence is not None and match and not match["language"] and not match["rest"]:
            start, opening = open_fence
            text = "\n".join(lines[start : number - 1])
            yield Block(path.relative_to(ROOT).as_posix(), start, opening["language"], opening["title"] or "", text)
            open_fence = None
    if open_fence is not None:
        raise ValueError(f"{path}:{open_fence[0]}: this block does not end")


def commands(block: Block) -> Iterator[Command]:
    """Its lines that call one of our programs; of a console those behind a $."""
    for line in block.text.replace("\\\n", " ").splitlines():
        if block.language == "console":
            if not line.startswith("$ "):
                continue
            line = line[2:]
        if not line.startswith(PROGRAMS) or line.split()[0] not in PROGRAMS:
            continue
        if not block.language:  # a list of commands, each with what it does behind two blanks
            head, _, rest = line.partition(" ")
            name, _, rest = rest.partition(" ")
            line = f"{head} {name} {re.split(r' {2,}', rest.strip())[0] if name != 'doctor' else ''}"
        words = shlex.split(line, comments=True)
        for end in (";", "||", "|", ">"):
            words = words[: words.index(end)] if end in words else words
        yield Command(block, tuple(words))


def every_block() -> list[Block]:
    """All blocks of all pages."""
    return [block for page in PAGES for block in blocks(page)]


def every_command() -> list[Command]:
    """All commands of all pages, each once."""
    distinct = {(command.block.page, command.words): command for block in every_block() for command in commands(block)}
    return list(distinct.values())


def inline_commands() -> list[tuple[str, tuple[str, ...]]]:
    """Commands between backticks in the text: page and words."""
    inline = []
    for page in PAGES:
        text = re.sub(r"^```.*?^```", "", page.read_text("utf-8"), flags=re.MULTILINE | re.DOTALL)
        for match in re.finditer(r"`(kvbench [^`]+|make [a-z-]+)`", text):
            inline.append((page.relative_to(ROOT).as_posix(), tuple(match[1].replace("'", "").split())))
    return inline


def prose(path: Path) -> str:
    """A page without its blocks, and without what is between backticks."""
    text = re.sub(r"^ *```.*?^ *```$", "", path.read_text("utf-8"), flags=re.MULTILINE | re.DOTALL)
    return re.sub(r"`[^`\n]*`", "", text)


def links(path: Path) -> list[str]:
    """Where a page leads, pictures included."""
    return re.findall(r"\]\(([^)\s]+)\)", prose(path))


def anchors(path: Path) -> set[str]:
    """What can be linked to in a page: its headings, as Python-Markdown and GitHub name them."""
    text = re.sub(r"^ *```.*?^ *```$", "", path.read_text("utf-8"), flags=re.MULTILINE | re.DOTALL)
    slugs: set[str] = set()
    for heading in re.findall(r"^#{1,6} (.+)$", text, re.MULTILINE):
        slug = re.sub(r"[^\w\s-]", "", re.sub(r"<[^>]+>", "", heading)).strip().lower()
        slug = re.sub(r"[-\s]+", "-", slug)
        number = 0
        while (f"{slug}_{number}" if number else slug) in slugs:
            number += 1
        slugs.add(f"{slug}_{number}" if number else slug)
    return slugs
