"""`kvbench plan`: what a run with the same arguments would do. Runs nothing, writes nothing."""

import argparse
import json
import sys
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from kvbench.cli.parser import Parser
from kvbench.cli.run import SETTINGS
from kvbench.cli.terminal import say, screen, tell
from kvbench.eviction.budget import TokenBudget
from kvbench.support.errors import UserError
from kvbench.support.named import named
from kvbench.support.text import printable

if TYPE_CHECKING:
    from kvbench.run.plan import PrefillGroup
    from kvbench.work.planned import Sweep

COLUMNS = ("cell", "policy", "score", "budget", "schedule", "rows", "rows_to_do")
REQUEST_BYTES = ("weight_bytes", "prefill_bytes", "decode_bytes", "peak_request_bytes")
EPILOG = """
Runs and writes nothing, unless --measure is given: it prints the tokens to prefill, the rows that are done, the \
memory that the cells need together and that a request needs alone, and the time that the rest takes: from similar \
rows or, where there are none, from the speed of this machine, which takes it a second to measure. With \
launcher=slurm it also prints the tasks of the array, their time, memory and GPU hours, and the batch script, also on \
a machine without SLURM.

  kvbench plan policy=full,h2o,snapkv score=attn,obcache_joint budget=0.1,0.2
  kvbench plan task=ruler/niah_* policy=snapkv budget=0.1 --json
  kvbench plan policy=snapkv budget=0.1 --measure
  kvbench plan task=ruler policy=snapkv budget=0.1 launcher=slurm launcher.time=1:00:00
Exit codes: 0 planned, 2 a setting is not allowed, 3 data or the model is missing.
"""


def declare(parser: Parser) -> None:
    """Add the flags of the command."""
    parser.description = "The cells that kvbench run would make, which of them are done, and what they share."
    parser.epilog = EPILOG
    parser.words = SETTINGS
    flag = parser.add_argument
    flag(
        "--retry-errors",
        action="store_true",
        help="count failed samples as missing, as kvbench run --retry-errors does",
    )
    parser.add_stale()
    flag(
        "--measure",
        action="store_true",
        help="run the first prompt of each task whose time is not known, as kvbench run does, and print how long the "
        "rest takes; the rows stay in results.dir, and a run continues from them",
    )
    flag("--json", action="store_true", help="one JSON object instead of text")
    flag(
        "--dry",
        action="store_true",
        help="with launcher=slurm: print only what kvbench run would submit",
    )


def main(flags: argparse.Namespace) -> int:
    """Print the plan."""
    from kvbench.cli.sweep import warn_of
    from kvbench.run.estimate import estimate, measure, similar_runs, starting, submission
    from kvbench.work.plan_text import submission_text
    from kvbench.work.planned import plan_sweep
    from kvbench.work.sweep import logger_of

    if flags.dry and flags.json:
        raise UserError("--dry and --json do not go together")
    logger_of(flags.words)
    sweep = plan_sweep(flags.words, tell, flags.retry_errors, stale=flags.stale)
    if flags.measure and not all(cell.model.runs_here for cell in sweep.plan.cells):
        raise UserError("--measure runs models of this machine, not a server: leave it out")
    similar, planning = similar_runs(sweep.plan, sweep.results), time.process_time()
    if flags.measure and measure(sweep.plan, similar.rows, sweep.results, sweep.where.kept, sweep.where.lease_seconds):
        sweep = plan_sweep(flags.words, tell, flags.retry_errors, quiet=True, stale=flags.stale)
        similar = similar_runs(sweep.plan, sweep.results)
    if flags.dry:
        if (submitted := submission(sweep.plan, similar, sweep.launcher, sweep.results, planning)) is None:
            raise UserError(f"--dry goes with launcher=slurm, not with launcher={sweep.launcher.name}")
        print(submission_text(submitted))
        return 0
    seconds, start = estimate(sweep.plan, similar), starting(sweep.plan, similar, planning)
    warn_of(sweep.plan)
    if flags.json:
        print(json.dumps(_tree(sweep, seconds, start), indent=1))
    else:
        _print(sweep, seconds, start)
        if submitted := submission(sweep.plan, similar, sweep.launcher, sweep.results, planning):
            print("\n" + submission_text(submitted))
    return 0


