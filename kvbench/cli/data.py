"""`kvbench data pull|verify|list`: benchmark data under `data.root`, from each benchmark's own source."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from rich.console import Console

from kvbench.cli.errors import Exit
from kvbench.cli.sizes import size
from kvbench.cli.terminal import say, screen
from kvbench.cli.usage import show
from kvbench.cli.watching import watching
from kvbench.support.errors import UserError
from kvbench.support.nearest import closest
from kvbench.tasks.data import Download, Lock, Source, Unobtained, pull, read_lock, read_own, state_of
from kvbench.tasks.data.hub import address
from kvbench.tasks.data.lock import whole
from kvbench.tasks.data.trouble import Full, Unreachable
from kvbench.tasks.files import SOURCES, folder

VERBS = ("pull", "verify", "list")
USAGE = """kvbench data pull NAME ... [data.root=FOLDER] [--replace]: fetch benchmark data; what is there already stays
kvbench data verify [NAME ...] [data.root=FOLDER]: compare what is there with the lock and with what was pulled
kvbench data list [data.root=FOLDER] [--json]: what is there, what is missing, its size, licence and source

  kvbench data pull longbench pg19
  kvbench data pull infinitebench/passkey infinitebench/prompts data.root=/data/kvbench
  NAME is one of {names}, or all; NAME/FILE is a part of it
  --replace   fetch again what is not as it should be
  --json      a list of objects
  data.root is $KVBENCH_DATA where it is not given, else $KVBENCH_HOME/data, else data in the working directory
"""
WORDS = {
    "ok": "as locked",
    "recorded": "as it was pulled (no pin)",
    "unpinned": "UNPINNED: nobody knows what it should be",
    "missing": "MISSING",
    "differs": "DIFFERS from what was locked or pulled",
}
"""What is said of a file's state."""


@dataclass(frozen=True)
class Asked:
    """A command line."""

    verb: str
    names: tuple[str, ...]
    root: str | None
    replace: bool
    json: bool


def main(arguments: Sequence[str]) -> int:
    """Do what one of the three verbs says. Raises ValueError for a command line that says none."""
    lock = read_lock()
    if not arguments or any(argument in ("-h", "--help") for argument in arguments):
        show(USAGE.replace("{names}", ", ".join(lock)))
        return 0
    asked = _asked(arguments)
    root = folder(asked.root)
    match asked.verb:
        case "pull":
            return _pull(_chosen(lock, asked.names), lock, root, asked)
        case "verify":
            return _verify(_chosen(lock, asked.names or ("all",)), root, bool(asked.names))
    if asked.names:
        raise UserError(f"data list takes no names, got {' '.join(asked.names)}")
    if asked.json:
        print(json.dumps([_tree(source, root) for source in lock.values()], indent=1))
        return Exit.OK
    return _list(lock, root)


def _asked(arguments: Sequence[str]) -> Asked:
    verb, *rest = arguments
    if verb not in VERBS:
        raise UserError(f"cannot do data {verb}: {closest(verb, VERBS)}")
    root, names, replace, as_json = None, [], False, False
    for argument in rest:
        key, given, value = argument.partition("=")
        if given and key == "data.root" and value:
            root = value
        elif given:
            raise UserError(f"data {verb} cannot read {argument!r}: its one setting is data.root=FOLDER")
        elif argument == "--replace" and verb == "pull":
            replace = True
        elif argument == "--json" and verb == "list":
            as_json = True
        elif argument.startswith("-"):
            own = {"pull": "--replace, ", "list": "--json, "}.get(verb, "")
            raise UserError(f"data {verb} has no flag {argument}; legal: {own}--help")
        else:
            names.append(argument)
    return Asked(verb, tuple(names), root, replace, as_json)


def _chosen(lock: Lock, names: Sequence[str]) -> list[Download]:
    """The downloads that names mean, each once, in the lock's order. Raises ValueError for a name that means none."""
    if not names:
        raise UserError(f"data pull: name what to pull: {', '.join(lock)}, or all")
    wanted: set[tuple[str, str]] = set()
    for name in names:
        family, _, part = name.partition("/")
        if name != "all" and family not in lock:
            raise UserError(f"no data {name}: {closest(family, [*lock, 'all'])}")
        found = [one for source in lock.values() if name in ("all", source.name) for one in source.downloads]
        if part:
            found = [one for one in lock[family].downloads if any(_is_part(name, o.path) for o in one.outputs)]
        if not found:
            parts = [output.path.partition(".")[0] for one in lock[family].downloads for output in one.outputs]
            raise UserError(f"no part {name}: {closest(name, parts)}")
        wanted |= {(one.source, one.name) for one in found}
    return [one for source in lock.values() for one in source.downloads if (one.source, one.name) in wanted]


def _is_part(name: str, path: str) -> bool:
    """Whether a name with a slash means a file: its whole path, the path without endings, or a folder of it."""
    return path == name or path.startswith((f"{name}/", f"{name}."))


