"""Answers that come piece by piece: the same rows as from a whole answer, and their times."""

import io
import json
from contextlib import redirect_stderr
from pathlib import Path
from typing import Any

import pytest

from kvbench.cli.main import main
from kvbench.extras.servers.answer_stream import Times, joined
from kvbench.extras.servers.client import Client, Refused, Unreachable
from kvbench.extras.servers.endpoint import Endpoint
from kvbench.extras.servers.tests.stub import Stub, serving, words
from kvbench.records import Row, read_rows

pytest.importorskip("tenacity", reason="the extra endpoint is not installed")
NOTE = "the server sends no answer piece by piece: its rows have no times"


def run(folder: Path, stub: Stub, *more: str, **settings: Any) -> tuple[list[Row], str]:
    said = io.StringIO()
    with serving(stub), redirect_stderr(said):
        assert main(["run", *words(stub, "task.samples=2", *more, f"results.dir={folder}", **settings)]) == 0
    return sorted(read_rows(folder, warn=lambda text: None), key=lambda row: row.sample), said.getvalue()


@pytest.mark.parametrize("api", ["ids", "text", "chat"])
def test_rows_have_the_times_of_their_requests(tmp_path: Path, api: str) -> None:
    """Each of the pieces of an answer follows a pause."""
    choice = {"finish_reason": "stop", "stop_reason": None}
    rows, said = run(tmp_path, Stub(budget=8, pause=0.03, choice=choice), api=api)
    assert len(rows) == 2 and NOTE not in said
    for row in rows:
        assert row.prediction == " I do not know." and row.ended == "end" and row.new_tokens == 5
        assert row.first_token_seconds is not None and 0.03 <= row.first_token_seconds < 5
        assert row.decode_seconds is not None and 4 * 0.03 <= row.decode_seconds < 5
        assert row.prefill_seconds is None and row.production_seconds is None


@pytest.mark.parametrize(("streams", "api"), [("whole", "ids"), ("refused", "ids"), ("refused", "chat")])
def test_a_server_that_does_not_stream_answers_all_the_same(tmp_path: Path, streams: Any, api: str) -> None:
    """It is asked once whether it streams."""
    rows, said = run(tmp_path, stub := Stub(streams=streams), "task.samples=3", api=api, concurrency=1)
    assert [row.value for row in rows] == [1.0] * 3 and said.count(NOTE) == 1
    assert {(row.first_token_seconds, row.decode_seconds) for row in rows} == {(None, None)}
    asked = [request.get("stream", False) for request in stub.requests]
    assert streams == "whole" or (asked[:2] == [True, False] and asked.count(True) == 1)


def test_streams_can_be_left_out(tmp_path: Path) -> None:
    stub = Stub()
    rows, said = run(tmp_path, stub, stream="false")
    assert not any("stream" in request for request in stub.requests) and NOTE not in said
    assert {row.first_token_seconds for row in rows} == {None}


def test_the_table_has_times_and_tokens_per_second(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run(tmp_path, Stub(pause=0.02))
    assert main(["report", "table", "--results", str(tmp_path)]) == 0
    text = capsys.readouterr().out
    assert "first token" in text and "tokens/s" in text
    assert main(["report", "table", "--results", str(tmp_path), "--format", "json"]) == 0
    (line,) = json.loads(capsys.readouterr().out)
    assert line["first_token_seconds"] >= 0.02


def event(**content: Any) -> bytes:
    return b"data: " + json.dumps(content).encode() + b"\n\n"


def stream(*events: bytes, seconds: float = 1.0) -> tuple[dict[str, Any], Times | None]:
    """The events, the first of which came after so many seconds, as the others after it."""
    ends = [sum(map(len, events[: number + 1])) for number in range(len(events))]
    return joined(b"".join(events), [(end, seconds * (number + 1)) for number, end in enumerate(ends)])


def piece(text: str, **more: Any) -> bytes:
    return event(choices=[{"index": 0, "text": text, "finish_reason": None} | more])


DONE = b"data: [DONE]\n\n"


def test_pieces_are_joined_and_timed_by_the_read_that_held_them() -> None:
    usage = {"completion_tokens": 2, "prompt_tokens": 9}
    answer, times = stream(
        piece(""), piece("a "), piece("b", finish_reason="length"), event(choices=[], usage=usage), DONE
    )
    assert answer["choices"][0]["text"] == "a b" and answer["choices"][0]["finish_reason"] == "length"
    assert answer["usage"] == usage
    assert times == Times(2.0, 1.0)
    assert times.then(Times(3.0, 4.0)) == Times(2.0, 8.0)


def test_an_answer_in_one_piece_has_times_only_if_it_is_one_token() -> None:
    for tokens, timed in ((1, Times(1.0, 0.0)), (2, None)):
        answer, times = stream(piece("a b"), event(choices=[], usage={"completion_tokens": tokens}), DONE)
        assert answer["choices"][0]["text"] == "a b" and times == timed


@pytest.mark.parametrize(
    ("body", "error", "message"),
    [
        (piece("a"), Unreachable, "the stream ended before the answer at the first try"),
        (event(error={"message": "out of blocks"}), Refused, "a stream broke off: out of blocks"),
        (b"data: {\n\n", Refused, "a stream broke off"),
        (b"data: " + b"[" * 10**5 + b"\n\n", Refused, "a stream broke off"),
        (b"data: 3\n\n", Refused, "an event is no JSON object"),
    ],
    ids=["torn", "error", "half", "nested", "number"],
)
def test_each_fault_of_a_stream_is_one_line(
    monkeypatch: pytest.MonkeyPatch, body: bytes, error: type[Exception], message: str
) -> None:
    from kvbench.extras.servers.client import _Answer

    with Client(Endpoint("http://127.0.0.1:9/v1", "full", retries=0)) as client:
        monkeypatch.setattr(client, "_whole", lambda *_: _Answer(200, {}, body, [(len(body), 1.0)]))
        with pytest.raises(error, match=message):
            client.stream("/completions", {})
