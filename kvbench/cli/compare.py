"""`kvbench compare A B`: two folders, or two selections of one, sample by sample. No model, no torch."""

import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeVar

from kvbench.cli.errors import Exit
from kvbench.cli.terminal import tell, warn
from kvbench.cli.usage import Parser, show
from kvbench.support.errors import UserError

T = TypeVar("T")

USAGE = """kvbench compare DIR_A DIR_B [SELECTION [SELECTION]] ...
kvbench compare [--results DIR] SELECTION SELECTION [alpha=0.05] [relevant=0.1]
                [--format text|markdown|csv|json] [--out FILE]

The mean difference B - A over the samples that both have: interval, tests, verdict. A SELECTION is conditions without
blanks between them, KEY=VALUE[,VALUE][,KEY=VALUE]; a KEY is a column of rows or a setting of cells (policy.window).
alpha: the chance of a false verdict among all lines. relevant: the difference of rates that matters (0.1: 10 points).

  kvbench compare --results results/runs policy=snapkv,score=attn policy=snapkv,score=obcache_joint
  kvbench compare results/before results/after policy=snapkv,budget=0.1,0.2 --format markdown
"""


def main(arguments: Sequence[str]) -> int:
    """Print a comparison. Raises ValueError for bad arguments and FileNotFoundError where there are no rows."""
    if not arguments or any(argument in ("-h", "--help") for argument in arguments):
        show(USAGE)
        return Exit.OK if arguments else Exit.USAGE
    parser = Parser("compare")
    parser.add_argument("--results")
    parser.add_argument("--format", default="text")
    parser.add_argument("--out", type=Path)
    parser.add_argument("words", nargs="*")
    asked = parser.parse_intermixed_args(arguments)
    from kvbench.report.compare.compare import ALPHA, RELEVANT, compare
    from kvbench.report.compare.compare_text import FORMATS, write
    from kvbench.report.compare.paired_rows import sides
    from kvbench.report.output import check_format, text_to

    check_format(asked.format, FORMATS)
    settings, words = shares(asked.words, {"alpha": ALPHA, "relevant": RELEVANT})
    both = selected(lambda: sides(words, asked.results, warn))
    if both is None:
        return Exit.INCOMPLETE
    comparison = compare(*both, alpha=settings["alpha"], relevant=settings["relevant"])
    with text_to(asked.out or sys.stdout) as out:
        write(comparison, asked.format, out)
    if not any(line.n for line in comparison.lines):
        tell("no sample has a value on both sides: nothing was compared")
        return Exit.INCOMPLETE
    return Exit.OK


def selected(sides: Callable[[], T]) -> T | None:
    """The sides, or None after a line on stderr where a selection has no row."""
    from kvbench.report.selection import NothingSelected

    try:
        return sides()
    except NothingSelected as empty:
        tell(f"nothing to compare: {empty}")
        return None


def shares(words: Sequence[str], defaults: dict[str, float]) -> tuple[dict[str, float], list[str]]:
    """Settings that are shares between 0 and 1, and the other words. Raises ValueError for what is none."""
    settings, others = dict(defaults), []
    for word in words:
        key, equals, value = word.partition("=")
        if not equals or key not in defaults:
            others.append(word)
            continue
        try:
            settings[key] = float(value)
        except ValueError:
            settings[key] = 0.0
        if not 0 < settings[key] < 1:
            raise UserError(f"{word}: {key} is a share between 0 and 1, like {key}={defaults[key]:g}")
    return settings, others
