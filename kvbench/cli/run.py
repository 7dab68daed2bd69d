"""`kvbench run`: plan what the command line asks for, run what is missing, print the table of its cells."""

import argparse
import os
from collections.abc import Sequence
from itertools import groupby
from typing import TYPE_CHECKING, Any

from yaml import safe_load

from kvbench.cli.errors import Exit, guarded
from kvbench.cli.parser import HELP, Parser, Words
from kvbench.cli.terminal import print_columns, say, screen, tell
from kvbench.support import paths
from kvbench.support.errors import UserError
from kvbench.support.noted import noted
from kvbench.support.plugins import held_groups, items
from kvbench.support.settings_file import entry_of

if TYPE_CHECKING:
    from kvbench.config.overrides import Override

SETTINGS = Words(
    "[key=value ...]",
    groups=("model", "task", "policy", "score", *held_groups(), "launcher", "logger", "data", "results", "schedule"),
    settings=("budget=", "seed=", "protocol=", "reference="),
)
SCHEDULE = "kvbench.eviction.schedule.Schedule"
ESSENTIALS = """
Ten settings to begin with. A list (a,b) runs every combination; a folder or a pattern (ruler, 'ruler/niah_*') stands \
for all its members.

  policy=snapkv,h2o             methods: kvbench list policies
  score=attn                    what ranks the KV pairs: kvbench list scores
  budget=0.1,1024               what is kept: a share of the prompt, or pairs per KV head
  task=ruler/niah_single_1      prompts and their metric: kvbench list tasks
  task.context_length=4096      tokens of a prompt
  task.samples=100              prompts per task
  model=hf                      a model of your own; without it the small embedded one
  model.path=FOLDER_OR_HUB_ID   its weights
  schedule.evict_after=context  context: evict before the question is read; prompt: after
  results.dir=results/runs      where the rows are kept

The full cache is run beside them, to hold them against; reference=none leaves it out.
"""
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
        f"results.dir; the same command resumes.\n{ESSENTIALS}"
    )
    parser.epilog = EPILOG
    parser.words = SETTINGS
    parser.prints_help = False  # the help shows the settings of the line too
    flag = parser.add_argument
    flag("--retry-errors", action="store_true", help="run failed samples again")
    parser.add_stale()
    flag("--quiet", action="store_true", help="print only warnings and errors, no table")
    flag(
        "--shard",
        metavar="I/N|auto|auto/N",
        help="run part I of N only; other processes run the other parts; auto: the part that a SLURM array, SkyPilot "
        "or (with N) an Indexed Job of Kubernetes gives this process",
    )
    flag(
        "-m", "--multirun", action="store_true", help="one run per cell, through Hydra's launcher (hydra/launcher=NAME)"
    )
    flag("-r", "--run", action="store_true", help="run one cell; lists are refused")
    flag("-c", "--cfg", choices=("job",), help="print the settings of one cell as YAML")
    flag("-p", "--package", metavar="NAME", help="print this part of them")
    flag("--resolve", action="store_true", help="print them with interpolations replaced")
    flag(
        *HELP,
        action="store_true",
        help=(
            "print this text and all settings with their meaning, with the values that other words of the command "
            "line give them"
        ),
    )
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
        from kvbench.run.shard import shard_of

        shard = shard_of(flags.shard, os.environ)
    if flags.help or flags.cfg:
        return _show(flags)
    from kvbench.cli.sweep import print_sweep, run_sweep
    from kvbench.config.sweep import plan_sweep
    from kvbench.work.sweep import logger_of

    def run(settings: Sequence[str]) -> int:
        logger = logger_of(settings)
        sweep = plan_sweep(settings, tell, flags.retry_errors, shard, flags.quiet, flags.stale)
        return run_sweep(sweep, not flags.multirun, logger)

    if flags.multirun:
        from kvbench.config.multirun import OF_HYDRA, multirun

        code = multirun(flags.words, lambda settings: guarded(lambda: run(settings)), tell, Exit.INTERRUPTED)
        if code in (Exit.OK, Exit.INCOMPLETE) and not flags.quiet:  # one table of all jobs
            from kvbench.report.tables.summary import NEEDED

            words = [word for word in flags.words if not OF_HYDRA.match(word)]
            sweep = plan_sweep(words, lambda _: None, stale="keep")
            if (rows := sweep.rows(NEEDED)).num_rows:  # none yet where jobs wait in a queue
                print_sweep(sweep, rows)
        return code
    if flags.run:
        _without_lists(flags.words)
    return run(flags.words)


def _show(flags: argparse.Namespace) -> int:
    from kvbench.config.compose import as_yaml, combinations

    tree = combinations(_without_lists(flags.words))[0]
    if flags.help:
        _print_help(flags.usage_text(), tree if not flags.resolve else safe_load(as_yaml(tree, resolve=True)))
    else:
        print(as_yaml(tree, flags.resolve, flags.package), end="")
    return Exit.OK


def _print_help(usage: str, tree: dict[str, Any]) -> None:
    """The usage, the files of every group, and each setting with its value and what it means."""
    from kvbench.cli.list import NO_SETTINGS, meanings_of, notes_of
    from kvbench.config.compose import flat
    from kvbench.config.overrides import GROUPS, written

    print(usage)
    print("== Groups (group=name; kvbench list says what each is) ==")
    for group in GROUPS:
        names = sorted(f"{group}/{name}".rpartition("/") for name in items(group))
        for folder, members in groupby(names, lambda name: name[0]):
            say(screen(), f"{folder}: {', '.join(name for *_, name in members)}")
    meanings = {group: meanings_of(group, tree[group]) for group in GROUPS} | {"schedule": noted(SCHEDULE)}
    texts = dict(entry_of(safe_load((paths.conf() / "run.yaml").read_text("utf-8")), "", "").notes)
    for group, of_group in meanings.items():
        texts |= {f"{group}.{name}": text for name, text in of_group.items()}
        name = tree[group]["name"] if group in GROUPS else None
        if name in items(group):  # a score of your own has no file there
            texts |= notes_of(items(group)[name])
    print("\n== All settings, with their values (key=value) ==")
    values = [(key, value) for key, value in flat(tree) if not {*key.split(".")} & NO_SETTINGS]
    for _, part in groupby(values, lambda setting: setting[0].rpartition(".")[0].partition(".")[0]):
        lines = [
            (f"{key}:" if value and isinstance(value, dict) else f"{key}={written(value)}", key) for key, value in part
        ]
        print_columns([(f"  {line}", texts.get(key, "")) for line, key in lines if key in texts or "=" in line])


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
