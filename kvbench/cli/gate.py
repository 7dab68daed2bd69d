"""`kvbench gate --baseline DIR --current DIR`: exit code 5 where a run is worse, is another experiment, or too few
prompts could tell. No torch.
"""

import argparse
import json
import os
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from kvbench.cli.compare import shares
from kvbench.cli.errors import ExitCode
from kvbench.cli.parser import Parser, Words
from kvbench.cli.terminal import print_commands, warner
from kvbench.support.errors import UserError

if TYPE_CHECKING:
    from kvbench.report.compare.losses import Effects


def declare(parser: Parser) -> None:
    """Add the flags of the command."""
    parser.description = """
Compare a run with its baseline. It passed, failed, or is inconclusive. Exit code 5 if it failed: it is worse \
beyond chance or by more than --alarm, lacks rows of the baseline, has other prompts or kept sets, or holds more \
bytes for the same KV pairs. Exit code 5 as well if it is inconclusive: the baseline lacks rows of the run, or so \
few independent prompts would not show a loss of --min-effect.
"""
    parser.epilog = """
A SELECTION (as of kvbench compare) restricts both. alpha: the chance that a test fails a run that is not worse. \
kept=note: changed kept sets are reported, but do not fail the gate. by=policy,score: cells with the same policy and \
score are tested together, for runs of many cells with few prompts each. Effects are in points, of all cells and of \
one: --min-effect 5,20.

  kvbench gate --baseline results/reference --current results/runs --junit gate.xml
  kvbench gate --baseline results/reference --current results/runs --github --summary "$GITHUB_STEP_SUMMARY"
"""
    parser.bare_exit = ExitCode.USAGE
    usage = "[SELECTION] [alpha=0.005] [kept=fail|note] [by=policy,score]"
    parser.words = Words(usage, settings=("alpha=", "kept=", "by="), selects_rows=True)
    parser.add_argument("--baseline", metavar="DIR", required=True)
    parser.add_argument("--current", metavar="DIR", required=True)
    parser.add_partial()
    parser.add_argument("--min-effect", metavar="ALL,CELL", help="losses that must be findable, in points (5,20)")
    parser.add_argument("--alarm", metavar="ALL,CELL", help="losses that fail whatever p is, in points (20,50)")
    parser.add_argument("--allow-undecided", action="store_true", help="exit code 0 where the gate is inconclusive")
    parser.add_argument("--format", choices=("text", "markdown", "json"), default="text")
    parser.add_argument("--junit", metavar="FILE", type=Path, help="also write JUnit XML")
    parser.add_argument("--summary", metavar="FILE", type=Path, help="also write a Markdown summary")
    parser.add_argument("--github", action="store_true", help="also print annotations of GitHub")


def main(flags: argparse.Namespace) -> int:
    """Check a run. Raises UserError for bad arguments and MissingFile where there are no rows."""
    from kvbench.records import ResultsFolder
    from kvbench.records.manifest import true_manifest
    from kvbench.report.compare import gate_formats
    from kvbench.report.compare.gate import check
    from kvbench.report.compare.losses import ALARM, MIN_EFFECT
    from kvbench.report.compare.paired_rows import side
    from kvbench.report.report_file import text_to
    from kvbench.report.stats.paired_tests import ALPHA

    shares_of, words = shares(flags.words, {"alpha": ALPHA})
    settings = {key: [word.partition("=")[2] for word in words if word.startswith(f"{key}=")] for key in ("kept", "by")}
    selections = [word for word in words if not word.startswith(("kept=", "by="))]
    if len(selections) > 1 or any(len(values) > 1 for values in settings.values()):
        raise UserError(f"gate takes one selection, and kept=fail|note and by= once; got {' '.join(flags.words)}")
    folders = (flags.baseline, flags.current)
    if os.path.realpath(folders[0]) == os.path.realpath(folders[1]):
        raise UserError(f"--baseline and --current are the same folder, {folders[0]!r}; name two")
    baseline, current = (side(folder, folder, "".join(selections), warner(flags.partial)) for folder in folders)
    gate = check(
        baseline,
        current,
        shares_of["alpha"],
        *settings["kept"],
        min_effect=_effects("--min-effect", flags.min_effect, MIN_EFFECT),
        alarm=_effects("--alarm", flags.alarm, ALARM),
        by=settings["by"][0].split(",") if settings["by"] else (),
        allows=flags.allow_undecided,
    )
    manifests = {folder: true_manifest(folder, warner(flags.partial)) for folder in map(ResultsFolder, folders)}
    cited = (f"{folder.path}: {manifest}" for folder, manifest in manifests.items() if manifest)
    gate = replace(gate, notes=(*gate.notes, *cited))
    for path, text in ((flags.junit, gate_formats.junit(gate)), (flags.summary, gate_formats.markdown(gate))):
        if path is not None:
            is_shared = str(path) == os.environ.get("GITHUB_STEP_SUMMARY")  # other commands write to it as well
            with path.open("a", encoding="utf-8") if is_shared else text_to(path) as file:
                file.write(text)
    if flags.format == "json":
        print(json.dumps(gate_formats.as_tree(gate), indent=2, allow_nan=False))
    else:
        print(getattr(gate_formats, flags.format)(gate), end="")
    if flags.github:
        print_commands(gate_formats.annotations(gate))
    return ExitCode.OK if gate.is_accepted else ExitCode.GATE


def _effects(flag: str, text: str | None, default: "Effects") -> "Effects":
    """Return two numbers of points as shares. Raises UserError for anything else."""
    if text is None:
        return default
    try:
        overall, cell = (float(part) / 100 for part in text.split(","))
    except ValueError:
        overall = cell = 0.0
    if not (0 < overall <= 1 and 0 < cell <= 1):
        usual = f"{100 * default.overall:g},{100 * default.cell:g}"
        raise UserError(
            f"{flag} {text}: allowed: points of all cells and of one, each above 0 and up to 100, as {usual}"
        )
    return replace(default, overall=overall, cell=cell)
