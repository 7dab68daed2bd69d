"""`kvbench gate --baseline DIR --current DIR`: exit code 5 where a run is worse, or another experiment. No torch."""

import argparse
import json
import os
import sys
from pathlib import Path

from kvbench.cli.compare import shares
from kvbench.cli.errors import Exit
from kvbench.cli.parser import Parser, Words
from kvbench.cli.terminal import warn
from kvbench.support.errors import UserError


def declare(parser: Parser) -> None:
    """The flags of the command."""
    parser.description = """
Compare a run with its baseline. Exit code 5 if it is worse beyond chance, lacks rows of the baseline, has other \
prompts or kept sets, or holds more bytes for the same KV pairs.
"""
    parser.epilog = """
A SELECTION (as of kvbench compare) restricts both. alpha: the chance that the gate fails a run that is not worse. \
kept=note: changed kept sets are reported, but do not fail the gate.

  kvbench gate --baseline results/reference --current results/runs --junit gate.xml
  kvbench gate --baseline results/reference --current results/runs --github --summary "$GITHUB_STEP_SUMMARY"
"""
    parser.bare_exit = Exit.USAGE
    parser.words = Words("[SELECTION] [alpha=0.005] [kept=fail|note]", settings=("alpha=", "kept="), selects_rows=True)
    parser.add_argument("--baseline", metavar="DIR", required=True)
    parser.add_argument("--current", metavar="DIR", required=True)
    parser.add_argument("--format", choices=("text", "markdown", "json"), default="text")
    parser.add_argument("--junit", metavar="FILE", type=Path, help="also write JUnit XML")
    parser.add_argument("--summary", metavar="FILE", type=Path, help="also write a Markdown summary")
    parser.add_argument("--github", action="store_true", help="also print annotations of GitHub")


def main(flags: argparse.Namespace) -> int:
    """Check a run. Raises UserError for bad arguments and MissingFile where there are no rows."""
    from kvbench.report.compare import gate as gates
    from kvbench.report.compare.paired_rows import side
    from kvbench.report.output import text_to
    from kvbench.report.stats.paired_tests import ALPHA

    settings, words = shares(flags.words, {"alpha": ALPHA})
    kept = [word.partition("=")[2] for word in words if word.startswith("kept=")]
    selections = [word for word in words if not word.startswith("kept=")]
    if len(selections) > 1 or len(kept) > 1:
        raise UserError(f"gate takes one selection and kept=fail|note once; got {' '.join(flags.words)}")
    folders = (flags.baseline, flags.current)
    if os.path.realpath(folders[0]) == os.path.realpath(folders[1]):
        raise UserError(f"--baseline and --current are the same folder, {folders[0]!r}; name two")
    baseline, current = (side(folder, folder, "".join(selections), warn) for folder in folders)
    gate = gates.check(baseline, current, settings["alpha"], kept[0] if kept else "fail")
    for path, text in ((flags.junit, gates.junit(gate)), (flags.summary, gates.markdown(gate))):
        if path is not None:
            is_shared = str(path) == os.environ.get("GITHUB_STEP_SUMMARY")  # other commands write to it as well
            with path.open("a", encoding="utf-8") if is_shared else text_to(path) as file:
                file.write(text)
    if flags.format == "json":
        print(json.dumps(gates.as_tree(gate), indent=2, allow_nan=False))
    else:
        print(getattr(gates, flags.format)(gate), end="")
    if flags.github:
        print("\n".join(gates.annotations(gate)))
    sys.stdout.flush()
    return Exit.OK if gate.passed else Exit.GATE
