"""`kvbench merge`: results folders copied into one, checked. No model, no torch."""

import argparse
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from kvbench.cli.errors import ExitCode
from kvbench.cli.parser import Parser, Words
from kvbench.cli.terminal import say, screen, warner
from kvbench.support.errors import UserError
from kvbench.support.quantity import count_noun

if TYPE_CHECKING:
    from kvbench.records.merge import Taken


def declare(parser: Parser) -> None:
    """Add the flags of the command."""
    parser.description = """
Copy results folders into one, such as the shards of machines without a common file system. Rows of one cell and \
sample must not contradict each other; of equal ones the first by time is taken.
"""
    parser.epilog = """
  kvbench merge results/shard-1 results/shard-2 --out results/merged

Cells, environments, code, what is beside rows, tracebacks and requests come along, and a manifest is written. The \
folders stay as they are; --out names a new or empty one. A run with results.dir=results/merged continues from it.
Exit codes: 0 merged, 2 rows contradict each other or a file was changed, 3 a folder is missing or there are no rows.
"""
    parser.bare_exit = ExitCode.USAGE
    parser.words = Words("DIR DIR ...")
    parser.add_partial()
    parser.add_argument("--dry", action="store_true", help="print what would come from which folder, and write nothing")
    parser.add_argument("--out", metavar="DIR", required=True, help="the folder to write: a new or empty one")


def main(flags: argparse.Namespace) -> int:
    """Merge folders. Raises UserError and MissingFile as `kvbench.records.merge.merge`."""
    from kvbench.records.merge import merge, taken
    from kvbench.report.rows import load_table

    if len(flags.words) < 2:
        raise UserError(f"merge takes two results folders or more, not {len(flags.words)}: kvbench merge A B --out C")
    warn = warner(flags.partial)
    if flags.dry:
        for line in described(taken(flags.words, flags.out, warn)):
            say(screen(), line)
        return ExitCode.OK
    manifest = merge(flags.words, flags.out, warn)
    load_table(flags.out, (), warn)  # warns of missing rows
    say(screen(), f"{flags.out}: {manifest}")
    say(screen(), f"root {manifest.root}")
    return ExitCode.OK


def described(files: "Iterable[Taken]") -> Iterator[str]:
    """Yield a line for each file of rows and their details, and one for all other files of a kind and folder."""
    other_files = Counter[tuple[str, str]]()
    for taken in files:
        kind, folder = taken.file.parent.name, str(taken.file.parent.parent)
        if taken.lines is not None:
            yield f"{kind}/{taken.file.name}: {count_noun(len(taken.lines), 'row')} from {folder}"
        elif taken.file.suffix == ".jsonl":
            yield f"{kind}/{taken.file.name}: from {folder}"
        else:
            other_files[kind, folder] += 1
    for (kind, folder), count in other_files.items():
        yield f"{kind}: {count_noun(count, 'file')} from {folder}"
    yield "nothing was written"
