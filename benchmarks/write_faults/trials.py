"""One command with one fault, the same command again, and what the folder holds before and after."""

import json
import os
import re
import shutil
import signal
import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.write_faults.disk import Call, Disk, Kind
from kvbench.cli.main import main as kvbench
from kvbench.records import ResultsFolder
from kvbench.records.folder import SIDECARS
from kvbench.records.manifest import NAME, differing, read_manifest
from kvbench.records.row import Row, has_checksum
from kvbench.support.errors import UserError

SECONDS = 60
"""After which a command hangs."""
HERE = "here"
"""Where commands run: what they write names the folder."""
Prepare = Callable[[Path], object]


@dataclass(frozen=True)
class Command:
    """A command line, in the folder that `prepare` fills, which has results folders of these names afterwards.

    overwrites: whether it may run again where it has ended well.
    """

    words: tuple[str, ...]
    results: tuple[str, ...]
    prepare: Prepare = lambda folder: None
    overwrites: bool = True


@dataclass(frozen=True)
class Ended:
    """How a command ended: its exit code or minus a signal, its stderr, and the calls that changed files."""

    code: int
    err: str
    calls: tuple[Call, ...]


def ended(command: Command, place: Path, number: int | None = None, kind: Kind = "kill") -> Ended:
    """Run a command in a child of this process, with a fault at its call of this number."""
    said, noted = place.with_suffix(".err"), place.with_suffix(".calls")
    child = os.fork()
    if child == 0:
        _child(command, place, Disk(place, number, kind), said, noted)
    _, status = os.waitpid(child, 0)
    calls = [Call(*json.loads(line)) for line in noted.read_text().splitlines()] if noted.exists() else []
    noted.unlink(missing_ok=True)
    return Ended(os.waitstatus_to_exitcode(status), said.read_text("utf-8", "replace"), tuple(calls))


def _child(command: Command, place: Path, disk: Disk, said: Path, noted: Path) -> None:
    """Run it, its output in a file; does not return."""
    code = 1
    try:
        for number in (signal.SIGALRM, signal.SIGTERM):
            signal.signal(number, signal.SIG_DFL)
        signal.alarm(SECONDS)
        os.chdir(place)
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        os.dup2(os.open(said, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), 2)
        sys.stdout, sys.stderr = (os.fdopen(number, "w", 1, closefd=False) for number in (1, 2))
        disk.watch()
        code = kvbench(command.words)
    except BaseException as error:
        print(f"Traceback: {type(error).__name__}: {error}", file=sys.stderr)
    finally:
        sys.stderr.flush()
        if disk.fails is None:
            noted.write_text("".join(f"{json.dumps([call.name, call.path])}\n" for call in disk.calls))
        elif len(disk.calls) <= disk.fails:
            noted.write_text(f"{json.dumps(['none', ''])}\n")
        os._exit(code)


@dataclass(frozen=True)
class Held:
    """What a place holds that commands read.

    rows: how many whole lines each sample of a cell has, by folder. content: all else, by name: what a row says, lines
    beside rows, files that are named by their content, files of other places. strays: files that nobody reads.
    """

    rows: Counter[tuple[str, str, int]]
    content: dict[str, Any]
    strays: tuple[str, ...]


def held(place: Path, results: Sequence[str]) -> Held:
    """Read a place without the code that is tried."""
    rows, content, strays = Counter[tuple[str, str, int]](), dict[str, Any](), list[str]()
    for name in results:
        folder = place / name
        for path in sorted((folder / "rows").glob("*.jsonl")):
            for line in filter(has_checksum, path.read_bytes().split(b"\n")[:-1]):  # readers drop one that has no end
                row = Row.from_json(line)
                rows[name, row.cell, row.sample] += 1
                content[f"{name} {row.cell} {row.sample}"] = row.outcome()
        for side in SIDECARS:
            paths = (folder / side).glob("*.jsonl")
            lines = {line for path in paths for line in path.read_bytes().split(b"\n")[:-1] if line}
            content[f"{name} {side}"] = {line for line in lines if has_checksum(line) or b'"checksum"' not in line}
        for kind in ("cells", "codes", "environments", "sweeps", "probes"):
            paths = [path for path in (folder / kind).glob("*") if path.suffix != ".tmp"]
            content |= {f"{name} {kind} {path.name}": path.read_bytes() for path in paths}
        content[f"{name} {NAME}"] = _manifest(folder)
    for path in sorted(place.rglob("*")):
        inside = path.relative_to(place)
        if path.suffix in (".tmp", ".look") or any(part.startswith(".") for part in inside.parts):
            strays.append(str(inside))
        elif path.is_file() and inside.parts[0] not in (*results, "home"):
            content[str(inside)] = _TIMES.sub(b"", path.read_bytes())
    return Held(rows, content, tuple(strays))


