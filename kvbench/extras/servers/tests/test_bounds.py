"""Answers of a server without an end or without a limit: one error of the sample or the run, in time."""

import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress

import pytest

from kvbench.extras.servers import client
from kvbench.extras.servers.client import Client, Refused, Unreachable
from kvbench.extras.servers.endpoint import Endpoint

OK = b"HTTP/1.1 200 OK\r\nContent-Type: application/json; charset=rot13\r\n"


@pytest.fixture
def server() -> Iterator[Callable[[bytes, bytes], str]]:
    """Starts a server that sends the first bytes to every client, then the others again and again, slowly."""
    stop, listening = threading.Event(), socket.create_server(("127.0.0.1", 0))

    def speak(connection: socket.socket, first: bytes, again: bytes) -> None:
        with connection, suppress(OSError):
            connection.recv(65536)
            connection.sendall(first)
            while again and not stop.wait(0.05):
                connection.sendall(again)

    def accept(first: bytes, again: bytes) -> None:
        with suppress(OSError):
            while True:
                connection, _ = listening.accept()
                threading.Thread(target=speak, args=(connection, first, again), daemon=True).start()

    def start(first: bytes, again: bytes) -> str:
        threading.Thread(target=accept, args=(first, again), daemon=True).start()
        return f"http://127.0.0.1:{listening.getsockname()[1]}"

    yield start
    stop.set()
    listening.close()


def ask(url: str) -> object:
    endpoint = Endpoint(url=f"{url}/v1", model="tiny", method="full", timeout=1, retries=0)
    with Client(endpoint) as asked:
        return asked.post("/completions", {})


SLOW = {
    "headers": (b"HTTP/1.1 200 OK\r\n", b"X-Another: word\r\n"),
    "body": (OK + b"Content-Length: 999999\r\n\r\n", b" "),
}


@pytest.mark.parametrize("part", SLOW)
def test_an_answer_has_a_time_as_a_whole(server: Callable[[bytes, bytes], str], part: str) -> None:
    started = time.monotonic()
    with pytest.raises(Unreachable, match="no whole answer in 1 s"):
        ask(server(*SLOW[part]))
    assert time.monotonic() - started < 20


@pytest.mark.parametrize(
    ("body", "message"),
    [(b'"' + b"x" * 5000, "more than 4096 bytes"), (b"[" * 4000, "no JSON object"), (b"{", "no JSON object")],
    ids=["large", "nested", "torn"],
)
def test_an_answer_has_a_largest_size(
    server: Callable[[bytes, bytes], str], monkeypatch: pytest.MonkeyPatch, body: bytes, message: str
) -> None:
    monkeypatch.setattr(client, "MOST_BYTES", 4096)
    with pytest.raises(Refused, match=message):
        ask(server(OK + b"Content-Length: %d\r\n\r\n" % len(body) + body, b""))


def test_the_type_of_an_answer_says_nothing(server: Callable[[bytes, bytes], str]) -> None:
    assert ask(server(OK + b"Content-Length: 10\r\n\r\n" + b'{"a": 1.5}', b"")) == {"a": 1.5}
