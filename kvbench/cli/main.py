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

GROUPS = {
    "Run": {
        "run": "one method, or every combination of comma-separated lists (a sweep)",
        "plan": "what a run would do: cells, prompts, memory, time, SLURM script",
        "status": "progress and time left of a results folder",
        "paper": "a published table or figure: ours, published, difference",
    },
    "Read": {
        "report": "table, rows, plot, html page, efficiency, cost, footprint, pages, history",
        "compare": "paired test of two methods or two folders",
        "view": "browse results in a browser while they are written",
        "gate": "fail if a run is worse than its baseline (CI)",
        "board": "rank methods at equal bytes",
        "recommend": "methods that fit your prompts and memory",
        "claims": "hold claims that were written before their rows against rows",
        "audit": "how sure differences of printed means are, from the means and n alone",
    },
    "Set up": {
        "list": "policies, scores, tasks, models, probes, launchers, papers, settings ...",
        "data": "download and verify benchmark data and models",
        "doctor": "check this installation",
        "completion": "shell completion: bash, zsh, fish",
    },
}
MORE = {
    "adopt": "record answers made elsewhere as rows, scored by our metrics",
    "cancel": "end the jobs and processes that work on a folder, each after its current sample",
    "conform": "check golden cases, a score, or a server",
    "export": "write means for other programs: EEE, GitHub benchmark, JUnit, Markdown, Parquet",
    "heads": "write one score per KV head, by KVzip on contexts of your choice",
    "merge": "copy results folders, such as those of shards, into one, checked",
    "pack": "write down the files of a folder and the hash of them all, to cite",
    "probe": "compare scores with the true error of each eviction",
    "prompts": "write whole prompts as JSON lines, for programs that answer them elsewhere",
}
COMMANDS = {name: purpose for group in (*GROUPS.values(), MORE) for name, purpose in group.items()}
"""Every command, which is a module of this package, and what it does."""

RUN_ELSEWHERE = ("bench", "benchmark", "eval", "evaluate", "sweep")
"""What other tools call their `run`."""


def overview() -> str:
    """The commands in groups, for `kvbench --help`."""
    groups = (
        "\n".join([title, *(f"  {name:<10}  {purpose}" for name, purpose in commands.items())])
        for title, commands in GROUPS.items()
    )
    commands = "\n".join(groups)
    return f"""kvbench: benchmark KV-cache eviction methods

usage: kvbench COMMAND [key=value ...] [--flag ...]

{commands}

More: {" ".join(MORE)}

  kvbench run policy=snapkv score=obcache_joint budget=0.1
  kvbench compare policy=snapkv,score=attn policy=snapkv,score=obcache_joint

kvbench COMMAND --help explains a command. Version {__version__}.
Exit codes: 0 ok, 1 bug, 2 wrong setting, 3 data or model missing, 4 failed samples, 5 gate or check failed, \
75 or 130 stopped (run the same command again to resume)."""


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
        print(folded(overview()))
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
    if bare_exit is not None or parser.asks_for_help(arguments):
        print(parser.format_help(), end="")
        return bare_exit or 0
    return importlib.import_module(f"kvbench.cli.{name}").main(parser.read(arguments))