_NUMBERS = re.compile(r"\d+")
_FILE = re.compile(r"\w/\w|\w\.\w|'.+'|merged")
"""What names a file in a message."""
_TIMES = re.compile(rb'time(stamp)?="[^"]*"')


def _manifest(folder: Path) -> str:
    """Whether the manifest is true of the folder."""
    results = ResultsFolder(folder)
    try:
        manifest = read_manifest(results)
        return "none" if manifest is None else str(differing(manifest, results))
    except (UserError, OSError) as error:
        return str(error)


def run(folder: Path, words: Sequence[str]) -> int:
    """Run a command in a folder, in this process; returns its exit code."""
    before = Path.cwd()
    os.chdir(folder)
    try:
        return kvbench(words)
    finally:
        os.chdir(before)


@dataclass(frozen=True)
class Clean:
    """A command without a fault: where it began, its calls and stderr, and what it left."""

    command: Command
    template: Path
    calls: tuple[Call, ...]
    err: str
    before: Held
    after: Held


def clean(command: Command, place: Path) -> Clean:
    """Prepare the folder of a command and run it. Ends the program if it fails."""
    template = place / "template"
    template.mkdir(parents=True)
    command.prepare(template)
    before = held(template, command.results)
    copy = Path(shutil.copytree(template, place / HERE))
    run(copy, command.words)  # here, so that its children have what it imports
    shutil.rmtree(copy)
    shutil.copytree(template, copy)
    done = ended(command, copy)
    if done.code != 0:
        sys.exit(f"{' '.join(command.words)} ends with {done.code} without a fault: {done.err}")
    after = held(copy, command.results)
    shutil.rmtree(copy)
    return Clean(command, template, done.calls, done.err, before, after)


def tried(clean: Clean, number: int, kind: Kind) -> list[str]:
    """What is wrong after a fault, and after the same command again; nothing if it holds."""
    command, results = clean.command, clean.command.results
    copy = Path(shutil.copytree(clean.template, clean.template.parent / HERE))
    try:
        first = ended(command, copy, number, kind)
        between = held(copy, results)
        begun = time.monotonic()
        again = ended(command, copy) if first.code or command.overwrites else first
        seconds = time.monotonic() - begun
        after = held(copy, results)
    finally:
        shutil.rmtree(copy)
    if first.calls:
        return ["the call was not reached"]
    wrong = [*_fault(first, between, clean, kind)]
    for state in (between, after):
        lost = clean.before.rows.keys() - state.rows.keys()
        wrong += [f"lost: {len(lost)} rows of before"] * bool(lost)
        doubled = [key for key, count in state.rows.items() if count > max(1, clean.after.rows[key])]
        wrong += [f"doubled: {len(doubled)} rows"] * bool(doubled)
    wrong += ["lost: rows that were there after the fault"] * bool(between.rows.keys() - after.rows.keys())
    wrong += ["lost: rows of the command"] * bool(clean.after.rows.keys() - after.rows.keys())
    if again.code != 0:
        wrong.append(f"again: exit code {again.code} after {seconds:.0f} s: {again.err[-300:]}")
    elif differs := different(clean.after, after):
        wrong.append(f"differs: {', '.join(differs)[:300]}")
    if kind != "kill" and after.strays:
        wrong.append(f"stray: {', '.join(after.strays)}")
    return wrong


def _fault(first: Ended, between: Held, clean: Clean, kind: Kind) -> list[str]:
    if kind == "kill":
        return [] if first.code == -signal.SIGKILL else [f"killed, exit code {first.code}"]
    if "Traceback" in first.err or "internal error" in first.err:
        return [f"traceback: {first.err[-600:]}"]
    if first.code == 0:
        told = "warning: " in first.err
        differs = different(clean.after, between)
        return [f"silent: {', '.join(differs)[:300]}"] * bool(differs and not told)
    if first.code <= 0:
        return [f"hangs or dies: {first.code} {first.err[-300:]}"]
    said = {_NUMBERS.sub("", line) for line in clean.err.splitlines()}
    lines = [line for line in first.err.splitlines() if line and _NUMBERS.sub("", line) not in said]
    words = {"ENOSPC": "No space left", "ESTALE": "Stale file handle", "short": "No space left"}
    says = words.get(kind, "Input/output error")
    if len(lines) != 1 or not lines[0].startswith("kvbench: "):
        return [f"unclear, {len(lines)} lines: {first.err[-400:]}"]
    names = _FILE.search(lines[0].replace("Input/output", ""))
    return [f"unclear: {lines[0]}"] * (says not in lines[0] or not names)


def different(one: Held, other: Held) -> list[str]:
    """The names of what two places hold otherwise."""
    names = sorted(one.content.keys() | other.content.keys())
    return [name for name in names if one.content.get(name) != other.content.get(name)]