def _print(sweep: "Sweep", seconds: Mapping[str, float | None], start: float) -> None:
    from kvbench.report.formats.table import Table, TableRow
    from kvbench.report.formats.text import print_table
    from kvbench.run.plan_memory import memory_text, unshared_text
    from kvbench.run.procedure import procedure_of
    from kvbench.run.request_memory import request_text
    from kvbench.work.plan_text import total_text, written

    console, plan = screen(), sweep.plan
    for group in plan.groups:
        task = group.task
        length = "" if task.context_length is None else f", context length {task.context_length}"
        heading = f"model {printable(group.model.label)}, task {task.name}{length}, {task.samples} samples"
        say(console, f"{heading}, {procedure_of(group).when(group)}")
        lines = [
            TableRow.of([label or "" for label in labels], [f"{rows - to_do}/{rows}"])
            for *labels, rows, to_do in _fields(group)
        ]
        print_table(Table.of(COLUMNS[:-2], COLUMNS[-2:-1], lines), sys.stdout)
        if group.model.runs_here:
            if memory := memory_text(group):
                say(console, memory)
            say(console, request_text(group))
        say(console, f"{procedure_of(group).cost(group)}\n")
        if (remaining := seconds.get(group.key)) is not None:
            say(console, f"time: about {written(remaining)}, from similar rows\n")
    if alone := unshared_text([group for group in plan.groups if group.model.runs_here]):
        say(console, alone)
    if any(group.jobs and group.model.runs_here for group in plan.groups):
        say(console, total_text(seconds, start))
    unknown = [group for group in plan.groups if group.key in seconds and seconds[group.key] is None]
    for line in named("plan").values() if not sweep.launcher.submits else ():
        if text := line.load()(unknown, start):
            say(console, text)
    say(console, f"{plan.rows - plan.rows_to_do} of {plan.rows} rows are in {sweep.results.path}")


def _tree(sweep: "Sweep", seconds: Mapping[str, float | None], start: float) -> dict[str, Any]:
    """Return the plan for programs; seconds are null if there are no similar rows, bytes where nothing is known of
    them.
    """
    groups = [
        {
            "model": group.model.label,
            "task": group.task.name,
            "context_length": group.task.context_length,
            "samples": group.task.samples,
            "prefills_to_do": len(group.jobs),
            "rows_to_do": group.rows_to_do,
            "seconds": seconds.get(group.key),
            "cells": [
                dict(zip(COLUMNS, line, strict=True)) | of_request
                for line, of_request in zip(_fields(group), _requests(group), strict=True)
            ],
        }
        for group in sweep.plan.groups
    ]
    totals = {"rows": sweep.plan.rows, "rows_to_do": sweep.plan.rows_to_do, "results": str(sweep.results.path)}
    return {**totals, "start_seconds": start, "groups": groups}


def _requests(group: "PrefillGroup") -> list[dict[str, int | None]]:
    """Return the memory of a request with each cell alone."""
    from kvbench.run.lengths import lengths_of
    from kvbench.run.request_memory import request_memory

    lengths = lengths_of(group) if group.model.runs_here else None
    if lengths is None:
        unknown: dict[str, int | None] = dict.fromkeys(REQUEST_BYTES)
        return [unknown for _ in group.cells]
    needs = [request_memory(cell, lengths) for cell in group.cells]
    return [
        dict(zip(REQUEST_BYTES, (need.weights, need.prefill, need.decode, need.peak()), strict=True)) for need in needs
    ]


def _fields(group: "PrefillGroup") -> Iterator[tuple[str, str, str | None, str, str, int, int]]:
    """Yield the `COLUMNS` of each cell."""
    missing = Counter(cell for job in group.jobs for cell, _ in job.places)
    for cell in group.cells:
        columns, rows = cell.method.columns, (cell.task.num_answers, missing[cell.id])
        score = columns["score"] and printable(columns["score"])
        labels, budget = (printable(columns["policy"]), score), columns["budget"]
        if cell.model.runs_here and isinstance(cell.budget, TokenBudget):
            budget = cell.budget.counted
        yield cell.id, *labels, budget, str(cell.schedule), *rows
