"""`kvbench paper`: a table or figure of a paper, planned and run as a whole, rendered beside the published numbers."""

import argparse
import sys
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING

from kvbench.cli.errors import ExitCode, guarded
from kvbench.cli.parser import Parser, Words
from kvbench.cli.terminal import tell, tell_written
from kvbench.report.report_file import FORMATS, format_of
from kvbench.support import paths
from kvbench.support.errors import UserError
from kvbench.support.named import code_of, named
from kvbench.support.plugins import held_groups, items

if TYPE_CHECKING:
    from kvbench.papers.request import PaperRequest
    from kvbench.run.shard import Shard


def declare(parser: Parser) -> None:
    """Add the flags of the command."""
    parser.description = """
Render a table or figure of a paper (an item), or all of them: plan its runs, run what is missing, and print our mean, \
the published number and their difference in the paper's layout. To list the items: kvbench paper list.
"""
    brought = named("paper_flag")
    examples = "".join(f"  kvbench paper obcache/table1 --{name}\n" for name in brought)
    parser.epilog = f"""
  kvbench paper list
  kvbench paper obcache/table1
  kvbench paper obcache/table1 --plan
  kvbench paper obcache/table1 --commands
{examples}\
  kvbench paper obcache/table1 launcher=slurm launcher.time=480
  kvbench paper obcache/table1 model=reference task.samples=2 task.context_length=512
  kvbench paper all --smoke --out pages

launcher=local starts several processes and renders when they have ended; launcher=slurm submits jobs, and the same \
command renders when their rows are there. Settings are those of kvbench run and override the item's; overriding a \
group (model=reference) resets it. A difference is shown only for the paper's own model and settings. --smoke takes \
the embedded model, one sample, generated prompts of 768 and 1024 tokens and budgets of 400 and 500 pairs; settings \
override these too. An item of times, texts or needles keeps its task. paper all reports items whose data or model is \
missing, and continues with the others; its --out is a folder for pages, pictures and seconds.csv (the time of each \
item). Exit code 3: no data or no model; 4: some rows are missing, or samples have failed.
"""
    parser.bare_exit = ExitCode.OK
    parser.words = Words(
        "list|all|NAME [settings]",
        lambda before: () if before else ("list", "all", *items("paper")),
        groups=("model", "task", "policy", "score", *held_groups(), "data", "launcher"),
        settings=("budget=", "seed="),
    )
    parser.add_argument(
        "--smoke", action="store_true", help="check that an item runs: embedded model, one sample, short contexts"
    )
    only = parser.add_mutually_exclusive_group()
    only.add_argument("--plan", action="store_true", help="show what would run and what is done already; run nothing")
    only.add_argument(
        "--commands", action="store_true", help="print the commands that run the item's cells; run nothing"
    )
    for name, flag in brought.items():
        only.add_argument(f"--{name}", action="store_true", help=flag.says)
    only.add_argument("--published", action="store_true", help="render only the paper's numbers")
    parser.add_argument(
        "--measure",
        action="store_true",
        help="with --plan: run the first prompt of each task, and estimate how long the rest takes",
    )
    parser.add_argument("--format", choices=FORMATS)
    parser.add_argument(
        "--out", metavar="FILE", type=Path, help="write to a file instead of the screen; for all: a folder"
    )
    parser.add_argument("--plot", metavar="FILE.png|svg|pdf", type=Path, help="draw a figure into a file")
    parser.add_argument("--retry-errors", action="store_true", help="run failed samples again")
    parser.add_stale()


def main(flags: argparse.Namespace) -> int:
    """List, plan, run and render. Raises UserError for bad names, settings and flags."""
    if flags.measure and not flags.plan:
        raise UserError("--measure estimates the time of --plan: give both flags")
    name, *words = flags.words or [""]
    if name == "list":
        set_flags = [flag for flag, value in vars(flags).items() if value and (flag, value) != ("stale", "stop")]
        flag_names = [f"--{flag.replace('_', '-')}" for flag in set_flags if flag != "words"]
        if words or flag_names:
            raise UserError(f"paper list takes no settings and no flags: {' '.join([*words, *flag_names])}")
        from kvbench.cli.list import print_list

        print_list("paper")
        return ExitCode.OK
    if flags.format is None:
        flags.format = format_of(flags.out if name != "all" else None, FORMATS)
    if (flag := next((flag for flag in named("paper_flag") if getattr(flags, flag)), None)) is not None:
        if name in ("", "all") or words or flags.plot:
            raise UserError(
                f"--{flag} takes one item, and neither settings nor --plot: kvbench paper obcache/table1 --{flag}"
            )
        from kvbench.report.formats.emit import write_report

        write_report(code_of("paper_flag", flag)(name, paths.papers()), flags.format, flags.out or sys.stdout)
        tell_written(flags.out)
        return ExitCode.OK
    from kvbench.cli.sweep import SCREEN
    from kvbench.papers.request import PaperRequest, RowsElsewhere, Runner
    from kvbench.papers.run import render_all, render_item

    settings = {field.name: getattr(flags, field.name) for field in fields(PaperRequest)}
    request = PaperRequest(**{**settings, "words": tuple(words)})
    runner = Runner(SCREEN, PartOfItem)
    try:
        if name != "all":
            complete = render_item(name, request, runner, flags.out or sys.stdout, flags.plot)
        elif flags.plot is None:
            complete = render_all(request, runner, flags.out)
        else:
            raise UserError("paper all draws every figure into the folder of --out: leave --plot out")
    except RowsElsewhere as elsewhere:
        tell(str(elsewhere))
        return elsewhere.code
    tell_written(flags.out)
    tell_written(flags.plot)
    return ExitCode.OK if complete else ExitCode.INCOMPLETE


@dataclass(frozen=True)
class PartOfItem:
    """A part of the rows of an item, made in the process that calls it; returns its exit code."""

    name: str
    request: "PaperRequest"
    part: "Shard"

    def __call__(self) -> int:
        return guarded(self._run)

    def _run(self) -> int:
        from kvbench.cli.sweep import SCREEN, run_sweep
        from kvbench.papers.item import item_of
        from kvbench.papers.request import Runner
        from kvbench.papers.sweep import ItemSweep

        work = ItemSweep(item_of(self.name), self.request, Runner(SCREEN, PartOfItem))
        return run_sweep(work.sweep(self.part))
