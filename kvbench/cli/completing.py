"""What can stand where the cursor is: commands, what they take first, flags, settings with their values, by prefix.

Reads names of files and their keys and composes nothing, so that an answer comes within the time of a key press.
"""

import re
from collections.abc import Iterable, Sequence
from itertools import chain
from pathlib import Path
from typing import Any

import yaml

from kvbench.cli.main import COMMANDS, declared
from kvbench.records.row import COLUMNS
from kvbench.support.plugins import items

LISTS = ("policies", "scores", "tasks", "models", "probes", "launchers", "loggers", "papers")
REPORTS = ("table", "rows", "plot", "html", "history", "efficiency", "cost")
PLOTS = ("tradeoff", "bars", "perplexity", "needle", "kept", "split", "latency")
SHELLS = ("bash", "zsh", "fish")
FLAG = re.compile(r"(?<![\w-])--[a-z][a-z-]*[a-z]\b")
NOT_OURS = {"--ask", "--force-reinstall", "--no-deps"}
"""What only scripts say, and what pip is told."""
FILES = ("--results", "--out", "--output", "--junit", "--summary", "--plot", "--baseline", "--current")
"""Flags after which a file or a folder is named."""
FORMATS: dict[str, tuple[str, ...]] = {
    "report": ("text", "markdown", "latex", "csv", "json", "jsonl", "parquet"),
    "compare": ("text", "markdown", "csv", "json"),
    "gate": ("text", "markdown", "json"),
    "paper": ("text", "markdown", "latex", "csv"),
    "probe": ("text", "markdown", "csv", "json"),
    "export": ("github-benchmark", "junit", "markdown", "parquet"),
}
"""What can stand after --format."""
SETTINGS = {"run": "model task policy score launcher logger", "plan": "model task policy score launcher logger"}
SETTINGS |= dict.fromkeys(("paper", "probe"), "model task policy score") | {
    "heads": "model task",
    "conform": "policy score",
}
"""Groups that can be set on the line of a command."""
ROOTS = ("data", "results", "schedule")
"""Settings of conf/run.yaml that have parts and belong to no group."""


def candidates(words: Sequence[str]) -> list[str]:
    """Whole words that the last of `words` can become; none where a file is named, or nothing is known.

    `words` are those after `kvbench`, up to the cursor. A candidate that ends in = or . goes on.
    """
    *before, typed = words or [""]
    return [word for word in _all(before, typed) if word.startswith(typed) and word != typed]


def _all(before: Sequence[str], typed: str) -> Iterable[str]:
    if not before:
        return [*COMMANDS, "help", "--help", "--version"]
    command, *rest = before
    if command == "help":
        return COMMANDS if not rest else []
    if command not in COMMANDS:
        return []
    if before[-1] == "--format":
        return FORMATS.get(command, ())
    if before[-1] in FILES:
        return []
    if typed.startswith("-"):
        return flags(command)
    return chain(_first(command, rest), _settings(command, typed))


def flags(command: str) -> list[str]:
    """The flags that the source of a command names, its help among it: importing it would take seconds."""
    if command in ("status", "cancel"):
        return declared(command).flags()
    files = ("run", "flags", "sweep") if command == "run" else (command,)
    text = "".join((Path(__file__).parent / f"{name}.py").read_text("utf-8") for name in files)
    return sorted({*FLAG.findall(text), "--help"} - NOT_OURS)


def _first(command: str, rest: Sequence[str]) -> Iterable[str]:
    """Words without = that a command takes."""
    words = [word for word in rest if not word.startswith("-")]
    match command, words:
        case "list", []:
            return LISTS
        case "report", []:
            return REPORTS
        case "report", ["plot"]:
            return PLOTS
        case "completion", []:
            return SHELLS
        case "data", []:
            return ("pull", "verify", "list")
        case "data", ["pull" | "verify", *_]:
            from kvbench.tasks.data import read_lock

            return [*read_lock(), "all"]
        case "paper", []:
            return ["list", "all", *items("paper")]
        case "probe", []:
            return items("probe")
    return []


def _settings(command: str, typed: str) -> Iterable[str]:
    if command in ("report", "compare", "export"):
        return _columns(command, typed)
    if command in ("data", "doctor"):
        return ["data.root="]
    groups = SETTINGS.get(command, "").split()
    key, equals, value = typed.partition("=")
    if equals:
        return _values(key, value) if key in groups or key == "score.host" else []
    if not groups:
        return []
    if "." not in typed:
        roots = ROOTS if command in ("run", "plan") else ("data",) if command != "conform" else ()
        plain = ("budget=", "seed=", "store=") if command in ("run", "plan", "paper", "probe") else ()
        return [*(f"{group}=" for group in groups), *(f"{one}." for one in (*groups, *roots)), *plain]
    return _fields(typed)


def _columns(command: str, typed: str) -> Iterable[str]:
    key, equals, _ = typed.rpartition(",")[2].partition("=")
    done = typed[: len(typed) - len(typed.rpartition(",")[2])]
    before = done.rpartition("=")[0].rpartition(",")[2]
    if before in ("policy", "score", "task", "model") and not equals:  # another value, or the next condition
        return [*(f"{done}{name}" for name in items(before)), *(f"{done}{name}=" for name in COLUMNS)]
    if equals and key in ("policy", "score", "task", "model"):
        return [f"{done}{key}={name}" for name in items(key)]
    if equals and "," not in typed:
        return []
    own = {"report": ("rows=", "cols=", "against="), "compare": ("alpha=", "relevant="), "export": ("what=",)}[command]
    return [*(() if done else own), *(f"{done}{name}=" for name in COLUMNS)]


def _values(key: str, value: str) -> Iterable[str]:
    """Names of a group, the last of a list being typed; a folder stands for its files and leads to them."""
    done = value[: len(value) - len(value.rpartition(",")[2])]
    names = list(items(key.partition(".")[0]))
    folders = sorted({name.rpartition("/")[0] for name in names if "/" in name})
    if "/" in value.rpartition(",")[2]:
        return [f"{key}={done}{name}" for name in names]
    return [
        f"{key}={done}{name}" for name in (*(n for n in names if "/" not in n), *folders, *(f"{f}/" for f in folders))
    ]


def _fields(typed: str) -> Iterable[str]:
    """Settings inside a group or a part of it, of all of its files together."""
    group = typed.partition(".")[0]
    found: dict[str, None] = {}
    own = _read(items("policy")["snapkv"].path.parent.parent / "run.yaml")
    for tree in (own.get(group), *(_tree(item.path, group) for item in _items(group))):
        for key in _keys(group, tree):
            found[key] = None
    return found


def _items(group: str) -> Iterable[Any]:
    return items(group).values() if group in SETTINGS["run"].split() else ()


def _tree(path: Any, group: str) -> Any:
    tree = _read(path)
    return tree.get(group, tree) if isinstance(tree, dict) else None


def _read(path: Any) -> Any:
    try:
        return yaml.load(path.read_text("utf-8"), getattr(yaml, "CSafeLoader", yaml.SafeLoader))
    except (OSError, ValueError, yaml.YAMLError):  # told by the command itself
        return {}


def _keys(prefix: str, tree: Any) -> Iterable[str]:
    """`policy.window=` for a value; a part with fields of its own is named too."""
    if not isinstance(tree, dict):
        return
    for name, value in tree.items():
        if name in ("_target_", "name", "takes", "defaults"):
            continue
        if isinstance(value, dict) and value:
            yield from _keys(f"{prefix}.{name}", value)
        yield f"{prefix}.{name}="
