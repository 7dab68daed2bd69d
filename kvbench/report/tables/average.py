"""LongBench as one number per setting: the averages that papers print, over the means of its tasks.

They are defined in `kvbench.tasks.longbench_averages`. Papers average numbers rounded to two digits per task; here only
the result is rounded.
"""

import hashlib
from collections.abc import Sequence
from dataclasses import replace
from operator import attrgetter
from statistics import fmean
from typing import Any, NamedTuple

from kvbench.records.rows import Describe
from kvbench.report.experiments import Experiments
from kvbench.report.selection import common
from kvbench.report.stats.intervals import weighted_interval
from kvbench.report.tables.summary import MEANS, Summary, sort_key
from kvbench.support.errors import UserError
from kvbench.support.grouped import grouped
from kvbench.tasks.longbench_averages import average, check, weights

FAMILY = "longbench/"
SETTING = ("model", "policy", "score", "budget", "variant", "layout", "schedule", "seed")
"""Columns that the cells of an average have in common."""


class Averages(NamedTuple):
    """The averages, and what describes them: the settings that all cells of one have."""

    lines: list[Summary]
    describe: Describe


def averaged(lines: Sequence[Summary], name: str, describe: Describe = lambda cell: None) -> Averages:
    """Return one line for each setting of LongBench's cells: `mean` is the average, `n` the samples behind it in all.

    Cells of one average differ in nothing but their tasks; settings of tasks make several of it where every task has
    the same several. The interval is of a weighted sum of independent means. Sizes and times are means over the
    tasks that count.
    Cells of other benchmarks are left out.

    Raises ValueError for another name, for a task that is missing or twice, and for one with samples that failed
    or have no number: an average of some tasks or some samples is another number.
    """
    check(name)
    members = {line.cell: line for line in lines if line.task.startswith(FAMILY)}
    if not members:
        raise UserError(f"--average {name} is over tasks of LongBench, and no selected row is of one")
    methods, tasks = Experiments(("task",), describe), Experiments((), describe, ("task",))
    setting = {cell: (*attrgetter(*SETTING)(line), methods.of(cell)) for cell, line in members.items()}
    words = tasks.told_apart({cell: (setting[cell], line.task) for cell, line in members.items()})
    averages = {}
    for same in grouped(members, setting.__getitem__).values():
        by_task = grouped(same, lambda cell: members[cell].task).values()
        is_alike = len({frozenset(words[cell] for cell in cells) for cells in by_task}) == 1
        for cells in grouped(same, words.__getitem__).values() if is_alike else [same]:
            line = _averaged([members[cell] for cell in cells], name)
            averages[line.cell] = line, common([describe(cell) for cell in cells])
    ordered = sorted((line for line, _ in averages.values()), key=sort_key)
    return Averages(ordered, lambda cell: averages[cell][1])


def _averaged(lines: Sequence[Summary], name: str) -> Summary:
    first, weight = lines[0], weights(name)
    where = " ".join(part for part in (first.model, first.policy, first.score, first.budget) if part)
    tasks = grouped(lines, lambda line: line.task.removeprefix(FAMILY))
    cells = {task: members[0] for task, members in tasks.items() if task in weight}
    if twice := [task for task in cells if len(tasks[task]) > 1]:
        raise UserError(
            f"--average {name} of {where}: several cells of {', '.join(twice)}; select cells of one setting, such as "
            "task.max_prompt_tokens=7500"
        )
    if spoilt := [f"{task} ({cell.errors + cell.blanks})" for task, cell in cells.items() if cell.errors + cell.blanks]:
        raise UserError(
            f"--average {name} of {where}: samples without a number in {', '.join(spoilt)}; kvbench run "
            "--retry-errors runs them again"
        )
    try:
        mean = average({task: cell.mean for task, cell in cells.items() if cell.mean is not None}, name)
    except ValueError as error:
        raise UserError(f"--average {name} of {where}: {error}") from None
    parts = [(weight[task], cell.variance, cell.n) for task, cell in cells.items()]
    low, high = weighted_interval(mean, parts, rate=True)
    means: dict[str, Any] = {}
    for column in MEANS:
        numbers = [number for cell in cells.values() if (number := getattr(cell, column)) is not None]
        means[column] = fmean(numbers) if numbers else None
    versions = {cell.task_version for cell in cells.values()}
    return replace(
        first,
        **means,
        task=f"{FAMILY.removesuffix('/')}, average {name} of {len(cells)} tasks",
        context_length=None,
        task_version=first.task_version if len(versions) == 1 else None,
        metric=f"longbench_{name}",
        rate=True,
        n=sum(cell.n for cell in cells.values()),
        mean=mean,
        low=low,
        high=high,
        variance=None,
        cell=hashlib.sha256(" ".join(cells[task].cell for task in sorted(cells)).encode()).hexdigest()[:16],
    )
