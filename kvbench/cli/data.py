"""`kvbench data pull|verify|list`: benchmark data under `data.root`, from the source of each benchmark."""

import argparse
import json
import time
from collections.abc import Sequence
from contextlib import nullcontext
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from kvbench.cli.errors import ExitCode
from kvbench.cli.parser import Parser, Words, split_settings
from kvbench.cli.terminal import say, screen
from kvbench.support.errors import MissingFile, UserError
from kvbench.support.quantity import shortened
from kvbench.support.text import closest, printable
from kvbench.tasks.data.download import Full, Unobtained, Unreachable, address
from kvbench.tasks.data.lock import DataSource, Download, Lock, expanded, read_lock
from kvbench.tasks.data.pull import pull
from kvbench.tasks.data.record import read_records, state_of
from kvbench.tasks.files import folder

if TYPE_CHECKING:
    from rich.progress import Progress

STATES = {
    "ok": "as locked",
    "recorded": "as it was pulled (no pinned SHA-256)",
    "unpinned": "UNPINNED: there is no SHA-256 to compare with",
    "missing": "MISSING",
    "differs": "DIFFERS from what was locked or pulled",
}
"""States of a file in words."""
SECONDS_BETWEEN_LINES = 10.0
"""How often a download prints a line where there is no terminal for a bar."""


def declare(parser: Parser) -> None:
    """Add the verbs and their flags."""
    names = ", ".join(read_lock())
    parser.epilog = f"""
  kvbench data pull longbench pg19
  kvbench data pull infinitebench/passkey infinitebench/prompts data.root=/data/kvbench

NAME is one of {names}, or all; NAME/FILE is a part of it. The default of data.root is $KVBENCH_DATA, else \
$KVBENCH_HOME/data, else data in the working directory.
"""
    parser.bare_exit = ExitCode.OK
    settings = ("data.root=",)
    pulled = Words("NAME ... [data.root=FOLDER]", lambda before: (*read_lock(), "all"), settings=settings)
    verified = pulled._replace(usage="[NAME ...] [data.root=FOLDER]")
    listed = Words("[data.root=FOLDER]", settings=settings)
    pull_data = parser.add_verb(
        "pull", "download benchmark data; files that are there are not downloaded again", pulled
    )
    pull_data.add_argument("--replace", action="store_true", help="download files again that differ from the lock file")
    parser.add_verb("verify", "compare files with the SHA-256 of the lock file or of their download", verified)
    list_data = parser.add_verb("list", "files that are there or missing, with size, licence and source", listed)
    list_data.add_argument("--json", action="store_true", help="print JSON: a list of objects")


def main(flags: argparse.Namespace) -> int:
    """Pull, verify or list. Raises UserError for words that are neither names nor data.root=FOLDER."""
    lock = read_lock()
    settings, names = split_settings(flags.words, ("data.root",))
    if refused := [word for word in flags.words if word == "data.root=" or (word in names and "=" in word)]:
        raise UserError(f"data {flags.verb} cannot read {refused[0]!r}: its one setting is data.root=FOLDER")
    root_named = settings.get("data.root")
    root = folder(root_named)
    if flags.verb == "pull":
        return _pull(chosen(lock, names), lock, root, flags.replace)
    if flags.verb == "verify":
        if root_named is not None and not names and not root.is_dir():
            raise MissingFile(
                f"data.root={root_named}: no such folder; kvbench data pull makes it, or name another one"
            )
        return _verify(chosen(lock, names or ["all"]), root, bool(names))
    if names:
        raise UserError(f"data list takes no names, got {' '.join(names)}")
    if flags.json:
        print(json.dumps([_tree(source, root) for source in lock.values()], indent=1))
        return ExitCode.OK
    return _list(lock, root)


