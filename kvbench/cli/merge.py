"""`kvbench merge`: results folders copied into one, checked. No model, no torch."""

import argparse

from kvbench.cli.errors import Exit
from kvbench.cli.parser import Parser, Words
from kvbench.cli.terminal import say, screen, warner
from kvbench.records.merge import merge
from kvbench.support.errors import UserError


def declare(parser: Parser) -> None:
    """The flags of the command."""
    parser.description = """
Copy results folders into one, such as those of shards on machines without a common file system. Rows of one cell and \
sample must not contradict each other; of equal ones the first by time is taken.
"""
    parser.epilog = """
  kvbench merge results/shard-1 results/shard-2 --out results/merged

Cells, environments, code, what is beside rows, tracebacks and requests come along, and a manifest is written. The \
folders stay as they are; --out names a new or empty one. A run with results.dir=results/merged continues from it.
Exit codes: 0 merged, 2 rows contradict each other or a file was changed, 3 a folder is missing or there are no rows.
"""
    parser.bare_exit = Exit.USAGE
    parser.words = Words("DIR DIR ...")
    parser.add_partial()
    parser.add_argument("--out", metavar="DIR", required=True, help="the folder to write: a new or empty one")


def main(flags: argparse.Namespace) -> int:
    """Merge folders. Raises UserError and MissingFile as `kvbench.records.merge.merge`."""
    from kvbench.report.rows import load_table

    if len(flags.words) < 2:
        raise UserError(f"merge takes two results folders or more, not {len(flags.words)}: kvbench merge A B --out C")
    warn = warner(flags.partial)
    manifest = merge(flags.words, flags.out, warn)
    load_table(flags.out, (), warn)  # warns of missing rows
    say(screen(), f"{flags.out}: {manifest}")
    say(screen(), f"root {manifest.root}")
    return Exit.OK
