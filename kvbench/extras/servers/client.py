"""Requests to a server over HTTP: retried after faults that may pass, each fault in one line, the key in none."""

import json
import re
import time
from collections.abc import Mapping
from functools import partial
from types import TracebackType
from typing import Any, NamedTuple

from kvbench.extras.servers.answer_stream import STREAM, Times, TornStream, joined
from kvbench.extras.servers.endpoint import Endpoint
from kvbench.support.bounded import within
from kvbench.support.errors import MissingFile, UserError
from kvbench.support.text import printable

PASSING = (408, 409, 425, 429, 500, 502, 503, 504)
"""Statuses after which the same request may succeed."""
FIRST_PAUSE, LONGEST_PAUSE = 0.5, 60.0
"""Seconds before the first repetition, which double, and at most."""
MOST_BYTES = 2**26
"""Bytes of an answer, unpacked."""
EXCERPT = 200
"""Characters of a server's own words in a message."""


class Refused(UserError):
    """The server does not do what one request asks: `status` is HTTP's."""

    def __init__(self, message: str, status: int) -> None:
        super().__init__(message)
        self.status = status


class KeyRefused(UserError):
    """The server takes no request without a key, or not with this one."""


class Unreachable(MissingFile):
    """Nobody answers at the URL, or not in time."""


class Client:
    """One server; safe for use by several threads. Use it as a context manager.

    streams: whether it sends answers piece by piece; None: not known yet.
    """

    def __init__(self, endpoint: Endpoint) -> None:
        """Raise UserError without httpx or tenacity, or without the key that the endpoint names."""
        try:
            import httpx
            import tenacity
        except ModuleNotFoundError:
            raise UserError("model=endpoint needs httpx and tenacity: pip install 'kvbench[endpoint]'") from None
        self._endpoint, self._url, self._secret = endpoint, endpoint.url.rstrip("/"), endpoint.secret()
        headers = {} if self._secret is None else {"Authorization": f"Bearer {self._secret}"}
        limits = httpx.Limits(max_connections=endpoint.concurrency, max_keepalive_connections=endpoint.concurrency)
        timeout = httpx.Timeout(endpoint.timeout, connect=min(30.0, endpoint.timeout))
        self._connect = partial(httpx.Client, headers=headers, timeout=timeout, limits=limits, follow_redirects=False)
        self._http = self._connect()
        self._errors = httpx.RequestError
        self.streams = None if endpoint.stream else False
        self._retry = tenacity.Retrying(
            stop=tenacity.stop_after_attempt(endpoint.retries + 1),
            wait=_pause,
            retry=tenacity.retry_if_exception_type(_Passing),
            reraise=True,
        )

    def post(self, path: str, body: Mapping[str, Any]) -> dict[str, Any]:
        """Return the JSON object that the server answers to a request below its URL.

        Raises Refused for a request that it does not do, Unreachable where nobody answers, KeyRefused for a key.
        """
        return self._with_retries(f"{self._url}{path}", {**self._endpoint.body, **body}).content

    def stream(self, path: str, body: Mapping[str, Any]) -> tuple[dict[str, Any], Times | None]:
        """`post`, with the times of an answer that comes piece by piece. A server that answers as a whole, or refuses
        pieces and not the whole, is asked for no more pieces.
        """
        url, whole = f"{self._url}{path}", {**self._endpoint.body, **body}
        try:
            received = self._with_retries(url, whole if self.streams is False else {**whole, **STREAM})
        except Refused as refusal:
            if self.streams is not None or refusal.status < 400 or refusal.status in PASSING:
                raise
            received = self._with_retries(url, whole)
        self.streams = received.is_streamed if self.streams is None else self.streams
        return received.content, received.times

    def get(self, path: str, at_root: bool = False) -> tuple[Any, Mapping[str, str]] | None:
        """Fetch a page, with its headers; None where the server has no such page. `at_root`: not below `/v1`."""
        url = self._url.removesuffix("/v1") if at_root else self._url
        try:
            answer = self._whole("GET", f"{url}{path}", min(10.0, self._endpoint.timeout))
            return (answer.json(), answer.headers) if answer.status == 200 else None
        except (self._errors, TimeoutError, ValueError):
            return None

    def _whole(self, method: str, url: str, seconds: float, body: Mapping[str, Any] | None = None) -> "_Answer":
        """Return the answer to one request. Raises TimeoutError if it is not whole in time, UserError if it is too
        large.
        """
        http = self._http

        def ask() -> _Answer:
            arrivals, start = list[tuple[int, float]](), time.perf_counter()
            with http.stream(method, url, json=body, timeout=seconds) as response:
                content = bytearray()
                for chunk in response.iter_bytes():
                    content += chunk
                    arrivals.append((len(content), time.perf_counter() - start))
                    if len(content) > MOST_BYTES:
                        raise Refused(f"{self._endpoint.url}: its answer has more than {MOST_BYTES} bytes", 200)
                return _Answer(response.status_code, response.headers, bytes(content), arrivals)

        try:
            return within(seconds, ask)
        except TimeoutError:
            self._http = self._connect()  # the other's connections may be taken for ever
            raise

    def _with_retries(self, url: str, body: Mapping[str, Any]) -> "_Received":
        try:
            return self._retry.copy()(self._once, url, body)
        except _Passing as fault:
            tries = f"after {self._endpoint.retries + 1} tries" if self._endpoint.retries else "at the first try"
            message = f"{self._endpoint.url}: {fault} {tries}"
            if fault.status is None:
                raise Unreachable(f"{message}: start the server, or correct endpoint.url or endpoint.timeout") from None
            raise Refused(message, fault.status) from None

    def _once(self, url: str, body: Mapping[str, Any]) -> "_Received":
        try:
            answer = self._whole("POST", url, self._endpoint.timeout, body)
        except (self._errors, TimeoutError) as error:
            raise _Passing(f"no answer ({self._hidden(type(error).__name__, error)})", None) from None
        status = answer.status
        words = self._hidden("", answer.content[: 16 * EXCERPT].decode("utf-8", "replace"))
        if status in PASSING:
            raise _Passing(f"HTTP {status}{words}", status, _after(answer.headers.get("retry-after")))
        if status in (401, 403):
            fix = "set endpoint.key to the environment variable that holds a key" if self._secret is None else (
                f"correct the key in ${self._endpoint.key}"
            )  # fmt: skip
            raise KeyRefused(f"{self._endpoint.url}: HTTP {status}, the server takes no request without its key: {fix}")
        if status != 200:
            raise Refused(f"{self._endpoint.url}: HTTP {status}{words}", status)
        if (content := answer.object()) is not None:
            return _Received(content)
        if not answer.is_stream:
            raise Refused(f"{self._endpoint.url}: the answer is no JSON object{words}", status)
        try:
            return _Received(*joined(answer.content, answer.arrivals), is_streamed=True)
        except TornStream as error:
            raise _Passing(str(error), None) from None
        except (ValueError, RecursionError) as error:
            raise Refused(f"{self._endpoint.url}: a stream broke off{self._hidden('', error)}", status) from None

    def _hidden(self, before: str, words: object) -> str:
        """Return a server's or a library's own words in one short line, the key in them replaced."""
        text = str(words)
        if self._secret:
            text = text.replace(self._secret, "***")
        text = printable(re.sub(r"\s+", " ", text).strip())[:EXCERPT]
        return f"{before}: {text}" if text else before

    def __enter__(self) -> "Client":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._http.close()


