"""`kvbench COMMAND`: finds the command and hands it the rest of the line; imports nothing heavy before it must."""

import importlib
import sys
import traceback
from collections.abc import Sequence

from kvbench.cli.parser import HELP, Parser, folded
from kvbench.cli.terminal import forgive, inert, open_closed, silence, tell
from kvbench.support import __version__
from kvbench.support.errors import UserError
from kvbench.support.text import closest

COMMANDS = {
    "run": "run one cell, or every combination of comma-separated lists",
    "plan": "show what a run would do: cells, what is done, what is shared (same arguments)",
    "recommend": "say which methods are worth it for prompts and a memory: recommend data=FILE memory=2GiB",
    "status": "show the progress of the sweeps of a folder: done, failed, running, time left, device hours",
    "cancel": "end the jobs and processes that work on a folder, each after its current sample",
    "report": "turn rows into reports: table | rows | plot | efficiency | cost | footprint | pages | html | history",
    "view": "serve the page of results folders while they are written, with all samples: view DIR ...",
    "audit": "say how sure differences of printed means are, from the means and n alone: audit means.csv",
    "compare": "compare two folders, or two selections of one, sample by sample: compare A B",
    "claims": "hold claims that were written before their rows against rows: claims check FILE",
    "heads": "write one score per KV head, by KVzip on contexts of your choice: heads --output FILE",
    "board": "rank methods of several folders at equal measured bytes, as a page: board A B --out DIR",
    "gate": "fail if a run is worse than its baseline or not comparable with it: gate --baseline DIR --current DIR",
    "data": "download and verify benchmark data: data pull NAME ... | data verify | data list",
    "paper": "render a table or figure of a paper, our numbers beside the published: paper list | paper NAME",
    "probe": "compare scores with the true error of each eviction: probe NAME; kvbench list probes",
    "export": "write means for other programs: export --format eee|github-benchmark|junit|markdown|parquet",
    "pack": "write down the files of a folder and the hash of them all, to cite: pack --results DIR",
    "merge": "copy results folders, such as those of shards, into one, checked: merge A B --out C",
    "list": "list policies | scores | tasks | models | probes | launchers | loggers | papers | reports",
    "conform": "check golden cases, a score, or a server: conform FILES | --properties score=NAME | --endpoint URL",
    "prompts": "write whole prompts as JSON lines, for programs that answer them elsewhere: prompts --out FILE",
    "adopt": "record answers made elsewhere as rows, scored by our metrics: adopt FILE|FOLDER",
    "doctor": "check what this installation can do and what it lacks",
    "completion": "print the script that completes commands and settings: completion bash|zsh|fish",
}
"""Every command, which is a module of this package, and what it does."""

RUN_ELSEWHERE = ("bench", "benchmark", "eval", "evaluate", "sweep")
"""What other tools call their `run`."""

OVERVIEW = f"""kvbench: evaluate KV-cache eviction, reproducibly

usage: kvbench COMMAND [key=value ...] [--flags]

{chr(10).join(f"  {name:<11} {purpose}" for name, purpose in COMMANDS.items())}

  kvbench run policy=snapkv score=obcache_joint budget=0.1
  kvbench run policy=full,h2o,snapkv score=attn,obcache_joint budget=0.1,0.2
  kvbench report table --results results/runs --format markdown

kvbench COMMAND --help explains a command. --version prints {__version__}.
Exit codes: 0 ok, 1 internal error, 2 usage, 3 data or model missing, 4 incomplete, 5 gate or conformance failed, 75 \
stopped by the scheduler (run again), 130 interrupted."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command line and return its exit code."""
    arguments = list(sys.argv[1:] if arguments is None else arguments)
    open_closed()
    forgive(sys.stdout, sys.stderr)
    code = 0
    try:
        with inert():
            code = _main(arguments)
        sys.stdout.flush()  # an output that cannot be written is reported here, not when the interpreter ends
        return code
    except BrokenPipeError:
        silence(sys.stdout)
        return 0
    except SystemExit as error:
        frames = traceback.walk_tb(error.__traceback__)
        if not any(frame.f_globals.get("__name__") == "rich.console" for frame, _ in frames):
            raise  # rich raises it for a broken pipe alone
        silence(sys.stdout)
        return 0
    except OSError as error:  # a full disk behind > FILE
        silence(sys.stdout)
        if not code:  # else the command has reported it
            tell(f"the output cannot be written: {error.strerror}")
        return code or 1
    except KeyboardInterrupt:
        tell("interrupted")
        return 130


def _main(arguments: list[str]) -> int:
    if arguments[:1] == ["help"] and len(arguments) > 1:
        arguments = [arguments[1], "--help"]
    if not arguments or arguments[0] in (*HELP, "help"):
        print(folded(OVERVIEW))
        return 0
    if arguments[0] == "--version":
        print(__version__)
        return 0
    from kvbench.cli.errors import guarded

    return guarded(lambda: run_command(arguments[0], arguments[1:]))


def declared(command: str) -> Parser:
    """The declaration of a command. Raises UserError for a command that there is not."""
    if command not in COMMANDS:
        fix = "write kvbench run" if command in RUN_ELSEWHERE else closest(command, COMMANDS)
        raise UserError(f"unknown command {command}: {fix}")
    parser = Parser(f"kvbench {command}")
    importlib.import_module(f"kvbench.cli.{command}").declare(parser)
    return parser


def run_command(name: str, arguments: Sequence[str]) -> int:
    """Run a command and return its exit code, or let its errors out."""
    parser = declared(name)
    bare_exit = None if arguments else parser.bare_exit
    if bare_exit is not None or (parser.prints_help and parser.asks_for_help(arguments)):
        print(parser.format_help(), end="")
        return bare_exit or 0
    return importlib.import_module(f"kvbench.cli.{name}").main(parser.read(arguments))
