"""`kvbench gate --baseline DIR --current DIR`: exit code 5 where a run is worse, or another experiment. No torch."""

import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from kvbench.cli.compare import selected, shares
from kvbench.cli.errors import Exit
from kvbench.cli.terminal import warn
from kvbench.cli.usage import Parser, show
from kvbench.support.errors import UserError

USAGE = """kvbench gate --baseline DIR --current DIR [SELECTION] [alpha=0.005] [kept=fail|note]
             [--junit FILE] [--summary FILE] [--github] [--format text|markdown|json]

Fails (exit code 5) where the current run is worse than the baseline by more than chance, lacks rows of it, was asked
other prompts, kept other sets, or holds more bytes than the baseline did for what it keeps. A SELECTION (as of kvbench
compare) restricts both. alpha: the chance that a run that is not worse fails as worse. kept=note: changed kept sets are
told and do not fail. --junit, --summary: also write JUnit XML, a Markdown summary. --github: also print annotations.

  kvbench gate --baseline results/reference --current results/runs --junit gate.xml
  kvbench gate --baseline results/reference --current results/runs --github --summary "$GITHUB_STEP_SUMMARY"
"""
FORMATS = ("text", "markdown", "json")


def main(arguments: Sequence[str]) -> int:
    """Check a run. Raises ValueError for bad arguments and FileNotFoundError where there are no rows."""
    if not arguments or any(argument in ("-h", "--help") for argument in arguments):
        show(USAGE)
        return Exit.OK if arguments else Exit.USAGE
    parser = Parser("gate")
    parser.add_argument("--baseline", required=True)
    parser.add_argument("--current", required=True)
    parser.add_argument("--format", default="text")
    parser.add_argument("--junit", type=Path)
    parser.add_argument("--summary", type=Path)
    parser.add_argument("--github", action="store_true")
    parser.add_argument("words", nargs="*")
    asked = parser.parse_intermixed_args(arguments)
    from kvbench.report.compare import gate_text
    from kvbench.report.compare.gate import check
    from kvbench.report.compare.paired_rows import side
    from kvbench.report.junit import junit
    from kvbench.report.output import check_format
    from kvbench.report.stats.corrections import ALPHA

    check_format(asked.format, FORMATS)
    settings, words = shares(asked.words, {"alpha": ALPHA})
    kept = [word.partition("=")[2] for word in words if word.startswith("kept=")]
    words = [word for word in words if not word.startswith("kept=")]
    if len(words) > 1 or len(kept) > 1:
        raise UserError(f"gate takes one selection and kept=fail|note once; got {' '.join(asked.words)}")
    selection = words[0] if words else ""
    folders = (asked.baseline, asked.current)
    if os.path.realpath(folders[0]) == os.path.realpath(folders[1]):
        raise UserError(f"--baseline and --current are the same folder, {folders[0]!r}; name two")
    both = selected(lambda: [side(folder, folder, selection, warn) for folder in folders])
    if both is None:
        return Exit.INCOMPLETE
    baseline, current = both
    gate = check(baseline, current, settings["alpha"], kept[0] if kept else "fail")
    for path, text in ((asked.junit, junit(gate)), (asked.summary, gate_text.markdown(gate))):
        if path is not None:
            _write(path, text)
    if asked.format == "json":
        print(json.dumps(gate_text.as_tree(gate), indent=2, allow_nan=False))
    else:
        print(gate_text.markdown(gate) if asked.format == "markdown" else gate_text.text(gate), end="")
    if asked.github:
        print("\n".join(gate_text.annotations(gate)))
    sys.stdout.flush()
    return Exit.OK if gate.passed else Exit.GATE


def _write(path: Path, text: str) -> None:
    """Write a file whole; the summary of a GitHub step, which other commands write to as well, grows by the text."""
    from kvbench.report.output import text_to

    if str(path) == os.environ.get("GITHUB_STEP_SUMMARY"):
        with path.open("a", encoding="utf-8") as file:
            file.write(text)
        return
    with text_to(path) as file:
        file.write(text)
