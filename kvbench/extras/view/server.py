"""The server of a live page: reads only, for this machine, or for whoever has its token.

Nothing of an address becomes a path of a file: each page is a function. A browser that another site has led here is
refused by the name that it calls this machine by (`Host`), so that no site can rebind its name to this server and read.
The one body that is read, a query for samples, must be JSON by its type: a browser sends none of that type from another
site without asking first (OPTIONS), which is refused.
"""

import gzip
import hashlib
import hmac
import ipaddress
import json
import secrets
import socket
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from http import HTTPStatus
from http.cookies import CookieError, SimpleCookie
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, NamedTuple
from urllib.parse import SplitResult, parse_qsl, urlencode, urlsplit

from kvbench.extras.view.live_page import LivePage
from kvbench.extras.view.query import Query
from kvbench.extras.view.rendered import PLOTLY, script_of, text_of
from kvbench.report.formats.html import style
from kvbench.support.errors import MissingFile, UserError

IDLE_SECONDS = 30
"""How long a connection may say nothing."""
SMALLEST_COMPRESSED = 1400
"""Bytes of a body that are not worth compressing."""
LONGEST_QUERY = 2**22
"""Bytes of a query for samples, which names its cells: a hundred thousand of them."""
HEADERS = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self' 'unsafe-inline'; img-src data: blob:; "
        "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-cache",
}
"""What every answer has. The charts set styles from their script, hence the inline ones."""
TEXT, HTML, JSON = "text/plain; charset=utf-8", "text/html; charset=utf-8", "application/json"
CSS, SCRIPT = "text/css; charset=utf-8", "text/javascript; charset=utf-8"


class Answer(NamedTuple):
    """A status, the type of its content, and its bytes."""

    status: HTTPStatus
    content_type: str
    body: bytes


@dataclass(frozen=True)
class Access:
    """Who may read. host: the address that is listened on. token: what readers must have, "" for none."""

    host: str
    token: str = ""

    @classmethod
    def of(cls, host: str, with_token: bool = False) -> "Access":
        """With a new token where others than this machine can reach the host, or where one is wished."""
        return cls(host, secrets.token_urlsafe(24) if with_token or not is_loopback(host) else "")

    def knows(self, name: str) -> bool:
        """Return whether a browser that names its server so means this one.

        Numbers are no names, so nobody can lead them here. Of names: localhost, the one that is listened on, and, where
        others can reach it, of this machine.
        """
        try:
            name = (urlsplit(f"//{name}").hostname or "").rstrip(".").lower()
        except ValueError:
            return False
        if name in ("localhost", self.host.lower()):
            return True
        if is_loopback(self.host):
            return is_loopback(name)
        return _is_number(name) or name in (
            socket.gethostname().lower(),
            socket.gethostname().partition(".")[0].lower(),
        )

    def opens(self, token: str) -> bool:
        """Return whether this is the token."""
        return hmac.compare_digest(token.encode(), self.token.encode())


def is_loopback(host: str) -> bool:
    """Return whether only this machine can reach a host."""
    return host == "localhost" or (_is_number(host) and ipaddress.ip_address(host).is_loopback)


