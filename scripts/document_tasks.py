"""Write the benchmarks into docs/reference/tasks.md: protocol and traps, tasks with their metrics, and settings.

    python scripts/document_tasks.py

Protocol, split, source and traps of a benchmark are a list in the docstring of its class. What a task asks for and the
values of its settings come from its file in conf/task; what a setting means, from its field.
"""

import os
import re
from collections import Counter, defaultdict
from inspect import getdoc
from pathlib import Path
from typing import NamedTuple

from kvbench.cli.list import Setting, settings_of
from kvbench.cli.setting_help import words_of
from kvbench.config.entries import options
from kvbench.extras.babilong.babilong import BABILong
from kvbench.extras.conformance.golden.prompts import task_of
from kvbench.extras.dfs_state_query.dfs_state_query import DFSStateQuery
from kvbench.extras.efficiency.efficiency import Efficiency
from kvbench.extras.graphwalks.graphwalks import GraphWalks
from kvbench.extras.helmet.helmet import Helmet
from kvbench.extras.hub.hub import HubRows
from kvbench.extras.longbench_v2.longbench_v2 import LongBenchV2
from kvbench.extras.longproc.longproc import LongProc
from kvbench.extras.math.math_problems import MathProblems
from kvbench.extras.mrcr.mrcr import MRCR
from kvbench.extras.nolima.nolima import NoLiMa
from kvbench.extras.oolong.oolong import Oolong
from kvbench.extras.ruler_v2.ruler_v2 import RulerV2
from kvbench.extras.scbench_official.scbench_official import OfficialSCBench
from kvbench.extras.trajectories.trajectories import Trajectories
from kvbench.support.plugins import items
from kvbench.tasks.infinitebench import InfiniteBench, SyntheticInfiniteBench
from kvbench.tasks.likelihood import PG19, BookSum
from kvbench.tasks.longbench import LongBenchTask
from kvbench.tasks.needle import Needle
from kvbench.tasks.own_file import OwnFile
from kvbench.tasks.ruler.published import PublishedRuler
from kvbench.tasks.ruler.task import RulerTask
from kvbench.tasks.shared_context import SharedContext
from scripts.parts import with_parts
from tests.composed import TABLE

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "reference" / "tasks.md"


class Benchmark(NamedTuple):
    """A section of the page. kind: the class that describes it; files: of conf/task, whose tasks it lists."""

    title: str
    kind: type
    files: tuple[str, ...]


BENCHMARKS = (
    Benchmark("RULER", RulerTask, ("ruler",)),
    Benchmark("RULER's published rows", PublishedRuler, ("ruler_published",)),
    Benchmark("RULER v2", RulerV2, ("ruler_v2",)),
    Benchmark("Needle heat-map", Needle, ("needle",)),
    Benchmark("LongBench", LongBenchTask, ("longbench", "longbench_e")),
    Benchmark("LongBench v2", LongBenchV2, ("longbench_v2", "longbench_v2_cot")),
    Benchmark("InfiniteBench", InfiniteBench, ("infinitebench",)),
    Benchmark("InfiniteBench of any length", SyntheticInfiniteBench, ("infinitebench_synthetic",)),
    Benchmark("PG19", PG19, ("pg19",)),
    Benchmark("BookSum", BookSum, ("booksum",)),
    Benchmark("Efficiency", Efficiency, ("efficiency",)),
    Benchmark("Many questions on one cache", SharedContext, ("scbench", "squad", "gsm8k")),
    Benchmark("SCBench as officially", OfficialSCBench, ("scbench_official",)),
    Benchmark("Your own prompts", OwnFile, ("jsonl",)),
    Benchmark("Runs of agents", Trajectories, ("bfcl", "trajectories", "trajectories_synthetic")),
    Benchmark("Data sets of the Hub and tables", HubRows, ("hub",)),
    Benchmark("MRCR", MRCR, ("mrcr",)),
    Benchmark("NoLiMa", NoLiMa, ("nolima",)),
    Benchmark("HELMET", Helmet, ("helmet",)),
    Benchmark("LongProc", LongProc, ("longproc",)),
    Benchmark("MATH-500 and AIME", MathProblems, ("math_problems",)),
    Benchmark("BABILong", BABILong, ("babilong",)),
    Benchmark("GraphWalks of any length", GraphWalks, ("graphwalks",)),
    Benchmark("OOLONG", Oolong, ("oolong",)),
    Benchmark("DFS state query", DFSStateQuery, ("dfs_state_query",)),
)
OWN = {"jsonl": "mine.jsonl", "hub": str(TABLE), "trajectories": "mine.jsonl"}
"""A file of your own, for the tasks of a file that need one."""


