"""Write pages of docs/reference: every command as its help explains it, every setting, every column of a row,
every extra.

python scripts/document_reference.py
"""

import ast
import os
from collections import Counter
from collections.abc import Iterator
from itertools import groupby
from pathlib import Path
from typing import get_args

from kvbench.cli.all_settings import SettingLine, lines_of
from kvbench.cli.main import commands as every_command
from kvbench.cli.main import declared
from kvbench.records import MEASURED, REQUESTED, SCHEMA, WHERE
from kvbench.records.meanings import MEANINGS
from kvbench.records.row import TYPES
from kvbench.support import paths
from kvbench.support.plugins import groups, items

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
EXAMPLE = "kvbench report rows --results results/first --format parquet --out rows.parquet"
KINDS = {"text": str, "integer": int, "number": float}
UNITS = {
    "kept_tokens": "KV pairs",
    "_tokens": "tokens",
    "_bytes": "bytes",
    "_seconds": "seconds",
    "_fraction": "0 to 1",
}
"""Units of columns by the end of their names; the first that fits counts."""


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


def _root(line: SettingLine) -> str:
    return line.key.partition(".")[0] if "." in line.key or line.key in ROOTS else ""


def _code(line: SettingLine) -> str:
    return f"`{line.key}{f'={line.value}' if line.value else ''}`".replace("|", "\\|")


def columns() -> str:
    """The page of columns, a table for each part of a row."""
    parts = [
        "# Columns",
        f"The columns of a [row](results-folder.md#rows), schema {SCHEMA}, in their order. Blank is `null` in JSON. "
        "`kvbench list columns` prints them. The page is generated. Write the rows of a folder as one table for pandas "
        "or Polars (`csv` and `jsonl` too):",
        f'```bash title="after a run"\n{EXAMPLE}\n```',
    ]
    for title, names in {"Requested": REQUESTED, "Measured": MEASURED, "Environment": WHERE}.items():
        lines = [
            f"| `{name}` | {kind_of(name)}{unit_of(name)} | {MEANINGS[name].replace('|', chr(92) + '|')} |"
            for name in names
        ]
        table = ["| column | type | meaning |", "| :-- | :-- | :-- |", *lines]
        parts += [f"## {title}", "\n".join(table)]
    return "\n\n".join(parts) + "\n"


def kind_of(column: str) -> str:
    """The type of a column as a reader knows it."""
    return next(word for word, kind in KINDS.items() if kind in (TYPES[column], *get_args(TYPES[column])))


def unit_of(column: str) -> str:
    """The unit of a column by the end of its name, after a comma; empty without one."""
    return next((f", {unit}" for end, unit in UNITS.items() if column.endswith(end)), "")


def extras() -> str:
    """The page of extras: what each is for, and the names that a command line has from it."""
    lines = [
        "# Extras",
        "What the core does without. An extra is a folder of `kvbench/extras/` with its code, settings files, tests\n"
        "and page. Taken out of the tree, it works as a plugin. This table is generated.",
        "| extra | for | brings |\n| :-- | :-- | :-- |",
    ]
    rows = []
    for folder in paths.extras():
        says = (ast.get_docstring(ast.parse((folder / "__init__.py").read_text("utf-8"))) or "").partition("\n\n")[0]
        page = (folder / f"{folder.name}.md").relative_to(FOLDER.parents[1]).as_posix()
        name = f"[`{folder.name}`](../../{page})"
        rows.append(f"| {name} | {' '.join(says.split()).rstrip('.')} | {'; '.join(_brought(folder))} |")
    return "\n\n".join(lines) + "\n" + "\n".join(rows) + "\n"


def _brought(folder: Path) -> Iterator[str]:
    """Each group that an extra adds to, with the names; members of one file are counted."""
    for group in sorted(groups()):
        names = [name for name, item in items(group).items() if folder in item.path.parents]
        benchmarks = Counter(name.partition("/")[0] for name in names)
        shown = [f"`{name}`" if count == 1 else f"`{name}` ({count})" for name, count in benchmarks.items()]
        if shown:
            yield f"{group} {', '.join(shown)}"


PAGES = {"commands.md": commands, "settings.md": settings, "columns.md": columns, "extras.md": extras}


def main() -> None:
    """Write all pages."""
    FOLDER.mkdir(exist_ok=True)
    for name, made in PAGES.items():
        (FOLDER / name).write_text(made(), "utf-8")


if __name__ == "__main__":
    main()
