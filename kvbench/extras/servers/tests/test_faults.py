"""Each fault of a server or of its settings: one clear line, its exit code, and never the key."""

import io
from contextlib import redirect_stderr
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from kvbench.cli.main import main
from kvbench.extras.servers.client import Client, _Passing, _pause
from kvbench.extras.servers.endpoint import Endpoint
from kvbench.extras.servers.tests.stub import Stub, serving, words
from kvbench.records import ResultsFolder

pytest.importorskip("tenacity", reason="the extra endpoint is not installed")
KEY = "sk-very-secret-0123456789"


def failing(folder: Path, stub: Stub, *more: str, **settings: Any) -> tuple[int, str]:
    lines = io.StringIO()
    with redirect_stderr(lines):
        code = main(["run", *words(stub, "task.samples=2", *more, f"results.dir={folder}", **settings), "--quiet"])
    said = [line for line in lines.getvalue().splitlines() if line]
    assert len(said) == 1, said
    return code, said[0]


def test_nobody_answers(tmp_path: Path) -> None:
    code, line = failing(tmp_path, Stub(url="http://127.0.0.1:9/v1"))
    assert code == 3 and "http://127.0.0.1:9/v1: no answer" in line and "start the server" in line
    assert ResultsFolder(tmp_path).read_requests() == {}


def test_a_key_is_wanted_and_wrong(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with serving(Stub(key=KEY)) as stub:
        code, line = failing(tmp_path, stub)
        assert code == 2 and "HTTP 401" in line and "set endpoint.key" in line
        monkeypatch.setenv("STUB_KEY", "wrong-key-987")
        code, line = failing(tmp_path, stub, key="STUB_KEY")
        assert code == 2 and "correct the key in $STUB_KEY" in line and "wrong-key-987" not in line


def test_the_key_is_in_no_file_and_no_message(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STUB_KEY", KEY)
    with serving(Stub(key=KEY, words="a fault")) as stub:
        stub.statuses = [500]  # whose words hold the key
        lines = io.StringIO()
        with redirect_stderr(lines):
            arguments = words(stub, f"results.dir={tmp_path}", key="STUB_KEY", concurrency=1, api="ids")
            assert main(["run", *arguments]) == 4
    assert stub.headers[-1]["Authorization"] == f"Bearer {KEY}"
    texts = [path.read_text() for path in tmp_path.rglob("*") if path.is_file()]
    assert any("HTTP 500" in text and "Bearer ***" in text for text in texts)
    assert not any(KEY in text for text in (*texts, lines.getvalue()))


@pytest.mark.parametrize(
    ("settings", "part"),
    [
        ({"url": "localhost:8000"}, "allowed: the URL of an API"),
        ({"url": "http://me:pass@h/v1"}, "holds a user"),
        ({"key": KEY}, "names the environment variable"),
        ({"key": "NOT_SET_ANYWHERE"}, "the environment has no such variable"),
        ({"budget": 64}, "leave the budget out"),
        ({"method": "snapkv"}, "add the budget"),
        ({"concurrency": 0}, "endpoint.concurrency=0: allowed: 1 to 1024"),
        ({"retries": -1}, "endpoint.retries=-1: allowed: 0 to 100"),
        ({"body": "{prompt:x}"}, "which kvbench sends itself"),
        ({"api": "soap"}, "endpoint.api=soap"),
    ],
)
def test_settings_that_cannot_be(tmp_path: Path, settings: dict[str, Any], part: str) -> None:
    with serving(Stub()) as stub:
        code, line = failing(tmp_path, stub, **settings)
    assert code == 2 and part in line
    assert "pass@" not in line and KEY not in line


@pytest.mark.parametrize(
    ("word", "part"),
    [
        ("policy=snapkv", "evicts by itself"),
        ("budget=0.1", "evicts by itself"),
        ("task.turns=own", "task.turns"),
        ("task.min_new_tokens=1", "endpoint.body={min_tokens:1}"),
    ],
)
def test_what_a_server_is_not_asked(tmp_path: Path, word: str, part: str) -> None:
    with serving(Stub()) as stub:
        code, line = failing(tmp_path, stub, word)
    assert code == 2 and part in line and not stub.requests


def test_faults_that_may_pass_are_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    with serving(Stub(statuses=[503, 429])) as stub:
        with Client(Endpoint(stub.url, "full", retries=2)) as client:
            monkeypatch.setattr(client._retry, "sleep", lambda seconds: None)
            answer = client.post("/completions", {"model": "tiny", "prompt": [1, 2], "max_tokens": 1})
        assert answer["usage"]["prompt_tokens"] == 2 and len(stub.requests) == 3


def test_pauses_double_unless_the_server_names_one() -> None:
    def pause(after: float | None) -> float:
        state: Any = SimpleNamespace(attempt_number=3)
        state.outcome = SimpleNamespace(exception=lambda: _Passing("busy", 429, after))
        return _pause(state)

    assert [pause(after) for after in (None, 7.0, 1e6)] == [2.0, 7.0, 60.0]