def _is_number(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


class Server(ThreadingHTTPServer):
    """Answers GET and HEAD, and POST of a query for samples. port: 0 takes a free one. tell: is told what failed.

    Raises UserError for an address that cannot be listened on.
    """

    daemon_threads = True

    def __init__(self, page: LivePage, door: Access, port: int, tell: Callable[[str], None]) -> None:
        self.page, self.door, self.tell = page, door, tell
        if ":" in door.host:
            self.address_family = socket.AF_INET6
        try:
            super().__init__((door.host, port), _Handler)
        except (OSError, OverflowError) as error:
            reason = getattr(error, "strerror", None) or error
            fix = "name another --port, or 0 for a free one"
            raise UserError(f"cannot listen on {door.host}, port {port}: {reason}; {fix}") from None
        self.cookie = f"kvbench-{self.server_port}"

    @property
    def address(self) -> str:
        """Where the page is, with its token."""
        host = f"[{self.door.host}]" if ":" in self.door.host else self.door.host
        host = socket.gethostname() if host in ("0.0.0.0", "[::]") else host
        return f"http://{host}:{self.server_port}/" + (f"?token={self.door.token}" if self.door.token else "")

    def routes(self) -> Mapping[str, Callable[[str], Answer]]:
        """Return the function of each path; the functions get what follows the ?."""
        fixed = {
            "/page.css": (CSS, style),
            "/plotly.js": (SCRIPT, partial(text_of, PLOTLY)),
            "/page.js": (SCRIPT, partial(script_of, "page")),
            "/history.js": (SCRIPT, partial(script_of, "history")),
            "/": (HTML, self.page.html),
            "/history": (HTML, self.page.history),
        }
        rendered = {path: partial(_rendered, kind, render) for path, (kind, render) in fixed.items()}
        return {**rendered, "/cells": self._cells}

    def _cells(self, words: str) -> Answer:
        data = self.page.cells(dict(parse_qsl(words)).get("version", ""))
        return Answer(HTTPStatus.NO_CONTENT, JSON, b"") if data is None else _json(data)

    def answer(self, path: str, words: str) -> Answer:
        """Return the answer to a request of somebody who may read."""
        route = self.routes().get(path)
        if route is None:
            return text(HTTPStatus.NOT_FOUND, "no such page: the page is at /")
        return _answered(lambda: route(words))

    def samples(self, body: bytes) -> Answer:
        """Return the samples of a query, to somebody who may read."""
        return _answered(lambda: _json(self.page.samples(Query.of(body))))

    def handle_error(self, request: object, client_address: object) -> None:
        """Say nothing of a reader who has gone; others are answered with 500 and nothing more."""


def text(status: HTTPStatus, message: str) -> Answer:
    """Return an answer of one line."""
    return Answer(status, TEXT, f"{message}\n".encode())


def _answered(make: Callable[[], Answer]) -> Answer:
    """Return an answer, or the line of an error that the reader can fix."""
    try:
        return make()
    except UserError as error:
        return text(HTTPStatus.BAD_REQUEST, str(error))
    except MissingFile as error:
        return text(HTTPStatus.NOT_FOUND, str(error))


def _json(data: object) -> Answer:
    return Answer(HTTPStatus.OK, JSON, json.dumps(data, allow_nan=False, separators=(",", ":")).encode())


def _rendered(content_type: str, render: Callable[[], str], words: str) -> Answer:
    return Answer(HTTPStatus.OK, content_type, render().encode())


class _Handler(BaseHTTPRequestHandler):
    """One connection."""

    server: Server  # type: ignore[assignment]
    protocol_version = "HTTP/1.1"
    server_version, sys_version = "kvbench", ""
    timeout = IDLE_SECONDS

    def do_GET(self) -> None:
        self._reply(lambda parts: self.server.answer(parts.path, parts.query))

    do_HEAD = do_GET

    def do_POST(self) -> None:
        """Answer a query for samples. The connection ends: a body that is refused stays unread."""
        if self.path.partition("?")[0] != "/samples":
            self.send_error(HTTPStatus.NOT_IMPLEMENTED)
            return
        self._reply(self._samples)

    def _samples(self, parts: SplitResult) -> Answer:
        """Return the samples of the query in the body."""
        length = self.headers.get("Content-Length", "")
        if self.headers.get_content_type() != JSON:
            return text(HTTPStatus.UNSUPPORTED_MEDIA_TYPE, f"a query for samples is {JSON}")
        if not (length.isascii() and length.isdecimal()):
            return text(HTTPStatus.LENGTH_REQUIRED, "a query for samples says its length")
        if len(length) > len(str(LONGEST_QUERY)) or int(length) > LONGEST_QUERY:
            return text(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, f"a query has at most {LONGEST_QUERY} bytes")
        return self.server.samples(self.rfile.read(int(length)))

    def _reply(self, make: Callable[[SplitResult], Answer]) -> None:
        ending = {"Connection": "close"} if self.command == "POST" else {}
        try:
            answer, headers = self._answer(make)
            self._send(answer, headers | ending)
        except (ConnectionError, TimeoutError):
            self.close_connection = True

    def _answer(self, make: Callable[[SplitResult], Answer]) -> tuple[Answer, dict[str, str]]:
        """Return what `make` says to somebody who may read, or why nobody may, and headers."""
        door = self.server.door
        try:
            parts = urlsplit(self.path)
        except ValueError:
            return text(HTTPStatus.BAD_REQUEST, "what was requested is no address"), {}
        hosts = self.headers.get_all("Host", [])
        if len(hosts) != 1 or not door.knows(hosts[0]):
            return text(HTTPStatus.MISDIRECTED_REQUEST, "this server is not known by that name: use its number"), {}
        if door.token:
            words = parse_qsl(parts.query, keep_blank_values=True)
            token = next((value for name, value in words if name == "token"), None)
            if not door.opens(self._cookie() if token is None else token):
                return text(HTTPStatus.FORBIDDEN, "open the address that kvbench view printed, with its token"), {}
            if token is not None:  # into a cookie, so that no link that is copied holds it
                rest = urlencode([pair for pair in words if pair[0] != "token"])
                path = "/" + parts.path.lstrip("/")  # "//host" would lead to another server
                cookie = f"{self.server.cookie}={door.token}; Path=/; HttpOnly; SameSite=Lax"
                location = path + (f"?{rest}" if rest else "")
                return Answer(HTTPStatus.SEE_OTHER, TEXT, b""), {"Location": location, "Set-Cookie": cookie}
        try:
            return make(parts), {}
        except (ConnectionError, TimeoutError):
            raise
        except Exception as error:  # the page goes on, and tells no reader what is in the machine
            self.log_error("%s", f"{type(error).__name__}: {error}")
            return text(HTTPStatus.INTERNAL_SERVER_ERROR, "this request failed; the command that serves tells why"), {}

    def _cookie(self) -> str:
        try:
            cookie = SimpleCookie("; ".join(self.headers.get_all("Cookie", []))).get(self.server.cookie)
        except CookieError:
            return ""
        return cookie.value if cookie else ""

    def _send(self, answer: Answer, extra_headers: Mapping[str, str]) -> None:
        status, content_type, body = answer
        headers = {**HEADERS, **extra_headers}
        if status == HTTPStatus.OK:
            headers["ETag"] = f'"{hashlib.sha256(body).hexdigest()[:24]}"'
            headers["Vary"] = "Accept-Encoding"
            if self.headers.get("If-None-Match") == headers["ETag"]:
                status, body = HTTPStatus.NOT_MODIFIED, b""
        if len(body) > SMALLEST_COMPRESSED and "gzip" in self.headers.get("Accept-Encoding", ""):
            body, headers["Content-Encoding"] = gzip.compress(body, 5, mtime=0), "gzip"
        self.send_response(status)
        if status not in (HTTPStatus.NO_CONTENT, HTTPStatus.NOT_MODIFIED):
            headers |= {"Content-Type": content_type, "Content-Length": str(len(body))}
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def send_error(self, code: int, message: str | None = None, explain: str | None = None) -> None:
        """Answer a request that is none, or of another method, by one line, and the connection ends, as its body is not
        read.
        """
        self.close_connection = True
        self.request_version = "HTTP/1.1"  # of one of HTTP/0.9 the headers would not be sent
        self.headers = getattr(self, "headers", None) or self.MessageClass()
        self.command = getattr(self, "command", None) or "GET"
        is_method = code == HTTPStatus.NOT_IMPLEMENTED
        status = HTTPStatus.METHOD_NOT_ALLOWED if is_method else HTTPStatus(code)
        allow = {"Allow": "GET, HEAD"} if is_method else {}
        self._send(text(status, "only GET and HEAD" if is_method else status.phrase), {**allow, "Connection": "close"})

    def log_request(self, code: Any = "-", size: Any = "-") -> None:
        """Nothing: addresses may hold the token."""

    def log_message(self, format: str, *args: Any) -> None:
        """Report a failure to who started the server."""
        self.server.tell(format % args)
