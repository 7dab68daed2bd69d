"""`kvbench run`: plan what the command line asks for, run what is missing, print the table of its cells."""

import argparse
import os

from kvbench.cli.errors import ExitCode
from kvbench.cli.parser import Parser, Words
from kvbench.cli.terminal import tell
from kvbench.support.errors import UserError
from kvbench.support.plugins import held_groups

SETTINGS = Words(
    "[key=value ...]",
    groups=("model", "task", "policy", "score", *held_groups(), "launcher", "logger", "data", "results", "schedule"),
    settings=("budget=", "seed=", "protocol=", "reference="),
)
ESSENTIALS = """Run a sweep. Every combination of comma-separated values is one cell.

  policy=snapkv,h2o             eviction methods: kvbench list policies
  score=attn                    what ranks KV pairs; default: the policy's own: kvbench list scores
  budget=0.1,1024,600KiB        what is kept: a share of the tokens read, KV pairs per head, or bytes of a prompt
  protocol=paper                paper: settings of each paper; common: one window, recent and pool where there is one
  task=ruler/niah_single_1      prompts and their metric: kvbench list tasks
  task.context_length=4096      tokens of prompt and answer
  task.samples=100              prompts of a task
  model=hf model.path=PATH|ID   a folder or a name on the Hub; default: the small embedded model: kvbench list models
  schedule.evict_after=context  context: evict before the question is read; prompt: after
  schedule.decode_every=128     evict again after every 128 tokens of the answer
  reference=none                leave out the full cache, which is run beside the others
  launcher=slurm                a job array; local: one process per GPU
  results.dir=results/runs      rows are appended here; the same command resumes

{extras}All settings: kvbench list settings, kvbench list settings policy=lava
"""
EPILOG = """
A pattern stands for all that match: task=ruler, 'task=ruler/niah_*', 'policy=*'. A value with = ( or , is quoted: \
'results.dir="a=b"'.

  kvbench run policy=h2o,snapkv score=attn,caote budget=0.1,0.2
  kvbench run model=hf model.path=Qwen/Qwen3-0.6B task.context_length=4096
  kvbench run task=longbench/qasper policy=snapkv budget=1024
  kvbench run task=ruler policy=snapkv launcher=slurm launcher.time=60

Exit codes: 0 all rows are there, 2 wrong setting, 3 data or model missing, 4 failed samples, 75 or 130 stopped (run \
it again).
"""


def declare(parser: Parser) -> None:
    """Add the flags of the command."""
    lists = ", ".join(f"kvbench list {group}s" for group in held_groups())
    extras = f"How kept pairs are held and read: {lists}\n" if lists else ""
    parser.description = ESSENTIALS.replace("{extras}", extras)
    parser.epilog = EPILOG
    parser.words = SETTINGS
    flag = parser.add_argument
    flag("--retry-errors", action="store_true", help="run failed samples again")
    parser.add_stale()
    flag(
        "--shard",
        metavar="I/N|auto|auto/N",
        help="run one part of N; auto: the part that SLURM, SkyPilot or (auto/N) Kubernetes gives this process",
    )
    flag("--quiet", action="store_true", help="print only warnings and errors, no table")
    flag("-c", "--cfg", choices=("job",), help="print the settings of one cell as YAML")


def main(flags: argparse.Namespace) -> int:
    """Run a sweep, or print the settings of one cell."""
    if flags.cfg:
        if flags.shard is not None:
            raise UserError("--shard and --cfg do not go together")
        from kvbench.config.compose import as_yaml
        from kvbench.work.planned import one_tree

        print(as_yaml(one_tree(flags.words)), end="")
        return ExitCode.OK
    shard = None
    if flags.shard is not None:
        from kvbench.run.shard import shard_of

        shard = shard_of(flags.shard, os.environ)
    from kvbench.cli.sweep import run_sweep
    from kvbench.work.planned import plan_sweep
    from kvbench.work.sweep import logger_of

    logger = logger_of(flags.words)
    sweep = plan_sweep(flags.words, tell, flags.retry_errors, shard, flags.quiet, flags.stale)
    return run_sweep(sweep, logger)
