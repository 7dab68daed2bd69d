"""`kvbench conform`: golden cases through the same code as a real run, properties of methods, or servers."""

import argparse
import re
from collections.abc import Sequence
from pathlib import Path

from kvbench.cli.errors import ExitCode
from kvbench.cli.parser import Parser, Words, split_settings
from kvbench.support.errors import MissingFile, UserError
from kvbench.support.text import printable


def declare(parser: Parser) -> None:
    """Add the flags of the command."""
    parser.description = "Check against golden cases and print one line per case."
    parser.epilog = """
  kvbench conform tests/golden/eviction/*.npz                        eviction: scores, lengths, kept positions
  kvbench conform tests/golden/metrics/* tests/golden/ruler/era*/*   scores of answers, and prompts
  kvbench conform --properties score=caote score.host=lava policy=snapkv,h2o
  kvbench conform --endpoint http://h:8000/v1,method=full --endpoint http://h:8001/v1,method=snapkv,budget=64 \
      model.path=FOLDER_OR_HUB_ID task.context_length=4096

A case fails if it does not match, or cannot be read or run; exit code 5 if any case fails. Cases whose texts or data \
are missing are skipped and counted apart. Prompts of LongBench and prompts with essays need data.root. The tokenizer \
is read from the folder `tokenizer` beside the files, unless tokenizer=FOLDER names another.

With --properties, lists and settings are as in kvbench run. Without policy= every policy that takes a score is \
checked; without score= each policy's default score.

With --endpoint URL,SETTING=VALUE,... for each server, prompts with planted needles are asked: is every token read, is \
an answer from its own prompt, do answers change with the budget, are needles lost in order. Words are settings of all \
servers, as in kvbench run model=endpoint.
"""
    parser.bare_exit = ExitCode.USAGE
    usage = "[data.root=FOLDER] [tokenizer=FOLDER] FILES | [score=NAME] [policy=NAME] | [SETTINGS]"
    parser.words = Words(usage, groups=("policy", "score", "task"), settings=("data.root=", "tokenizer="))
    parser.add_argument(
        "--properties",
        action="store_true",
        help="instead of files: check the properties that every score and policy must have, those of plugins too",
    )
    parser.add_argument(
        "--endpoint", metavar="URL,...", action="append", help="instead of files: check a server; name each that is one"
    )
    parser.add_argument(
        "--dense", metavar="DIR", help="with --endpoint: rows of policy=full on the same prompts, for method=full"
    )


def main(flags: argparse.Namespace) -> int:
    """Check files or properties; exit code 5 unless all of them hold."""
    if flags.endpoint:
        if flags.properties:
            raise UserError("--properties and --endpoint do not go together")
        return _check_servers(flags.endpoint, flags.words, flags.dense)
    if flags.dense is not None:
        raise UserError("--dense goes with --endpoint")
    return _check_properties(flags.words) if flags.properties else _check_files(flags.words)


def _check_files(words: Sequence[str]) -> int:
    from kvbench.conformance.golden.files import verdicts
    from kvbench.conformance.golden.prompts import Sources

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
    from kvbench.config.cells import Cells
    from kvbench.config.compose import combinations
    from kvbench.config.overrides import parse
    from kvbench.conformance.properties import PROPERTIES, failures
    from kvbench.eviction.evict import check_host

    overrides = parse(words)
    named = {override.key for override in overrides}
    for override in overrides:
        if override.key.partition(".")[0] not in ("policy", "score"):
            raise UserError(f"{override.text}: --properties takes policy=, score= and their settings")
    if not named & {"policy", "score"}:
        raise UserError("--properties needs score=NAME, policy=NAME or both (kvbench list shows them)")
    if "policy" not in named:
        overrides = [*parse(["policy=*"]), *overrides]
    failed, checked, cells = 0, 0, Cells()
    for config in combinations(overrides):
        if "score" not in config["policy"]["accepts"] and "policy" not in named:
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
        lines = [f"FAIL  {name}: {' '.join(problem.split())}" for problem in problems] or [f"ok    {name}"]
        print(*lines, sep="\n", flush=True)
    print(f"{checked - failed} of {checked} combinations hold {len(PROPERTIES)} properties")
    return ExitCode.GATE if failed else ExitCode.OK


def _check_servers(endpoints: Sequence[str], words: Sequence[str], dense: str | None) -> int:
    """Ask every server, and print a line for every check."""
    from kvbench.config.cells import Cells
    from kvbench.config.compose import combinations
    from kvbench.config.overrides import parse
    from kvbench.records import read_rows
    from kvbench.servers.conform import observe, verdicts
    from kvbench.servers.endpoint import ServedCell

    answers = None
    if dense is not None:
        rows = [row for row in read_rows(dense, warn=lambda _: None) if row.policy == "full"]
        answers = {
            row.prompt_sha256: row.prediction for row in rows if row.prompt_sha256 and row.prediction is not None
        }
        if not answers:
            raise MissingFile(f"--dense {dense}: no answers of policy=full; kvbench run policy=full makes them")
    observed = []
    for endpoint in endpoints:
        url, *settings = re.split(r",(?![^{]*})", endpoint)
        endpoint_settings = [f"endpoint.url={url}", *(f"endpoint.{setting}" for setting in settings)]
        for tree in combinations(parse(["model=endpoint", *words, *endpoint_settings])):
            cell = Cells().cell(tree)
            assert isinstance(cell, ServedCell)
            cell.check()
            observed.append(observe(cell))
    checked = list(verdicts(observed, answers))
    for verdict in checked:
        mark = "none" if verdict.problem is None else "FAIL" if verdict.problem else "PASS"
        print(printable(f"{mark}  {verdict.check}: {verdict.about}" + f": {verdict.problem}" * bool(verdict.problem)))
    failed, able = (sum(bool(v.problem) for v in checked), sum(v.problem is not None for v in checked))
    print(f"{able - failed} of {able} checks hold" + f"; {len(checked) - able} cannot be made" * (len(checked) > able))
    return ExitCode.GATE if failed else ExitCode.OK
