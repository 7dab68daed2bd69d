"""An OpenAI-compatible server on 127.0.0.1 that reads a needle as its settings say: honestly, or as broken ones do."""

import json
import re
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import pairwise
from typing import Any, Literal

from kvbench.extras.servers.tokenizer import Tokenizer
from kvbench.support import paths

FOLDER = paths.assets() / "reference"
TOKENIZER = Tokenizer.read(FOLDER)
NEEDLE = re.compile(r"magic numbers for \S+ is: (\d{7})")
SINK = 4


@dataclass
class Stub:
    """What the server does. `budget`: newest tokens that it keeps beside the first. `takes`: what a prompt may be.

    truncates: tokens of a prompt that it reads, the newest, and says so if `counts`. cached: characters after which it
    takes a prompt for the one before. statuses: of the next requests, before it answers. key: that it wants. choice: of
    each answer, in place of its own words; `usage` too. streams: whether it sends pieces that are asked for, sends the
    whole instead, or refuses. pause: seconds before each piece.
    """

    budget: int | None = None
    takes: tuple[str, ...] = ("ids", "text", "chat")
    truncates: int | None = None
    counts: bool = True
    cached: int | None = None
    statuses: list[int] = field(default_factory=list)
    key: str | None = None
    logprobs: bool = True
    streams: Literal["yes", "whole", "refused"] = "yes"
    pause: float = 0.0
    words: str = "no"
    choice: dict[str, Any] = field(default_factory=dict)
    usage: dict[str, Any] = field(default_factory=dict)
    requests: list[dict[str, Any]] = field(default_factory=list)
    headers: list[dict[str, str]] = field(default_factory=list)
    url: str = ""
    _answers: dict[str, str] = field(default_factory=dict)
    _lock: Any = field(default_factory=threading.Lock)

    def reply(self, path: str, body: dict[str, Any], headers: dict[str, str]) -> tuple[int, Any]:
        with self._lock:
            self.requests.append(body)
            self.headers.append(headers)
            if self.key is not None and headers.get("Authorization") != f"Bearer {self.key}":
                return 401, {"error": f"{self.words}: {headers.get('Authorization')}"}
            if self.statuses:
                return self.statuses.pop(0), {"error": f"{self.words}: {headers.get('Authorization')}"}
            if body.get("stream") and self.streams == "refused":
                return 400, {"error": "no streams here"}
            is_chat = path.endswith("/chat/completions")
            prompt = body["messages"][-1]["content"] if is_chat else body["prompt"]
            way = "chat" if is_chat else "ids" if isinstance(prompt, list) else "text"
            if way not in self.takes:
                return (404 if is_chat else 400), {"error": "prompt must be of another kind"}
            ids = list(prompt) if way == "ids" else TOKENIZER(prompt).input_ids
            return 200, self._answer(ids, body, is_chat)

    def _answer(self, ids: list[int], body: dict[str, Any], is_chat: bool) -> dict[str, Any]:
        read = ids if self.truncates is None else ids[-self.truncates :]
        kept = read if self.budget is None else [*read[:SINK], *read[SINK:][-max(1, self.budget - SINK) :]]
        found = NEEDLE.findall(TOKENIZER.decode(kept))
        text = f" {found[0]}" if found else " I do not know."
        if self.cached is not None:
            text = self._answers.setdefault(TOKENIZER.decode(ids)[: self.cached], text)
        usage = {"prompt_tokens": len(read if self.counts else ids), "completion_tokens": 5}
        choice: dict[str, Any] = {"message": {"content": text}} if is_chat else {"text": text}
        if body.get("echo") and self.logprobs:
            rising = [-0.1 if b > a else -3.0 for a, b in pairwise(ids)]
            choice["logprobs"] = {"token_logprobs": [None, *rising, -1.0]}
        return {"choices": [choice | self.choice], "usage": usage | self.usage}


def pieces_of(answer: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """The events that servers make of an answer: words, the rest of the choice at their end, usage alone."""
    choice = dict(answer["choices"][0])
    text, message = choice.pop("text", None), choice.pop("message", None)
    texts = {"text": text} if message is None else message
    if message is not None:
        yield {"choices": [{"delta": {"role": "assistant", "content": ""}, "finish_reason": None}]}
    for name, words in texts.items():
        for word in re.findall(r"\S+\s*|\s+", words or ""):
            delta = {"text": word} if message is None else {"delta": {name: word}}
            yield {"choices": [{**delta, "finish_reason": None, "stop_reason": None}]}
    last = {"finish_reason": None} | choice
    yield {"choices": [({"text": ""} if message is None else {"delta": {}}) | last]}
    yield {"choices": [], "usage": answer["usage"]}


@contextmanager
def serving(stub: Stub) -> Iterator[Stub]:
    """The stub behind a URL, until the block ends."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            models = {"data": [{"id": "tiny", "owned_by": "stub", "max_model_len": 4096, "secret_path": "/home"}]}
            pages = {"/version": {"version": "1.2.3", "api_key": "abc"}, "/v1/models": models}
            self._send(200 if self.path in pages else 404, pages.get(self.path, {}))

        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            status, content = stub.reply(self.path, body, dict(self.headers))
            if status == 200 and body.get("stream") and stub.streams == "yes":
                self._stream(content)
            else:
                self._send(status, content)

        def _stream(self, content: dict[str, Any]) -> None:
            self.send_response(200)
            self.send_header("Content-Type", "text/event-stream")
            self.send_header("Transfer-Encoding", "chunked")
            self.end_headers()
            events = [*map(json.dumps, pieces_of(content)), "[DONE]"]
            for event in events:
                time.sleep(stub.pause)
                data = f": a comment\n\ndata: {event}\n\n".encode()
                self.wfile.write(b"%x\r\n%b\r\n" % (len(data), data))
                self.wfile.flush()
            self.wfile.write(b"0\r\n\r\n")

        def _send(self, status: int, content: Any) -> None:
            data = json.dumps(content).encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, format: str, *args: Any) -> None:
            """Nothing on stderr."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
    stub.url = f"http://127.0.0.1:{server.server_address[1]}/v1"
    try:
        yield stub
    finally:
        server.shutdown()
        server.server_close()


def words(stub: Stub, *more: str, method: str = "full", **settings: Any) -> list[str]:
    """The words of a command about a stub."""
    named = {"url": stub.url, "model": "tiny", "method": method, "retries": 0, **settings}
    given = [f"endpoint.{name}={value}" for name, value in named.items()]
    usual = {"task.context_length": "512", "task.samples": "6"} | dict(
        word.split("=", 1) for word in more if "=" in word
    )
    rest = [word for word in more if "=" not in word]
    return [
        "model=endpoint",
        f"model.path={FOLDER}",
        *given,
        *(f"{key}={value}" for key, value in usual.items()),
        *rest,
    ]
