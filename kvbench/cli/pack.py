"""`kvbench pack`: write down what a folder holds, as one hash to cite. No model, no torch."""

import argparse

from kvbench.cli.errors import ExitCode
from kvbench.cli.parser import Parser
from kvbench.cli.terminal import say, screen, warner
from kvbench.records import ResultsFolder
from kvbench.records.manifest import NAME, lacks_files, unchanged_manifest, write_manifest
from kvbench.support.errors import UserError


def declare(parser: Parser) -> None:
    """Add the flags of the command."""
    parser.description = f"""
Write {NAME}: the files of a results folder with their SHA-256, the number of rows, and the hash of all of it, which \
pages of papers and gates cite. A folder whose listed files have changed is refused.
"""
    parser.epilog = """
  kvbench pack --results results/runs

Runs do the same as they end. Whoever has the folder and the hash can tell whether it is the same folder: every file \
that a manifest lists is read again, and nothing is written if no file was added.
"""
    parser.add_results()
    parser.add_partial()


def main(flags: argparse.Namespace) -> int:
    """Write the manifest. Raises UserError where a listed file has changed, MissingFile where there are no rows."""
    from kvbench.report.rows import load_table

    folder = ResultsFolder(flags.results)
    if folder.path.is_file():
        raise UserError(f"{folder.path} is a file, which has a checksum of its own: name a results folder")
    load_table(folder, (), warner(flags.partial))  # warns of damaged and missing rows
    before = unchanged_manifest(folder)
    manifest = before if before and not lacks_files(before, folder) else write_manifest(folder, before)
    say(screen(), f"{folder.path}: {manifest}")
    say(screen(), f"root {manifest.root}")
    return ExitCode.OK