def benchmarks() -> str:
    """A section for each benchmark."""
    parts = []
    for title, kind, files in BENCHMARKS:
        tasks = {name: file for file in files for name in members(file)}
        parts += [f"## {title}", listed(kind), table_of_tasks(tasks), table_of_settings([*tasks])]
    return "\n\n".join(filter(None, parts))


def members(file: str) -> list[str]:
    """The tasks of a file, in its order."""
    return [name for name in options("task") if items("task")[name].path.stem == file]


def listed(kind: type) -> str:
    """The list in the docstring of a class, its pages as links. Raises ValueError for a class without one."""
    found = [text for text in (getdoc(kind) or "").split("\n\n") if text.startswith("- ")]
    if not found:
        raise ValueError(f"the docstring of {kind.__name__} has no list")
    return re.sub(r"\bdocs/([\w/-]+\.md)(#[\w-]+)?", linked, found[0])


def linked(place: re.Match[str]) -> str:
    """A link to a page, or to a heading of it, by its name."""
    page, anchor = ROOT / "docs" / place[1], place[2] or ""
    headings = re.findall(r"^#+ (.+)$", page.read_text("utf-8"), re.MULTILINE)
    slugs = {"#" + re.sub(r"[^\w]+", "-", heading.lower()).strip("-"): heading for heading in headings}
    return f"[{slugs[anchor] if anchor else headings[0]}]({os.path.relpath(page, PAGE.parent)}{anchor})"


def table_of_tasks(tasks: dict[str, str]) -> str:
    """What each task asks for, its metric and the most tokens of an answer."""
    lines = ["| task | asks for | metric | new tokens |", "| :-- | :-- | :-- | --: |"]
    for name, file in tasks.items():
        task = task_of(name, str(ROOT), **({"path": OWN[file]} if file in OWN else {}))
        tokens = task.max_new_tokens
        if tokens is None:  # it stands in the benchmark's own files, and in a note
            (tokens,) = re.findall(r"own: (\d+)", words_of(items("task")[name]).notes["max_new_tokens"])
        lines.append(f"| `{name}` | {asks(name)} | `{task.metric}` | {tokens} |")
    return "\n".join(lines)


def asks(name: str) -> str:
    """The first line of what the file says of a task, without the name of the task."""
    first = words_of(items("task")[name]).says.split("\n")[0]
    member = re.escape(name.rpartition("/")[2])
    return re.sub(rf"^.*?\b{member}\b[^:]*: ", "", first).removesuffix(".")


def table_of_settings(names: list[str]) -> str:
    """The settings that tasks have, and what each means for most of them; empty without any.

    A value that is not the same for all is left out.
    """
    found: defaultdict[str, list[Setting]] = defaultdict(list)
    for setting in (setting for name in names for setting in settings_of(items("task")[name])):
        found[setting.key].append(setting)
    found.pop("task.max_new_tokens", None)  # in the table of tasks
    lines = ["| setting and default | meaning |", "| :-- | :-- |"]
    for key, settings in found.items():
        values = {setting.default for setting in settings}
        meanings = Counter(setting.comment for setting in settings)
        ((meaning, _),) = meanings.most_common(1)
        differs = " (differs by task)" if len(meanings) > 1 else ""
        value = f"={values.pop()}" if len(values) == 1 else ""
        lines += [f"| `{key}{value}` | {meaning}{differs} |"] * bool(meaning)
    return "\n".join(lines) if len(lines) > 2 else ""


PARTS = {"benchmarks": benchmarks}


def written() -> str:
    """The page with every part made anew."""
    return with_parts(PAGE.read_text("utf-8"), PARTS)


if __name__ == "__main__":
    PAGE.write_text(written(), "utf-8")
