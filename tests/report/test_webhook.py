"""The alert of a gate, posted to a server of this test: what it holds, when it is sent, what its failure changes."""

import json
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any

import pytest

from kvbench.cli.main import main
from kvbench.records import Recorder
from kvbench.report.compare import webhook

SECRET = "/services/T0/B0/s3cret"


@dataclass
class Chat:
    """A server that takes alerts. `status`: of its answers; `location`: where it redirects to."""

    url: str = ""
    status: int = 200
    location: str | None = None
    messages: list[dict[str, Any]] = field(default_factory=list)


@pytest.fixture
def chat() -> Iterator[Chat]:
    told = Chat()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            assert self.headers["Content-Type"] == "application/json"
            told.messages.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
            self.send_response(told.status)
            if told.location:
                self.send_header("Location", told.location)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        told.url = f"http://127.0.0.1:{server.server_port}{SECRET}"
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield told
        server.shutdown()
        thread.join()


@pytest.fixture
def folders(tmp_path, cell):
    """Folders of 240 right answers and of 60, in a task whose name would call a whole channel."""
    for name, right in (("before", 240), ("same", 240), ("worse", 60)):
        with Recorder(tmp_path / name) as recorder:
            recorder.append(cell([1.0] * right + [0.0] * (240 - right), task="<!channel>```@all"))
    return lambda name: ["gate", "--baseline", str(tmp_path / "before"), "--current", str(tmp_path / name)]


def test_a_gate_that_fails_posts_its_verdict(folders, chat, capsys):
    assert main([*folders("worse"), "--webhook", chat.url]) == 5
    (message,) = chat.messages
    head, *lines = message["text"].split("\n")
    assert head.startswith("kvbench: gate FAILED (regression): ")
    assert lines[0] == lines[-1] == "```" and "worse: 100.0 -&gt; 25.0" in lines[1]
    assert "<" not in message["text"] and message["text"].count("```") == 2, "nothing that a chat takes for a mention"
    told = message["gate"]
    assert (told["verdict"], told["accepted"], told["cells"]) == ("failed", False, 1)
    assert told["findings"][0]["check"] == "regression" and told["findings"][0]["where"].startswith("<!channel>")
    said = capsys.readouterr()
    assert "s3cret" not in said.out + said.err and said.err == ""


def test_a_gate_that_passes_posts_nothing(folders, chat):
    assert main([*folders("same"), "--webhook", chat.url]) == 0
    assert chat.messages == []


@pytest.mark.parametrize("fault", ["status", "redirect", "closed", "no HTTP", "slow"])
def test_a_failed_post_is_a_warning_and_changes_no_exit_code(folders, chat, capsys, fault, monkeypatch):
    url = chat.url
    if fault == "status":
        chat.status = 404
    elif fault == "redirect":
        chat.status, chat.location = 307, chat.url
    else:
        error = {"closed": ConnectionRefusedError(111, "Connection refused"), "slow": TimeoutError("timed out")}
        raised = error.get(fault) or webhook.json.JSONDecodeError(f"{SECRET} is no answer", "", 0)
        monkeypatch.setattr(webhook, "build_opener", lambda _: Opener(raised))
    assert main([*folders("worse"), "--webhook", url]) == 5
    said = capsys.readouterr()
    assert "warning: the alert was not delivered to 127.0.0.1: " in said.err and "s3cret" not in said.out + said.err
    reason = {"status": "it answered 404", "redirect": "it answered 307", "closed": "Connection refused"}
    assert reason.get(fault, "Error") in said.err
    assert len(chat.messages) == (fault in ("status", "redirect")), "a redirect is not followed"


@dataclass
class Opener:
    """Opens no address."""

    error: Exception

    def open(self, *_: object, timeout: float) -> None:
        assert 0 < timeout <= 60
        raise self.error


@pytest.mark.parametrize(
    "url",
    ["ftp://h/s3cret", "s3cret", "https:///s3cret", "http://u:s3cret@h/", "http://h:x/s3cret", "http://h/s3cret x"],
)
def test_an_address_that_is_none_is_refused_without_its_secret(folders, capsys, url):
    assert main([*folders("worse"), "--webhook", url]) == 2
    said = capsys.readouterr()
    assert "allowed: an address as a chat gives it" in said.err and "s3cret" not in said.out + said.err
