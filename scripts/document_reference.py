"""Write the pages of docs/reference: every command as its help explains it, every setting with its default and meaning.

python scripts/document_reference.py
"""

import os
from itertools import groupby
from pathlib import Path

from kvbench.cli.all_settings import Line, lines_of
from kvbench.cli.main import commands as every_command
from kvbench.cli.main import declared

FOLDER = Path(__file__).parents[1] / "docs" / "reference"
WIDTH = "96"
"""Columns of a help text that a page shows without scrolling."""
SAMPLE = ("launcher=slurm", "logger=wandb")
"""Members of groups whose default has no settings."""
ROOTS = ("task", "policy", "score", "reader", "schedule", "model", "data", "results", "launcher", "logger")
"""First words of settings, in the order of the page."""
TITLES = {
    "": "Of every run",
    "task": "Task: every task, then RULER's needles",
    "policy": "Policy: defaults of SnapKV",
    "score": "Score: defaults of `attn`",
    "launcher": "Launcher: `launcher=slurm`",
    "logger": "Logger: `logger=wandb`",
}


def commands() -> str:
    """The page of commands, in the groups of `kvbench --help`."""
    os.environ["COLUMNS"] = WIDTH
    parts = ["# Commands", "Each command as `kvbench COMMAND --help` explains it. The page is generated."]
    for title, members in groupby(every_command().values(), lambda each: each.heading or "More"):
        parts.append(f"## {title}")
        for each in members:
            parts += [f"### {each.name}", f"{each.says[0].upper()}{each.says[1:]}."]
            parts.append(f"```text\n{_help(each.name)}\n```")
    return "\n\n".join(parts) + "\n"


def _help(name: str) -> str:
    return declared(name).format_help().rstrip()


def settings() -> str:
    """The page of settings, a table for each group."""
    parts = [
        "# Settings",
        "Every setting of `kvbench run`, written `key=value`. `kvbench list settings policy=lava` prints them with the "
        "values of a command. Settings of single policies and scores are in [Methods](methods.md), those of single "
        "tasks in [Tasks](tasks.md). The page is generated.",
    ]
    lines = sorted(lines_of(SAMPLE), key=lambda line: ("", *ROOTS).index(_root(line)))
    for root, members in groupby(lines, _root):
        parts.append(f"## {TITLES.get(root, root.capitalize())}")
        rows = [f"| {_code(line)} | {line.says.replace('|', chr(92) + '|')} |" for line in members]
        parts.append("\n".join(["| setting and default | meaning |", "| :-- | :-- |", *rows]))
    return "\n\n".join(parts) + "\n"


def _root(line: Line) -> str:
    return line.key.partition(".")[0] if "." in line.key or line.key in ROOTS else ""


def _code(line: Line) -> str:
    return f"`{line.key}{f'={line.value}' if line.value else ''}`".replace("|", "\\|")


PAGES = {"commands.md": commands, "settings.md": settings}


def main() -> None:
    """Write all pages."""
    FOLDER.mkdir(exist_ok=True)
    for name, made in PAGES.items():
        (FOLDER / name).write_text(made(), "utf-8")


if __name__ == "__main__":
    main()
