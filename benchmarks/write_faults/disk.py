"""The calls of a process that change the files of a folder: counted, and one of them made to fail.

Wrapped are the functions of `os` that change files, and the files that `open` returns: all that kvbench and the
standard library write with. A call of native code is not seen; pyarrow hands kvbench bytes, which Python writes.
"""

import builtins
import errno
import io
import os
import re
import signal
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, get_args

Kind = Literal["kill", "ENOSPC", "EIO", "ESTALE", "done but EIO", "short"]
"""What becomes of a call.

kill: the process ends before it, or within a write. ENOSPC, EIO, ESTALE: it does nothing and says so, but half
of a write goes down before the disk is full, and a file is closed in any case. done but EIO: it does all and says EIO.
short: a write writes half and says so, as POSIX allows.
"""
KINDS: tuple[Kind, ...] = get_args(Kind)
_OF_PATHS = ("mkdir", "rmdir", "unlink", "remove", "rename", "replace", "link", "symlink", "truncate", "utime", "chmod")
_OF_FILES = ("fsync", "fdatasync", "ftruncate", "close", "fchmod")
_NAMED_BY_TIME = re.compile(
    r"\d{8}T\d{6}\.\d+Z-.+?-\d+-\d+(?=\.|$)|(?<=\.)[^/]*-\d+(?=/|$)|tmp[0-9a-z_]{8}|-[0-9a-z_]{8}(?=\.)"
)


@dataclass(frozen=True)
class Call:
    """A call: the name of its function, and the file or folder that it changes, without what names say of times."""

    name: str
    path: str

    def kinds(self) -> tuple[Kind, ...]:
        """What can become of it: closing a file that fails closes it, and only writes can be short."""
        without = {"close": ("done but EIO", "short"), "write": ()}.get(self.name, ("short",))
        return tuple(kind for kind in KINDS if kind not in without)