def chosen(lock: Lock, names: Sequence[str]) -> list[Download]:
    """Return the downloads that names mean, each once, in the lock's order. NAME/PART is a file by its path, with or
    without endings, or a folder of files. Raises UserError for a name that means none.
    """
    if not names:
        raise UserError(f"data pull: name what to pull: all, or {shortened([*lock], 8)} (kvbench data list)")
    every = [download for source in lock.values() for download in source.downloads]
    selected: set[tuple[str, str]] = set()
    for name in names:
        family, _, part = name.partition("/")
        if name != "all" and family not in lock:
            raise UserError(f"no data {name}: {closest(family, [*lock, 'all'])}")
        members = [download for download in every if name == "all" or download.source == family]
        paths = {output.path: (download.source, download.name) for download in members for output in download.outputs}
        parts = [path for path in paths if not part or f"{path}.".startswith((f"{name}/", f"{name}."))]
        if not parts:
            raise UserError(f"no part {name}: {closest(name, {path.partition('.')[0] for path in paths})}")
        selected.update(paths[path] for path in parts)
    return [download for download in every if (download.source, download.name) in selected]


def _pull(downloads: list[Download], lock: Lock, root: Path, replace: bool) -> int:
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn, TransferSpeedColumn

    console = screen(stderr=True)
    for name, group in groupby(downloads, lambda download: download.source):
        members = tuple(group)
        is_here = all(download.is_under(root) for download in expanded(members, root))
        amount = "there already" if is_here else _amount(members)
        say(console, f"{name} -> {root / name}: {amount}; licence: {lock[name].licence}")
    failed: list[str] = []
    unpinned: list[str] = []
    silent_hosts: set[str] = set()
    columns = (TextColumn("{task.description}", markup=False), BarColumn(), DownloadColumn(), TransferSpeedColumn())
    bar = Progress(*columns, TimeRemainingColumn(), console=console, transient=True)
    watcher = Watching(bar)
    with bar if console.is_terminal else nullcontext():
        waiting = list(downloads)
        while waiting:
            download = waiting.pop(0)
            host = urlsplit(address(download)).netloc
            if host in silent_hosts and not download.is_under(root):
                failed.append(f"{download.origin}: {host} does not answer")
                continue
            try:
                pulled = pull(download, root, watcher, replace)
            except Full:
                raise
            except Unobtained as error:
                failed.append(str(error))
                if isinstance(error, Unreachable):
                    silent_hosts.add(host)
                else:
                    watcher.say(f"FAILED {download.name}: {error}")
                continue
            for path, file in pulled.items():
                mark = "" if file.pinned else " UNPINNED"
                watcher.say(f"{path}: {decimal_size(file.bytes)}, SHA-256 {file.sha256[:16]}...{mark}")
                unpinned += [] if file.pinned else [path]
            if download.each:
                waiting = list(expanded((download,), root))[1:] + waiting
    if unpinned:
        say(
            console,
            f"UNPINNED: the lock file of kvbench has no SHA-256 of {', '.join(unpinned)}. The download was trusted "
            f"and its SHA-256 recorded in {root / 'pulled.json'}: compare it with the file of anyone who must have "
            "the same data.",
        )
    if failed:
        raise Unobtained(f"{len(failed)} not fetched, the first: {failed[0]}")
    say(console, f"all of it is in {root}")
    return ExitCode.OK


def _amount(downloads: Sequence[Download]) -> str:
    """Return the size of what is fetched, as far as it is known."""
    sizes = [download.bytes or download.about_bytes for download in downloads]
    listed = [download.each for download in downloads if download.each]
    total = sum(filter(None, sizes)) + sum(each.count * each.about_bytes for each in listed)
    is_rough = bool(listed) or any(download.bytes is None for download in downloads)
    if not total:
        return "of unknown size"
    unknown = " and files of unknown size" if None in sizes else ""
    return f"{'about ' * is_rough}{decimal_size(total)}{unknown}"


