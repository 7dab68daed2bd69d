"""`kvbench prompts`: the prompts of tasks as JSON lines, for programs that answer them elsewhere. No torch."""

import argparse
import json
import sys
from pathlib import Path

from kvbench.cli.errors import ExitCode
from kvbench.cli.parser import Parser, Words
from kvbench.support.errors import UserError

NOWHERE = ("model=endpoint", "endpoint.url=http://nowhere.invalid/v1", "endpoint.method=full")
"""Settings of cells that nobody asks."""


def declare(parser: Parser) -> None:
    """Add the flags of the command."""
    parser.description = "Write whole prompts: text, token ids, right answers, the hash by which answers are found."
    parser.epilog = """
  kvbench prompts model.path=Qwen/Qwen3-0.6B task=ruler task.context_length=4096 task.samples=20 --out prompts.jsonl

Add a text `answer` to each line and give the file to kvbench adopt. model.path is a folder with a tokenizer or a hub \
id. A line has task, sample, prompt_sha256, text, ids, answers, max_new_tokens and stop; text leaves out the special \
tokens that the tokenizer puts before a text, ids have them.
"""
    parser.bare_exit = ExitCode.USAGE
    parser.words = Words("SETTING=VALUE ...", groups=("task",), settings=("model.path=", "seed=", "data.root="))
    parser.add_argument("--out", metavar="FILE", type=Path, help="write to a new file instead of the screen")


def main(flags: argparse.Namespace) -> int:
    """Write the prompts. Raises UserError for settings that are not allowed, and for a file that exists."""
    from kvbench.config.cells import CellBuilder
    from kvbench.config.compose import combinations
    from kvbench.config.overrides import parse
    from kvbench.extras.servers.whole_prompts import prompts_of
    from kvbench.report.report_file import text_to
    from kvbench.run.cell import Cell
    from kvbench.work.planned import check_data

    if named := [override.text for override in parse(flags.words) if override.key == "model"]:
        fix = "leave it out, and name the tokenizer's folder or hub id with model.path=FOLDER_OR_HUB_ID"
        raise UserError(f"{named[0]}: kvbench prompts reads a tokenizer only: {fix}")
    built, cells = CellBuilder(), list[Cell]()
    for tree in combinations(parse([*NOWHERE, *flags.words])):
        cell = built.cell(tree)
        cell.check()
        cells.append(cell)
    check_data(cells)
    lines = (json.dumps(line, ensure_ascii=False) for cell in cells for line in prompts_of(cell))
    if flags.out is None:
        for line in lines:
            print(line)
        return ExitCode.OK
    if flags.out.exists() and not flags.out.is_file():
        raise UserError(f"--out {flags.out}: there is no file of that name, but something else: name a new one")
    written = [*lines]
    text = "".join(f"{line}\n" for line in written)
    if flags.out.exists() and flags.out.read_bytes() != text.encode():
        raise UserError(f"--out {flags.out}: there is such a file, with other prompts: name a new one")
    with text_to(flags.out) as file:
        file.write(text)
    print(f"{len(written)} prompts in {flags.out}", file=sys.stderr)
    return ExitCode.OK
