"""`kvbench conform`: golden cases by the code of a real run, properties of methods, or what an extra checks."""

import argparse
from collections.abc import Sequence
from pathlib import Path

from kvbench.cli.errors import ExitCode
from kvbench.cli.parser import Parser, Words, split_settings
from kvbench.support.errors import MissingFile, UserError
from kvbench.support.named import named
from kvbench.support.text import printable


def declare(parser: Parser) -> None:
    """Add the flags of the command."""
    parser.description = "Check against golden cases and print one line per case."
    parser.epilog = """
  kvbench conform tests/golden/eviction/*.npz                        eviction: scores, lengths, kept positions
  kvbench conform tests/golden/metrics/* tests/golden/ruler/era*/*   scores of answers, and prompts
  kvbench conform --properties score=caote score.host=lava policy=snapkv,h2o

A case fails if it does not match, or cannot be read or run; exit code 5 if any case fails. Cases whose texts or data \
are missing are skipped and counted apart. Prompts of LongBench and prompts with essays need data.root. The tokenizer \
is read from the folder `tokenizer` beside the files, unless tokenizer=FOLDER names another.

With --properties, lists and settings are as in kvbench run. Without policy= every policy that takes a score is \
checked; without score= each policy's default score.
"""
    parser.bare_exit = ExitCode.USAGE
    usage = "[data.root=FOLDER] [tokenizer=FOLDER] FILES | [score=NAME] [policy=NAME] | [SETTINGS]"
    parser.words = Words(usage, groups=("policy", "score", "task"), settings=("data.root=", "tokenizer="))
    parser.add_argument(
        "--properties",
        action="store_true",
        help="instead of files: check the properties that every score and policy must have, those of plugins too",
    )
    for check in named("conform").values():
        check.load().declare(parser)


def main(flags: argparse.Namespace) -> int:
    """Check files or properties, or what a flag of an extra names; exit code 5 unless all of them hold."""
    for check in named("conform").values():
        if (code := check.load().main(flags)) is not None:
            return code
    return _check_properties(flags.words) if flags.properties else _check_files(flags.words)


def _check_files(words: Sequence[str]) -> int:
    from kvbench.extras.conformance.golden.files import verdicts
    from kvbench.extras.conformance.golden.prompts import Sources

    settings, files = split_settings(words, ("data.root", "tokenizer"))
    for word in files:
        if "=" in word and not Path(word).exists():
            raise UserError(f"cannot read {word}: conform takes files, data.root=FOLDER and tokenizer=FOLDER")
    if not files:
        raise UserError("name a file of golden cases, such as tests/golden/eviction/*.npz, or give --properties")
    missing = [name for name in files if not Path(name).is_file()]
    if missing:
        raise MissingFile(f"no such file: {', '.join(missing)}; conform takes files of golden cases")
    sources = Sources(settings.get("data.root"), settings.get("tokenizer"))
    cases = passed = absent = 0
    for path in map(Path, files):
        for verdict in verdicts(path, sources):
            cases, passed, absent = cases + 1, passed + (verdict.problem is None), absent + verdict.absent
            mark = "none" if verdict.absent else "PASS" if verdict.problem is None else "FAIL"
            detail = f" ({verdict.detail})" if verdict.problem is None and verdict.detail else ""
            problem = "" if verdict.problem is None else f": {' '.join(verdict.problem.split())}"
            print(printable(f"{mark}  {' '.join(verdict.name.split())}{detail}{problem}"), flush=True)
    print(
        f"{passed} of {cases - absent} cases match" + (f"; {absent} skipped, their data is missing" if absent else "")
    )
    return ExitCode.OK if passed == cases - absent else ExitCode.GATE


def _check_properties(words: Sequence[str]) -> int:
    """Print a line for every policy and score that `words` name.

    Raises UserError for settings that are neither a policy's nor a score's.
    """
    from kvbench.config.cells import CellBuilder
    from kvbench.config.compose import combinations
    from kvbench.config.overrides import parse
    from kvbench.eviction.evict import check_host
    from kvbench.extras.conformance.properties import PROPERTIES, failures

    overrides = parse(words)
    named_keys = {override.key for override in overrides}
    for override in overrides:
        if override.key.partition(".")[0] not in ("policy", "score"):
            raise UserError(f"{override.text}: --properties takes policy=, score= and their settings")
    if not named_keys & {"policy", "score"}:
        raise UserError("--properties needs score=NAME, policy=NAME or both (kvbench list shows them)")
    if "policy" not in named_keys:
        overrides = [*parse(["policy=*"]), *overrides]
    failed, checked, cells = 0, 0, CellBuilder()
    first_with: dict[tuple[str, ...], str] = {}
    for config in combinations(overrides):
        if "score" not in config["policy"]["accepts"] and "policy" not in named_keys:
            continue  # its own score may need a file
        cell = cells.cell(config)
        checked += 1
        name = f"policy={cell.policy.name} score={cell.score.name}"
        try:
            check_host(cell.policy, cell.score)
        except ValueError as error:  # a combination that is refused with a reason holds
            print(f"-     {name}: refused: {error}", flush=True)
            continue
        problems = failures(cell.policy, cell.score)
        failed += bool(problems)
        told = tuple(" ".join(problem.split()) for problem in problems)
        is_fault = any(" properties: " in problem for problem in told)  # of the score, whatever the policy
        if is_fault and (earlier := first_with.setdefault(told, name)) != name:
            told = (f"as {earlier}",)
        lines = [f"FAIL  {name}: {problem}" for problem in told] or [f"ok    {name}"]
        print(*lines, sep="\n", flush=True)
    print(f"{checked - failed} of {checked} combinations hold {len(PROPERTIES)} properties")
    return ExitCode.GATE if failed else ExitCode.OK