def _verify(downloads: list[Download], root: Path, is_named: bool) -> int:
    recorded = read_records(root)
    console = screen()
    bad: list[str] = []
    for name, members in groupby(downloads, lambda download: download.source):
        files = [output for download in expanded(tuple(members), root) for output in download.outputs]
        states = {output.path: state_of(output, root, recorded) for output in files}
        if not is_named and set(states.values()) == {"missing"}:
            say(console, f"{name}: no file of it is there")
            continue
        counts = {state: list(states.values()).count(state) for state in STATES}
        say(console, f"{name}: " + ", ".join(f"{count} {STATES[state]}" for state, count in counts.items() if count))
        for path, state in states.items():
            if state in ("missing", "differs", "unpinned"):
                say(console, f"  {path}: {STATES[state]}")
        bad += [path for path, state in states.items() if state in ("missing", "differs")]
    if bad:
        families = " ".join(dict.fromkeys(path.partition("/")[0] for path in bad))
        raise Unobtained(
            f"{len(bad)} files under {root} are missing or differ, the first is {bad[0]}: "
            f"kvbench data pull {families} fetches what is missing, --replace what differs"
        )
    return ExitCode.OK


def _list(lock: Lock, root: Path) -> int:
    console = screen()
    for source in lock.values():
        state = _tree(source, root)
        count, present = state["files"], state["there"]
        total_bytes = f", {decimal_size(state['bytes'])}" if present else ""
        to_fetch = "" if present == count else f"; to fetch: {_amount(source.downloads)}"
        pinned = "{} of {} downloads have a pinned SHA-256".format(*source.pins(root))
        say(console, f"{source.name}: {present} of {count} files are there{total_bytes}{to_fetch}; {pinned}")
        say(console, f"  for {source.tasks}")
        say(console, f"  licence: {source.licence}")
        each = [download.each.url.removesuffix("{name}") for download in source.downloads if download.each]
        for origin in (*state["from"], *each):
            say(console, f"  from {origin}")
    say(console, f"\nunder {root}; kvbench data pull NAME fetches what is missing")
    return ExitCode.OK


def _tree(source: DataSource, root: Path) -> dict[str, Any]:
    """Return a source as JSON; `bytes`: of the files that are there."""
    outputs = source.outputs(root)
    present = [path for output in outputs if (path := root / output.path).is_file()]
    return {
        "name": source.name,
        "folder": str(root / source.name),
        "files": len(outputs) + source.unnamed(root),
        "there": len(present),
        "bytes": sum(path.stat().st_size for path in present),
        "licence": source.licence,
        "from": list(dict.fromkeys(map(_origin, source.downloads))),
    }


def _origin(download: Download) -> str:
    if download.package:
        return download.origin
    if download.repo:
        return f"hf.co/datasets/{download.repo} at {(download.revision or 'main (no revision is pinned)')[:28]}"
    plain = download.url.removesuffix(download.name)
    return plain.replace(download.revision, download.revision[:12]) if download.revision else plain


def decimal_size(count: int) -> str:
    """Bytes in powers of a thousand: 114 MB, as the hub shows them."""
    for unit, factor in (("GB", 10**9), ("MB", 10**6), ("kB", 10**3)):
        if count >= factor:
            return f"{count / factor:.3g} {unit}"
    return f"{count} bytes"


class Watching:
    """Progress of downloads: a bar on a terminal; elsewhere a line at the start of a file and every ten seconds."""

    def __init__(self, bar: "Progress") -> None:
        self.bar, self._task, self._last = bar, bar.add_task("starting", total=None), 0.0

    def say(self, text: str) -> None:
        self.bar.console.print(printable(text), soft_wrap=True)

    def begin(self, name: str, total: int | None, had: int) -> None:
        self.bar.remove_task(self._task)
        self._task = self.bar.add_task(name, total=total, completed=had)
        self._last = time.monotonic()
        if not self.bar.console.is_terminal:
            size = "" if total is None else f", {decimal_size(total)}"
            self.say(f"fetching {name}{size}{f', continued after {decimal_size(had)}' if had else ''}")

    def advance(self, count: int) -> None:
        self.bar.advance(self._task, count)
        if not self.bar.console.is_terminal and time.monotonic() - self._last >= SECONDS_BETWEEN_LINES:
            self._last, task = time.monotonic(), self.bar.tasks[0]
            size = "" if task.total is None else f" of {decimal_size(int(task.total))}"
            self.say(f"{task.description}: {decimal_size(int(task.completed))}{size}")