def _pull(downloads: list[Download], lock: Lock, root: Path, asked: Asked) -> int:
    said = screen(stderr=True)
    _say_what_comes(downloads, lock, root, said)
    failed: list[str] = []
    unpinned: list[str] = []
    silent: set[str] = set()
    with watching(said) as watcher:
        waiting = list(downloads)
        while waiting:
            one = waiting.pop(0)
            host = urlsplit(address(one)).netloc
            if host in silent and not all((root / output.path).is_file() for output in one.outputs):
                failed.append(f"{one.origin}: {host} does not answer")
                continue
            try:
                pulled = pull(one, root, watcher, asked.replace)
            except Full:
                raise
            except Unreachable as error:
                silent.add(host)
                failed.append(str(error))
                continue
            except Unobtained as error:
                failed.append(str(error))
                watcher.say(f"FAILED {one.name}: {error}")
                continue
            for path, was in pulled.written.items():
                watcher.say(
                    f"{path}: {size(was.bytes)}, SHA-256 {was.sha256[:16]}...{'' if was.pinned else ' UNPINNED'}"
                )
                unpinned += [] if was.pinned else [path]
            if one.each:
                waiting = list(whole((one,), root))[1:] + waiting
    if unpinned:
        say(said, _warning(unpinned, root))
    if failed:
        raise Unobtained(f"{len(failed)} not fetched, the first: {failed[0]}")
    say(said, f"all of it is in {root}")
    return Exit.OK


def _say_what_comes(downloads: list[Download], lock: Lock, root: Path, said: Console) -> None:
    """Licences and sizes, before anything is fetched."""
    for name in dict.fromkeys(one.source for one in downloads):
        mine = [one for one in downloads if one.source == name]
        here = all((root / output.path).is_file() for one in whole(tuple(mine), root) for output in one.outputs)
        amount = "there already" if here else _amount(mine)
        say(said, f"{name} -> {root / name}: {amount}; licence: {lock[name].licence}")


def _warning(paths: list[str], root: Path) -> str:
    return (
        f"UNPINNED: the lock of kvbench holds no SHA-256 of {', '.join(paths)}. What came was trusted, and its "
        f"SHA-256 recorded in {root / 'pulled.json'}: compare it with that of whoever should have the same data."
    )


def _amount(downloads: list[Download]) -> str:
    """How much is fetched, as far as it is known."""
    sizes = [one.bytes or one.about_bytes for one in downloads]
    total = sum(each for each in sizes if each)
    rough = any(one.bytes is None for one in downloads)
    for one in downloads:
        if one.each:
            total, rough = total + one.each.count * one.each.about_bytes, True
    if not total:
        return "of unknown size"
    return f"{'about ' * rough}{size(total)}{' and files of unknown size' * any(each is None for each in sizes)}"


def _verify(downloads: list[Download], root: Path, is_named: bool) -> int:
    own = read_own(root)
    console = screen()
    bad: list[str] = []
    for name in dict.fromkeys(one.source for one in downloads):
        mine = list(whole(tuple(one for one in downloads if one.source == name), root))
        states = {output.path: state_of(output, root, own) for one in mine for output in one.outputs}
        if not is_named and set(states.values()) == {"missing"}:
            say(console, f"{name}: nothing is there")
            continue
        counts = {state: sum(one == state for one in states.values()) for state in WORDS}
        told = ", ".join(f"{count} {WORDS[state]}" for state, count in counts.items() if count)
        say(console, f"{name}: {told}")
        for path, state in states.items():
            if state in ("missing", "differs", "unpinned"):
                say(console, f"  {path}: {WORDS[state]}")
        bad += [path for path, state in states.items() if state in ("missing", "differs")]
    if bad:
        families = " ".join(dict.fromkeys(path.partition("/")[0] for path in bad))
        raise Unobtained(
            f"{len(bad)} files under {root} are missing or differ, the first is {bad[0]}: "
            f"kvbench data pull {families} fetches what is missing, --replace what differs"
        )
    return Exit.OK


def _list(lock: Lock, root: Path) -> int:
    console = screen()
    for source in lock.values():
        every = list(whole(source.downloads, root))
        there = [root / one.path for one in source.outputs(root) if (root / one.path).is_file()]
        count, unnamed = len(source.outputs(root)), source.unnamed(root)
        is_whole = len(there) == count + unnamed
        held = f", {size(sum(path.stat().st_size for path in there))}" if there else ""
        wanted = "" if is_whole else f"; to fetch: {_amount(list(source.downloads))}"
        pinned = f"{sum(one.is_pinned for one in every)} of {len(every) + unnamed} downloads have a pinned SHA-256"
        lines = [f"{source.name}: {len(there)} of {count + unnamed} files are there{held}{wanted}; {pinned}"]
        if source.name in SOURCES:
            lines.append(f"  for {SOURCES[source.name].tasks}")
        lines += [f"  licence: {source.licence}"]
        lines += [f"  from {host}" for host in dict.fromkeys(_host(one) for one in source.downloads)]
        lines += [f"  from {one.each.url.removesuffix('{name}')}" for one in source.downloads if one.each]
        for line in lines:
            say(console, line)
    say(console, f"\nunder {root}; kvbench data pull NAME fetches what is missing")
    return Exit.OK


def _tree(source: Source, root: Path) -> dict[str, Any]:
    """A source for programs; bytes are those that are there."""
    there = [root / one.path for one in source.outputs(root) if (root / one.path).is_file()]
    return {
        "name": source.name,
        "folder": str(root / source.name),
        "files": len(source.outputs(root)) + source.unnamed(root),
        "there": len(there),
        "bytes": sum(path.stat().st_size for path in there),
        "licence": source.licence,
        "from": list(dict.fromkeys(map(_host, source.downloads))),
    }


def _host(download: Download) -> str:
    if download.repo:
        return f"hf.co/datasets/{download.repo} at {(download.revision or 'main (no revision is pinned)')[:28]}"
    plain = download.url.removesuffix(download.name)
    return plain.replace(download.revision, download.revision[:12]) if download.revision else plain
