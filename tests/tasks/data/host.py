"""A host of files on this machine that plays the hub and everybody else, faults included."""

import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


@dataclass
class Fault:
    """What one answer does instead of its duty: a status with headers, or a connection that ends after some bytes.

    `stall`: waits here for the test, then ends; with `goes_on` it sends the rest.
    """

    status: int = 0
    headers: dict[str, str] = field(default_factory=dict)
    drop_after: int | None = None
    stall: threading.Event | None = None
    goes_on: bool = False


@dataclass
class Served:
    """A file, the faults of its next answers in order, and what was asked for so far."""

    content: bytes
    faults: list[Fault] = field(default_factory=list)
    headers: dict[str, str] = field(default_factory=dict)
    length: bool = True
    ranges: list[str | None] = field(default_factory=list)
    requests: list[dict[str, str]] = field(default_factory=list)


class Host:
    """Files by path; what is not among them is a 404."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.files: dict[str, Served] = {}
        self.others: list[str] = []

    def serve(self, path: str, content: bytes, *faults: Fault, **how: object) -> Served:
        """Offer a file at a path that begins with a slash."""
        self.files[path] = Served(content, list(faults), **how)  # type: ignore[arg-type]
        return self.files[path]


@contextmanager
def hosting() -> Iterator[Host]:
    """A host that answers until the block ends."""

    class Handler(BaseHTTPRequestHandler):
        def log_message(self, format: str, *args: object) -> None:
            """Tests say what they saw."""

        def do_HEAD(self) -> None:
            """What a file is, without its faults: the hub's client asks."""
            if (served := host.files.get(self.path)) is None:
                self._head(404, {})
            else:
                self._head(200, {"Content-Length": str(len(served.content)), **served.headers})

        def do_GET(self) -> None:
            served = host.files.get(self.path)
            if served is None:
                host.others.append(self.path)
                self._head(404, {})
                return
            served.ranges.append(self.headers.get("Range"))
            served.requests.append({name.lower(): value for name, value in self.headers.items()})
            fault = served.faults.pop(0) if served.faults else Fault()
            if fault.status:
                self._head(fault.status, fault.headers)
                return
            wanted = re.fullmatch(r"bytes=(\d+)-", self.headers.get("Range") or "")
            start, total, headers = int(wanted[1]) if wanted else 0, len(served.content), dict(served.headers)
            if start:
                headers["Content-Range"] = f"bytes {start}-{total - 1}/{total}"
            if served.length:
                headers["Content-Length"] = str(total - start)
            self._head(206 if start else 200, headers)
            end = total if fault.drop_after is None else min(total, start + fault.drop_after)
            self.wfile.write(served.content[start:end])
            self.wfile.flush()
            if fault.stall:
                fault.stall.wait(20)
            if fault.goes_on:
                self.wfile.write(served.content[end:])

        def _head(self, status: int, headers: dict[str, str]) -> None:
            self.send_response(status)
            for name, value in headers.items():
                self.send_header(name, value)
            self.end_headers()

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        server.daemon_threads = True
        host = Host(f"http://127.0.0.1:{server.server_address[1]}")
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
        thread.start()
        try:
            yield host
        finally:
            server.shutdown()
            thread.join()
