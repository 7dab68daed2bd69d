"""`kvbench recommend`: which methods are worth it for a model, prompts and a memory."""

import argparse
import sys
from pathlib import Path

from kvbench.cli.errors import ExitCode
from kvbench.cli.parser import Parser, Words, split_settings
from kvbench.cli.terminal import tell, tell_written
from kvbench.report.report_file import FORMATS, format_of

EPILOG = """
  data=FILE.jsonl     your prompts, lines as of task=jsonl; or task=NAME, any task of kvbench list tasks
  memory=2GiB         for weights, the prompt that is read and all answers; without it there is no limit
  loss=2              points of the mean that a method may lose against the full cache
  requests=1          at a time: one is being read while the others are answered
  alpha=0.05          the chance of wrongly calling any method worse, and of wrongly calling any good enough

Further words are settings as of kvbench run: policy=, score=, budget= and schedule.evict_after= name what is tried, \
task.samples= the most prompts. Methods that do not fit are not run. The others answer 8 prompts, 16, 32 and so on \
beside the full cache; those of which it is decided what they lose leave. Rows go to results.dir, as those of kvbench \
run: the same command continues where it was interrupted.

  kvbench recommend model=hf model.path=FOLDER_OR_HUB_ID data=mine.jsonl memory=2GiB
  kvbench recommend task=ruler/niah_single_1 task.samples=200 loss=5 budget=0.05,0.1 --json
  kvbench recommend data=mine.jsonl memory=24GiB requests=8 --out page.html
Exit codes: 0 done, decided or not; 2 a setting is not allowed, or nothing fits; 3 data or the model is missing; 4 \
some samples have failed; 5 nothing to recommend: the full cache is at the floor, or all are at the ceiling; 75, 130 \
interrupted: run it again.
"""


def declare(parser: Parser) -> None:
    """Add the flags of the command."""
    from kvbench.cli.run import SETTINGS

    parser.description = "The methods that are worth it, by prompts of your own and the memory that there is."
    parser.epilog = EPILOG
    parser.words = Words(
        "[data=FILE.jsonl] [memory=SIZE] [loss=2] [key=value ...]",
        groups=SETTINGS.groups,
        settings=("data=", "memory=", "loss=", "requests=", "alpha=", *SETTINGS.settings),
    )
    parser.bare_exit = ExitCode.USAGE
    parser.add_stale()
    flag = parser.add_argument
    flag("--format", metavar="|".join(FORMATS))
    flag("--json", action="store_true", help="the same as --format json")
    flag("--out", metavar="FILE", type=Path, help="write to a file; its suffix chooses the format, .html a page")


def main(flags: argparse.Namespace) -> int:
    """Print a recommendation."""
    from kvbench.extras.recommend.recommend import SETTINGS, need_of, recommend
    from kvbench.extras.recommend.recommendation import report_of
    from kvbench.report.formats.emit import write_report
    from kvbench.report.report_file import check_format
    from kvbench.support.errors import CannotTell, UserError
    from kvbench.work.progress import progress
    from kvbench.work.sweep import RunOutput

    if flags.json and flags.format not in (None, "json"):
        raise UserError(f"--json and --format {flags.format} do not go together")
    form = "json" if flags.json else flags.format or format_of(flags.out, FORMATS)
    check_format(form, FORMATS)
    settings, words = split_settings(flags.words, (*SETTINGS, "data"))
    data = settings.pop("data", None)
    recommendation = recommend(words, data, need_of(settings), RunOutput(tell, progress), flags.stale)
    if (reason := recommendation.tells_nothing) is not None:
        raise CannotTell(f"nothing to recommend: {reason}")
    write_report(report_of(recommendation), form, flags.out or sys.stdout)
    tell_written(flags.out)
    return (
        ExitCode.INCOMPLETE
        if any(line.failed for line in (recommendation.full, *recommendation.methods))
        else ExitCode.OK
    )
