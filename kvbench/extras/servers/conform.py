"""`kvbench conform --endpoint`: does a server do what it says?"""

import argparse
import re
from collections.abc import Sequence

from kvbench.cli.errors import ExitCode
from kvbench.cli.parser import Parser
from kvbench.support.errors import MissingFile, UserError
from kvbench.support.text import printable


def declare(parser: Parser) -> None:
    """Add the flags of servers to `kvbench conform`, and to its help what they do."""
    parser.epilog = f"""{parser.epilog}
  kvbench conform --endpoint http://h:8000/v1,method=full --endpoint http://h:8001/v1,method=snapkv,budget=64 \
model.path=FOLDER_OR_HUB_ID task.context_length=4096

With --endpoint URL,SETTING=VALUE,... for each server, prompts with planted needles are asked: is every token read, is \
an answer from its own prompt, do answers change with the budget, are needles lost in order. Words are settings of all \
servers, as in kvbench run model=endpoint.
"""
    parser.add_argument(
        "--endpoint", metavar="URL,...", action="append", help="instead of files: check a server; name each that is one"
    )
    parser.add_argument(
        "--dense", metavar="DIR", help="with --endpoint: rows of policy=full on the same prompts, for method=full"
    )


def main(flags: argparse.Namespace) -> int | None:
    """Check the servers that are named; None where none is. Exit code 5 unless all checks hold."""
    if flags.endpoint:
        if flags.properties:
            raise UserError("--properties and --endpoint do not go together")
        return _check_servers(flags.endpoint, flags.words, flags.dense)
    if flags.dense is not None:
        raise UserError("--dense goes with --endpoint")
    return None


def _check_servers(endpoints: Sequence[str], words: Sequence[str], dense: str | None) -> int:
    """Ask every server, and print a line for every check."""
    from kvbench.config.cells import CellBuilder
    from kvbench.config.compose import combinations
    from kvbench.config.overrides import parse
    from kvbench.extras.servers.server_checks import observe, verdicts
    from kvbench.records import read_rows

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
            cell = CellBuilder().cell(tree)
            cell.check()
            observed.append(observe(cell))
    checked = list(verdicts(observed, answers))
    for verdict in checked:
        mark = "none" if verdict.problem is None else "FAIL" if verdict.problem else "PASS"
        print(printable(f"{mark}  {verdict.check}: {verdict.about}" + f": {verdict.problem}" * bool(verdict.problem)))
    failed, able = (sum(bool(v.problem) for v in checked), sum(v.problem is not None for v in checked))
    print(f"{able - failed} of {able} checks hold" + f"; {len(checked) - able} cannot be made" * (len(checked) > able))
    return ExitCode.GATE if failed else ExitCode.OK
