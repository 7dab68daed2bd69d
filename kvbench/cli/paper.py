"""`kvbench paper`: a table or figure of a paper, planned and run as a whole, rendered beside the published numbers."""

import argparse
from collections.abc import Sequence
from pathlib import Path

from kvbench.cli.errors import Exit
from kvbench.cli.usage import Parser, show
from kvbench.support.errors import UserError
from kvbench.support.nearest import closest

FORMATS = {"text": ".txt", "markdown": ".md", "latex": ".tex", "csv": ".csv"}
RETRY = "--retry-errors"
USAGE = """kvbench paper list
kvbench paper NAME [settings] [--smoke] [--plan [--measure] | --published]
                   [--format text|markdown|latex|csv] [--out FILE] [--plot FILE.png|svg|pdf] [--retry-errors]
kvbench paper all [settings] [--smoke] [--plan | --published] [--format ...] [--out FOLDER] [--retry-errors]

  kvbench paper obcache/table1
  kvbench paper obcache/table1 --plan
  kvbench paper obcache/table1 model=reference task.samples=2 task.context_length=512
  kvbench paper all --smoke --out pages

Plans all runs of the item, runs what is missing and sets the means beside the paper's, in the paper's layout: ours,
published, difference. Settings are those of kvbench run and win over the item's; a part that is named (model=reference)
drops all that the item says of it. A difference is there only for the paper's own model and settings.

--smoke makes an item small: the embedded model, one sample, short contexts, budgets to match; settings still win over
that. Where no data is there, prompts that need none stand in. --plan shows what would run and what of it is done, and
runs nothing; with --measure it measures how long parts take on this machine, and says how long the whole will.
--published renders the paper's numbers alone. --plot draws an item that is a figure. With all, items whose data or
model is not there are told and the others go on; --out is a folder of pages and pictures, and of seconds.csv, how long
each took. Exit code 3: no data or no model; 4: some of it is missing, or samples have failed.
"""


def main(arguments: Sequence[str]) -> int:
    """List, plan, run and render. Raises ValueError for bad names, settings and flags."""
    if not arguments or any(argument in ("-h", "--help") for argument in arguments):
        show(USAGE)
        return Exit.OK
    flags = _flags(arguments)
    name, *words = flags.words
    if name == "list":
        if words:
            raise UserError(f"paper list takes no settings: {' '.join(words)}")
        from kvbench.cli.list import print_list

        print_list("paper")
        return Exit.OK
    if flags.format is None:
        suffixes = {suffix: known for known, suffix in FORMATS.items()}
        flags.format = suffixes.get(flags.out.suffix, "text") if flags.out and name != "all" else "text"
    if flags.format not in FORMATS:
        raise UserError(f"--format {flags.format}: {closest(flags.format, FORMATS)}")
    if name == "all":
        from kvbench.papers.all import every

        return every(words, flags)
    from kvbench.papers.run import one

    return one(name, words, flags)


def _flags(arguments: Sequence[str]) -> argparse.Namespace:
    parser = Parser("paper")
    what = parser.add_mutually_exclusive_group()
    what.add_argument("--plan", action="store_true")
    what.add_argument("--published", action="store_true")
    parser.add_argument("--smoke", action="store_true")
    parser.add_argument("--measure", action="store_true")
    parser.add_argument("--format")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--plot", type=Path)
    parser.add_argument(RETRY, action="store_true")
    parser.add_argument("words", nargs="+")
    flags = parser.parse_intermixed_args(list(arguments))
    if flags.measure and not flags.plan:
        raise UserError("paper: --measure is for the seconds of --plan: give both")
    return flags
