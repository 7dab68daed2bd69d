"""`kvbench run`: plan what the command line asks for, run what is missing, print the table of its cells."""

import argparse
from collections.abc import Sequence
from itertools import groupby
from typing import TYPE_CHECKING

from kvbench.cli.errors import Exit, guarded
from kvbench.cli.parser import HELP, Parser, Words
from kvbench.cli.terminal import tell
from kvbench.support.errors import UserError
from kvbench.support.plugins import groups, items

if TYPE_CHECKING:
    from kvbench.config.overrides import Override

SETTINGS = Words(
    "[key=value ...]",
    groups=("model", "task", "policy", "score", "launcher", "logger", "data", "results", "schedule"),
    settings=("budget=", "seed=", "store="),
)
EPILOG = """
  kvbench run policy=snapkv score=obcache_joint budget=0.1
  kvbench run policy=full,h2o,snapkv score=attn,caote budget=0.1,0.2
  kvbench run model=hf model.path=Qwen/Qwen3-0.6B task.context_length=4096
  kvbench run task=longbench/qasper budget=1024 results.dir=results/qasper
  kvbench run task=ruler policy=snapkv launcher=slurm launcher.time=60

A value with = ( or , is quoted: 'results.dir="a=b"'. A policy that takes no score runs with its own.
Exit codes: 0 all rows are there, 2 a setting is not allowed, 3 data or the model is missing, 4 some samples have \
failed, 75 a scheduler stopped it: run it again, 130 interrupted. kvbench plan shows what would be done.
"""


def declare(parser: Parser) -> None:
    """The flags of the command."""
    parser.description = (
        "Run one cell, or every combination of comma-separated lists, as one planned sweep. Rows are appended to "
        "results.dir; the same command resumes."
    )
    parser.epilog = EPILOG
    parser.words = SETTINGS
    parser.prints_help = False  # the help shows the settings of the line too
    flag = parser.add_argument
    flag("--retry-errors", action="store_true", help="make rows again that have an error")
    flag("--quiet", action="store_true", help="print only warnings and errors, no table")
    flag("--shard", metavar="I/N", help="make the I-th of N parts, leave the others to others")
    flag(
        "-m", "--multirun", action="store_true", help="one run per cell, through Hydra's launcher (hydra/launcher=NAME)"
    )
    flag("-r", "--run", action="store_true", help="refuse lists: run one cell")
    flag("-c", "--cfg", choices=("job",), help="print the settings of one cell as YAML")
    flag("-p", "--package", metavar="NAME", help="print this part of them")
    flag("--resolve", action="store_true", help="print them with interpolations replaced")
    flag(*HELP, action="store_true", help="print this text, the files of all groups and the settings")
    parser.set_defaults(usage_text=parser.format_help)


def main(flags: argparse.Namespace) -> int:
    """Run a sweep, or print its help or settings."""
    actions = [f"--{name}" for name in ("run", "multirun", "cfg") if getattr(flags, name)]
    if len(actions) > 1:
        raise UserError(f"{' and '.join(actions)} do not go together")
    if flags.resolve and not (flags.cfg or flags.help):
        raise UserError("--resolve goes with --cfg or --help")
    if flags.package is not None and not flags.cfg:
        raise UserError("--package goes with --cfg")
    shard = None
    if flags.shard is not None:
        if actions or flags.help:
            raise UserError(f"--shard and {[*actions, '--help'][0]} do not go together")
        index, _, of = flags.shard.partition("/")
        if not (index.isdecimal() and of.isdecimal()):
            raise UserError(f"--shard {flags.shard}: allowed: I/N, such as 2/8 for the second of eight")
        from kvbench.run.plan import Shard

        shard = Shard(int(index) - 1, int(of))
    if flags.help or flags.cfg:
        return _show(flags)
    from kvbench.cli.sweep import print_sweep, run_sweep
    from kvbench.config.sweep import plan_sweep

    def run(settings: Sequence[str]) -> int:
        sweep = plan_sweep(settings, tell, flags.retry_errors, shard, flags.quiet)
        return run_sweep(sweep, table=not flags.multirun)

    if flags.multirun:
        from kvbench.config.multirun import OF_HYDRA, multirun

        code = multirun(flags.words, lambda settings: guarded(lambda: run(settings)), tell, Exit.INTERRUPTED)
        if code in (Exit.OK, Exit.INCOMPLETE) and not flags.quiet:  # one table of all jobs
            sweep = plan_sweep([word for word in flags.words if not OF_HYDRA.match(word)], lambda _: None)
            if rows := [row for row in sweep.rows if sweep.holds(row)]:  # none yet where jobs wait in a queue
                print_sweep(sweep, rows)
        return code
    if flags.run:
        _without_lists(flags.words)
    return run(flags.words)


def _show(flags: argparse.Namespace) -> int:
    from kvbench.config.compose import as_yaml, combinations

    tree = combinations(_without_lists(flags.words))[0]
    if flags.help:
        print(flags.usage_text())
        print("== Groups (group=option; see kvbench list) ==")
        for group in groups():
            names = sorted(f"{group}/{name}".rpartition("/") for name in items(group))
            for folder, options in groupby(names, lambda name: name[0]):
                print(f"{folder}: {', '.join(option for *_, option in options)}")
        print("\n== Settings and their defaults (key=value) ==")
    print(as_yaml(tree, flags.resolve, flags.package), end="")
    return Exit.OK


def _without_lists(words: Sequence[str]) -> "list[Override]":
    """The settings of a line. Raises UserError for a line with lists."""
    from kvbench.config.compose import combinations, with_members
    from kvbench.config.overrides import parse

    overrides = with_members(parse(words))
    for override in overrides:
        if len(override.values) > 1:
            combinations(overrides)  # names a value that does not exist first
            raise UserError(f"{override.text} lists {len(override.values)} values: name one, or leave out the flags")
    return overrides
