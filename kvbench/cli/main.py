"""`kvbench COMMAND`: finds the command and hands it the rest of the line; imports nothing heavy before it must."""

import select
import sys
import traceback
from collections.abc import Sequence
from typing import Any

from kvbench.cli.parser import HELP, Parser, folded
from kvbench.cli.terminal import forgive, inert, open_closed, silence, tell
from kvbench.support import __version__
from kvbench.support.errors import UserError
from kvbench.support.named import Named, member, named
from kvbench.support.text import closest

HEADINGS = ("Run", "Read", "Set up")
"""Of the commands that `kvbench --help` explains; it names the others."""
RUN_ELSEWHERE = ("bench", "benchmark", "eval", "evaluate", "sweep")
"""What other tools call their `run`."""


def commands() -> dict[str, Named]:
    """Return every command by name, those that `kvbench --help` explains first."""
    by_name = named("command").items()
    shown = ((name, each) for title in HEADINGS for name, each in by_name if each.heading == title)
    return dict(shown) | dict(by_name)


def overview() -> str:
    """Return the commands in groups, for `kvbench --help`."""
    by_name = commands()
    lines = {title: [title] for title in HEADINGS}
    unlisted = [name for name, command in by_name.items() if command.heading not in lines]
    for name, command in by_name.items():
        lines.get(command.heading or "", []).append(f"  {name:<10}  {command.says}")
    groups = "\n".join(line for group in lines.values() for line in group)
    return f"""kvbench: benchmark KV-cache eviction methods

usage: kvbench COMMAND [key=value ...] [--flag ...]

{groups}

More: {" ".join(unlisted)}

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
        return _unread()
    except SystemExit as error:
        frames = traceback.walk_tb(error.__traceback__)
        if not any(frame.f_globals.get("__name__") == "rich.console" for frame, _ in frames):
            raise  # rich raises it for a broken pipe alone
        return _unread()
    except OSError as error:  # a full disk behind > FILE
        silence(sys.stdout)
        if not code:  # else the command has reported it
            tell(f"the output cannot be written: {error.strerror}")
        return code or 1
    except KeyboardInterrupt:
        tell("interrupted")
        return 130


def _unread() -> int:
    """Discard further output. Returns the exit code of a command whose output nobody reads any more: of a stopped one
    if it is stderr, whose progress ends a run before all of its rows are there.
    """
    silence(sys.stdout)
    stderr = select.poll()
    stderr.register(sys.stderr.fileno(), 0)
    if not stderr.poll(0):
        return 0
    silence(sys.stderr)
    return 75


def _main(arguments: list[str]) -> int:
    if arguments[:1] == ["help"] and len(arguments) > 1:
        arguments = [*arguments[1:], "--help"]
    if not arguments or arguments[0] in (*HELP, "help"):
        print(folded(overview()))
        return 0
    if arguments[0] == "--version":
        print(__version__)
        return 0
    from kvbench.cli.errors import guarded

    return guarded(lambda: run_command(arguments[0], arguments[1:]))


def _help(parser: Parser, arguments: Sequence[str]) -> str:
    """Return the help text of a command, or of the verb that stands after it, with the details of the command."""
    verb = parser.verbs.get(arguments[0]) if arguments else None
    if verb is None:
        return parser.format_help()
    verb.epilog = parser.epilog
    return verb.format_help()


def declared(command: str) -> Parser:
    """Return the declaration of a command. Raises UserError for a command that there is not."""
    return _declared(command)[1]


def _declared(command: str) -> tuple[Any, Parser]:
    """Return the module of a command, and its declaration. Raises UserError for a command that there is not."""
    entry = _command(command)
    if entry is None:
        fix = "write kvbench run" if command in RUN_ELSEWHERE else closest(command, commands())
        raise UserError(f"unknown command {command}: {fix}")
    module, parser = entry.load(), Parser(f"kvbench {command}")
    module.declare(parser)
    return module, parser


def _command(name: str) -> Named | None:
    """Return a command; `doctor`, which says what is missing, where no file can be found."""
    try:
        return member("command", name)
    except FileNotFoundError:
        if name != "doctor":
            raise
        return Named(name, "check this installation", "kvbench.cli.doctor", {})


def run_command(name: str, arguments: Sequence[str]) -> int:
    """Run a command and return its exit code, or let its errors out."""
    module, parser = _declared(name)
    bare_exit = None if arguments else parser.bare_exit
    if bare_exit is not None or parser.asks_for_help(arguments):
        print(_help(parser, arguments), end="")
        return bare_exit or 0
    return module.main(parser.read(arguments))