@dataclass
class Disk:
    """Watches `folder` in this process, for good; call number `fails` (counted from 0) meets a fault."""

    folder: Path
    fails: int | None = None
    kind: Kind = "kill"
    calls: list[Call] = field(default_factory=list)

    def watch(self) -> None:
        """Begin."""
        self._place = f"{os.path.realpath(self.folder)}/"
        for name in _OF_PATHS:
            setattr(os, name, self._of_path(getattr(os, name)))
        for name in _OF_FILES:
            setattr(os, name, self._of_file(getattr(os, name)))
        os.open = self._open(os.open)
        os.write = self._write(os.write)
        os.sendfile = self._sendfile(os.sendfile)
        io.open = open_for(self, io.open)
        builtins.open = io.open

    def meets(self, name: str, path: str | None, act: Callable[[], Any], half: Callable[[], Any] | None = None) -> Any:
        """Make a call, or let it meet the fault. `half` makes half of a write."""
        if path is None or not path.startswith(self._place):
            return act()
        self.calls.append(Call(name, _NAMED_BY_TIME.sub("NAME", path.removeprefix(self._place))))
        if len(self.calls) - 1 != self.fails:
            return act()
        if half is not None and self.kind in ("kill", "ENOSPC", "short"):
            written = half()
            if self.kind == "short":
                return written
        if self.kind == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        if self.kind == "done but EIO" or name == "close":
            act()
        number = errno.EIO if self.kind == "done but EIO" else getattr(errno, self.kind)
        raise OSError(number, os.strerror(number), *([path] if name in (*_OF_PATHS, "open") else []))

    def _of_path(self, usual: Callable[..., Any]) -> Callable[..., Any]:
        def changed(*arguments: Any, **named: Any) -> Any:
            path = _path_of(arguments[-1 if usual.__name__ in ("rename", "replace", "link") else 0], named)
            return self.meets(usual.__name__, path, lambda: usual(*arguments, **named))

        return changed

    def _of_file(self, usual: Callable[..., Any]) -> Callable[..., Any]:
        def changed(file: Any, *arguments: Any) -> Any:
            path = path_of(file) if usual.__name__ != "close" or is_written(file) else None
            return self.meets(usual.__name__, path, lambda: usual(file, *arguments))

        return changed

    def _open(self, usual: Callable[..., int]) -> Callable[..., int]:
        def opened(path: Any, flags: int, *arguments: Any, **named: Any) -> int:
            changes = flags & (os.O_CREAT | os.O_TRUNC) or flags & os.O_TMPFILE == os.O_TMPFILE
            made = _path_of(path, named) if changes else None
            return self.meets("open", made, lambda: usual(path, flags, *arguments, **named))

        return opened

    def _write(self, usual: Callable[[int, Any], int]) -> Callable[[int, Any], int]:
        def written(file: int, data: Any) -> int:
            half = memoryview(data).cast("B")[: (len(data) + 1) // 2]
            return self.meets("write", path_of(file), lambda: usual(file, data), lambda: usual(file, half))

        return written

    def _sendfile(self, usual: Callable[..., int]) -> Callable[..., int]:
        def sent(out: int, source: int, offset: int, count: int) -> int:
            def half() -> int:
                return usual(out, source, offset, (os.fstat(source).st_size - offset + 1) // 2)

            ends = offset >= os.fstat(source).st_size
            return self.meets("write", None if ends else path_of(out), lambda: usual(out, source, offset, count), half)

        return sent


def open_for(disk: Disk, usual: Callable[..., Any]) -> Callable[..., Any]:
    """`open`, whose files for writing ask the disk."""

    class Watched(io.FileIO):
        def write(self, data: Any) -> int:
            half = memoryview(data).cast("B")[: (memoryview(data).nbytes + 1) // 2]
            write = super().write
            return disk.meets("write", path_of(self.fileno()), lambda: write(data), lambda: write(half))

        def close(self) -> None:
            path = None if self.closed else path_of(self.fileno())
            disk.meets("close", path, super().close)

    def opened(
        file: Any,
        mode: str = "r",
        buffering: int = -1,
        encoding: str | None = None,
        errors: str | None = None,
        newline: str | None = None,
        closefd: bool = True,
        opener: Any = None,
    ) -> Any:
        if not set(mode) & set("wax+"):
            return usual(file, mode, buffering, encoding, errors, newline, closefd, opener)
        made = None if isinstance(file, int) or opener is not None else _path_of(file, {})
        raw_mode = mode.replace("b", "").replace("t", "")
        raw = disk.meets("open", made, lambda: Watched(file, raw_mode, closefd, opener))
        if buffering == 0:
            return raw
        buffered = (io.BufferedRandom if "+" in mode else io.BufferedWriter)(raw)
        return buffered if "b" in mode else io.TextIOWrapper(buffered, encoding or "utf-8", errors, newline)

    return opened


def path_of(file: int | Any) -> str | None:
    """Where an open file is; None if nowhere."""
    try:
        return os.readlink(f"/proc/self/fd/{file if isinstance(file, int) else file.fileno()}")
    except (OSError, ValueError):
        return None


def is_written(file: int) -> bool:
    """Whether an open file is one that is written."""
    try:
        flags = re.search(r"flags:\s*(\d+)", Path(f"/proc/self/fdinfo/{file}").read_text())
    except OSError:
        return False
    return flags is not None and int(flags[1], 8) & os.O_ACCMODE != os.O_RDONLY


def _path_of(path: Any, named: dict[str, Any]) -> str | None:
    """The whole path that a call names, relative to an open folder or not."""
    if isinstance(path, int):
        return path_of(path)
    folder = next((named[key] for key in ("dst_dir_fd", "dir_fd") if named.get(key) is not None), None)
    place = os.getcwd() if folder is None else path_of(folder) or ""
    whole = os.path.join(place, os.fsdecode(path))
    return os.path.join(os.path.realpath(os.path.dirname(whole)), os.path.basename(whole))
