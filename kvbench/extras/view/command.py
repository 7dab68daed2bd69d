"""`kvbench view FOLDER ...`: the page of results folders, served while they are written. No torch."""

import argparse

from kvbench.cli.errors import ExitCode
from kvbench.cli.parser import RESULTS, Parser, Words
from kvbench.cli.terminal import tell
from kvbench.support.errors import UserError

HOST, PORT = "127.0.0.1", 8421


def declare(parser: Parser) -> None:
    """Add the flags of the command."""
    parser.description = f"""
Serve the page of `kvbench report html` over results folders, or Parquet files of rows, until Ctrl+C ({RESULTS} by \
default). It follows the folders while they are written, has all samples of all cells, and its address holds the \
filters, the chosen cells and the sample that is read, so that any of it can be linked to.
"""
    parser.epilog = """
Only this machine can reach it. With another --host others can, who need the token that is printed: it is new for each \
start, and the connection is not encrypted. Through SSH no --host is needed: ssh -L 8421:127.0.0.1:8421 MACHINE.

  kvbench view results/runs
  kvbench view results/before results/after --port 0
"""
    parser.words = Words("[DIR|FILE.parquet ...]")
    parser.add_argument("--host", default=HOST, metavar="ADDRESS", help=f"the address to listen on ({HOST})")
    parser.add_argument("--port", default=str(PORT), metavar="N", help=f"the port ({PORT}); 0 takes a free one")
    purpose = "ask for a token on this machine too, where other people have accounts"
    parser.add_argument("--token", action="store_true", help=purpose)


def main(flags: argparse.Namespace) -> int:
    """Serve until interrupted. Raises UserError for bad arguments and MissingFile for a folder that does not exist."""
    from kvbench.extras.view.live_page import LivePage
    from kvbench.extras.view.server import Access, Server

    if not (flags.port.isascii() and flags.port.isdecimal() and int(flags.port[:6]) < 2**16):
        raise UserError(f"--port {flags.port}: allowed: 0 to {2**16 - 1}")
    page = LivePage(flags.words or [RESULTS])
    with Server(page, Access.of(flags.host, flags.token), int(flags.port), tell) as server:
        print(f"{', '.join(page.sources)} at {server.address}", "Ctrl+C ends it", sep="\n", flush=True)
        try:
            server.serve_forever()
        except KeyboardInterrupt:
            print()
    return ExitCode.OK
