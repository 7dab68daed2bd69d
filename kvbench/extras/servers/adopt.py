"""`kvbench adopt`: answers made elsewhere as rows, scored by our metrics, paired by prompt. No torch."""

import argparse
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from kvbench.cli.errors import ExitCode
from kvbench.cli.parser import Parser, Words
from kvbench.cli.terminal import tell
from kvbench.support.errors import UserError

if TYPE_CHECKING:
    from kvbench.extras.servers.adopted import Adopted


def declare(parser: Parser) -> None:
    """Add the flags of the command."""
    parser.description = "Record answers made elsewhere as rows: scored by the metric of the task, paired by prompt."
    parser.epilog = """
  kvbench adopt answers.jsonl model.path=FOLDER_OR_HUB_ID endpoint.method=snapkv endpoint.budget=0.1 \
task=ruler/niah_single_1 task.context_length=4096
  kvbench adopt results/ruler__4096__snapkv__0.90 model.path=ID task=ruler_published/niah_single_1

A file holds lines of kvbench prompts with an `answer` each, samples of lm-eval, or predictions of LongBench. \
A folder is one of kvpress: press_name and 1 - compression_ratio are the method and the budget unless words name \
others. Prompts are built again and found by hash; those of kvpress by question and right answers, those of \
LongBench's pred.py by the order of rows. What was kept is unknown unless --kept or the lines (kept_fraction) say it.
Exit codes: 0 all rows are there, 2 no prompt is among the answers, 4 some are not.
"""
    parser.bare_exit = ExitCode.USAGE
    settings = ("model.path=", "endpoint.method=", "endpoint.budget=", "results.dir=", "data.root=")
    parser.words = Words("FILE|FOLDER SETTING=VALUE ...", groups=("task",), settings=settings)
    parser.add_argument("--kept", metavar="SHARE", type=float, help="of the KV pairs that the method kept, such as 0.1")


def main(flags: argparse.Namespace) -> int:
    """Record the answers and print the table. Raises UserError where none belongs to a prompt of the settings."""
    from kvbench.cli.sweep import print_sweep
    from kvbench.extras.servers.adopted import Adopted, read
    from kvbench.extras.servers.run import Servers, prompt_for, read_tokenizer
    from kvbench.models.prompts.prompt import Prompt
    from kvbench.run.job_queue import JobQueue, RunContext
    from kvbench.run.runner import run
    from kvbench.tasks.task import Sample, Task
    from kvbench.work.planned import plan_sweep
    from kvbench.work.sweep import recorded_rows

    sources = [word for word in flags.words if "=" not in word]
    if len(sources) != 1:
        raise UserError(f"adopt takes one file or folder of answers, not {len(sources)}")
    adopted = read(Path(sources[0]), flags.kept)
    words = [word for word in flags.words if word not in sources]
    named = {word.partition("=")[0] for word in words}
    labels = [f"endpoint.{name}={value}" for name, value in adopted.labels.items() if "endpoint.method" not in named]
    method = None if "endpoint.method" in named else adopted.labels.get("method")
    if method not in (None, "full") and "budget" not in adopted.labels and "endpoint.budget" not in named:
        raise UserError(
            f"{sources[0]}: its configuration has no share of KV pairs that {method} evicts: name what it keeps, "
            "such as endpoint.budget=0.2"
        )
    source_settings = [
        "model=endpoint",
        "endpoint.url=http://nowhere.invalid/v1",
        f"endpoint.server=file-{adopted.sha256[:12]}",
    ]
    sweep = plan_sweep([*source_settings, *labels, *words], tell)

    def prompts() -> "Iterator[tuple[Task, Prompt, Sample]]":
        for group in sweep.plan.groups:
            tokenizer, (cell,) = read_tokenizer(group.model), group.cells
            for sample in group.samples(tokenizer):
                if isinstance(sample, Sample):
                    yield group.task, prompt_for(tokenizer, cell, sample), sample

    if sweep.plan.rows_to_do:
        adopted, found = adopted.placed(prompts())
        _check_found(found, adopted, sources[0])

    def source(*_: object) -> Adopted:
        return adopted

    run_context = RunContext(since=sweep.since, cells=sweep.samples, replaced=sweep.replaced)
    run(sweep.plan, sweep.results, JobQueue(sweep.results, run_context), backend_of=lambda _: Servers(source))
    rows = recorded_rows(sweep)
    print_sweep(sweep)
    return ExitCode.OK if rows["error"].null_count == rows.num_rows else ExitCode.INCOMPLETE


def _check_found(counts: list[int], adopted: "Adopted", source: str) -> None:
    """Raise UserError where no prompt has an answer, and for a folder of kvpress where some have none or several.

    counts: different answers to each prompt.
    """
    if not any(counts):
        raise UserError(
            f"{source}: none of its {adopted.count} prompts belongs to these settings: give the task, "
            "task.context_length, task.samples, seed and model.path that made the prompts"
        )
    if adopted.format != "kvpress":
        return
    if several := sum(count > 1 for count in counts):
        raise UserError(
            f"{source}: {several} of {len(counts)} prompts have several answers and the file has no contexts: "
            "give the task.samples of its evaluation, so that their order tells them apart"
        )
    if not all(counts) and adopted.config.get("fraction", 1) == 1:
        raise UserError(
            f"{source}: {counts.count(0)} of {len(counts)} prompts have no answer, and would be left out of means: "
            "give the task.samples and seed of its evaluation"
        )