class _Received(NamedTuple):
    content: dict[str, Any]
    times: Times | None = None
    is_streamed: bool = False


class _Answer(NamedTuple):
    """`arrivals`: bytes of the content that were there after each read, and seconds since the request."""

    status: int
    headers: Mapping[str, str]
    content: bytes
    arrivals: list[tuple[int, float]]

    @property
    def is_stream(self) -> bool:
        """Whether it has an event, whatever its type says."""
        return any(line.startswith(b"data:") for line in self.content.splitlines())

    def object(self) -> dict[str, Any] | None:
        """Return the content where it is one JSON object."""
        try:
            content = self.json()
        except ValueError:
            return None
        return content if isinstance(content, dict) else None

    def json(self) -> Any:
        """Return the content, in whatever Unicode; its type says nothing. Raises ValueError for what is no JSON."""
        try:
            return json.loads(self.content)
        except RecursionError:
            raise ValueError("nested too deeply") from None


class _Passing(Exception):
    """A fault that may pass. `status`: HTTP's, None without an answer. `after`: seconds that the server asks for."""

    def __init__(self, message: str, status: int | None, after: float | None = None) -> None:
        super().__init__(message)
        self.status, self.after = status, after


def _after(header: str | None) -> float | None:
    """Return the seconds of a Retry-After header; dates are not read."""
    return float(header) if header is not None and header.isdecimal() else None


def _pause(state: Any) -> float:
    """Return seconds before the next try: what the server asks for, else twice as many each time."""
    error = state.outcome.exception()
    requested = error.after if isinstance(error, _Passing) else None
    doubled = FIRST_PAUSE * 2.0 ** (state.attempt_number - 1)
    return min(LONGEST_PAUSE, doubled if requested is None else requested)
