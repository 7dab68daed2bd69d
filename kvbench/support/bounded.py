"""Calls of foreign code with limits: in a child process that the system ends, or in a thread that is left behind.

The child is a fork, so that it has what the function needs; it is kept for the next call, which then costs a message.
A thread is for calls of libraries that bound each read alone, so that a byte now and then has no end.
"""

import math
import os
import resource
import signal
import threading
import time
import warnings
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from typing import Any, TypeVar

from kvbench.support.errors import OverLimit, UserError

Result = TypeVar("Result")

HANGS = 120
"""Seconds of a call after which the child is taken to wait for a lock that another thread held at the fork."""
TRIES = 2
"""Of a call whose child is ended by something else than its own limits, such as a system that is out of memory."""
IGNORED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2, signal.SIGALRM)
"""Signals to a whole group of processes: the parent answers them, and the child ends when its parent does."""


@dataclass(frozen=True)
class Limits:
    """The processor time of a call in seconds, and its memory in bytes over the process that forked."""

    seconds: int
    bytes: int


class BoundedChild:
    """A child of this process that calls a function from texts to a text, again and again, until `close`."""

    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        self._owner = self._child = 0
        self._pipe: Connection | None = None
        self._lock = threading.Lock()

    def call(self, function: Callable[..., str], *arguments: Any, most: int) -> str:
        """Return the result of the function, `most` characters at most.

        The child keeps the function of its first call. Raises UserError where the function does, and OverLimit, whose
        message is what the call takes more than.
        """
        with self._lock:
            ended = ""
            for _ in range(TRIES):
                if self._owner != os.getpid():
                    self._start(function)
                try:
                    answer = self._answer((arguments, most), 5 * most)
                except (OSError, EOFError):
                    ended = self._end()
                except BaseException:  # the answer to this call must not become that to the next
                    self._end()
                    raise
                else:
                    return _read(answer, most, self.limits)
                if ended == signal.SIGXCPU.name:
                    raise OverLimit(f"{self.limits.seconds} s")
            raise OverLimit(f"a process can have: its process ended with {ended}")

    def close(self) -> None:
        """End the child. The next call starts another one."""
        if self._owner == os.getpid():  # not in a fork of the process that has the child
            self._end()

    def _start(self, function: Callable[..., str]) -> None:
        ours, its = Pipe()
        with warnings.catch_warnings():  # of threads: the child takes none of their locks, and is ended if it does
            warnings.simplefilter("ignore", DeprecationWarning)
            try:
                child = os.fork()
            except OSError as error:
                raise UserError(f"a process for foreign input cannot be started: {error.strerror}") from error
        if child == 0:
            with suppress(BaseException):
                _serve(its, function, self.limits)
            os._exit(0)
        its.close()
        self._pipe, self._child, self._owner = ours, child, os.getpid()

    def _answer(self, request: Any, most: int) -> bytes:
        assert self._pipe is not None
        self._pipe.send(request)
        if not self._pipe.poll(HANGS):
            raise EOFError
        return self._pipe.recv_bytes(most)

    def _end(self) -> str:
        """End the child; the name of the signal that had ended it, or its exit code."""
        assert self._pipe is not None
        self._owner = 0
        self._pipe.close()
        os.kill(self._child, signal.SIGKILL)  # one that is ending keeps its signal
        code = os.waitstatus_to_exitcode(os.waitpid(self._child, 0)[1])
        return signal.Signals(-code).name if code < 0 else f"exit code {code}"


def _serve(pipe: Connection, function: Callable[..., str], limits: Limits) -> None:
    """Answer calls until the parent is gone: a letter that says what the rest of the answer is."""
    for number in IGNORED:
        signal.signal(number, signal.SIG_IGN)
    signal.signal(signal.SIGXCPU, signal.SIG_DFL)
    for name in os.listdir("/dev/fd"):
        if int(name) > 2 and int(name) != pipe.fileno():
            with suppress(OSError):
                os.close(int(name))  # locks, devices and the pipes of other children are the parent's alone
    with suppress(OSError), open("/proc/self/statm") as file:
        _limit(resource.RLIMIT_AS, int(file.read().split()[0]) * resource.getpagesize() + limits.bytes)
    while True:
        arguments, most = pipe.recv()
        _limit(resource.RLIMIT_CPU, math.ceil(time.process_time()) + limits.seconds)
        pipe.send_bytes(_made(function, arguments, most))


def _limit(what: int, most: int) -> None:
    _, hard = resource.getrlimit(what)
    resource.setrlimit(what, (most if hard == resource.RLIM_INFINITY else min(most, hard), hard))


def _made(function: Callable[..., str], arguments: tuple[Any, ...], most: int) -> bytes:
    try:
        text = function(*arguments)
        return b"text" + text.encode("utf-8", "surrogatepass") if len(text) <= most else b"long"
    except MemoryError:
        return b"full"
    except UserError as error:
        return b"user" + str(error).encode("utf-8", "surrogatepass")
    except BaseException as error:
        return b"bug " + f"{type(error).__name__}: {error}".encode("utf-8", "surrogatepass")


def _read(answer: bytes, most: int, limits: Limits) -> str:
    kind, text = answer[:4], answer[4:].decode("utf-8", "surrogatepass")
    if kind == b"text":
        return text
    if kind == b"long":
        raise OverLimit(f"{most:,} characters")
    if kind == b"full":
        raise OverLimit(f"{limits.bytes / 2**30:g} GiB")
    raise UserError(text) if kind == b"user" else RuntimeError(text)


def within(seconds: float, call: Callable[[], Result]) -> Result:
    """Return what a call returns; TimeoutError after so many seconds, while it goes on and its end is not heard."""
    results: list[Result] = []
    errors: list[BaseException] = []

    def run() -> None:
        try:
            results.append(call())
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(seconds)
    if errors:
        raise errors[0]
    if not results:
        raise TimeoutError(f"no whole answer in {seconds:g} s")
    return results[0]
