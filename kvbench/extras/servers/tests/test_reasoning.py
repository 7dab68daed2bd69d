"""Answers of servers and of files that reason: told apart by the server or by marks, and scored by their final part."""

import json
from pathlib import Path
from typing import Any

import pytest

from kvbench.cli.main import main
from kvbench.extras.servers.completions import _ending
from kvbench.extras.servers.tests.stub import FOLDER, Stub, serving, words
from kvbench.records import Row, read_rows

pytest.importorskip("tenacity", reason="the extra endpoint is not installed")


def row_of(folder: Path, choice: dict[str, Any], *more: str, api: str = "chat", **usage: Any) -> Row:
    with serving(Stub(choice=choice, usage=usage)) as stub:
        command = words(stub, "task.samples=1", "task.reasoning=strip", *more, f"results.dir={folder}", api=api)
        assert main(["run", *command, "--quiet"]) == 0
    (row,) = read_rows(folder, warn=lambda text: None)
    return row


def message(content: str | None, reasoning: str | None = None, name: str = "reasoning_content") -> dict[str, Any]:
    return {"message": {"content": content, name: reasoning}}


def test_what_a_server_calls_reasoning_is_not_scored(tmp_path: Path) -> None:
    row = row_of(tmp_path / "whole", message("\n\n42", "six times seven") | {"finish_reason": "stop"})
    assert row.prediction == "<think>six times seven</think>\n\n42" and row.reasoning == "whole"
    assert row.reasoning_tokens and row.ended == "end" and row.value == 0.0
    cut = row_of(tmp_path / "cut", message(None, "six times seven", "reasoning") | {"finish_reason": "length"})
    assert (cut.prediction, cut.reasoning, cut.ended) == ("<think>six times seven", "cut", "limit")
    assert cut.value == 0.0 and cut.error is None
    kept = row_of(tmp_path / "kept", message("42", "six times seven"), "task.reasoning=keep")
    assert kept.prediction == "<think>six times seven</think>42" and kept.reasoning_tokens is None


def test_a_server_may_count_the_tokens_of_the_reasoning(tmp_path: Path) -> None:
    details = {"reasoning_tokens": 1234}
    row = row_of(tmp_path / "told", message("42", "six times seven"), completion_tokens_details=details)
    assert row.reasoning_tokens == 1234
    hidden = row_of(tmp_path / "hidden", message(None) | {"finish_reason": "length"}, completion_tokens_details=details)
    assert (hidden.prediction, hidden.reasoning, hidden.reasoning_tokens, hidden.value) == ("", "cut", 1234, 0.0)


@pytest.mark.parametrize("api", ["ids", "chat"])
def test_marks_in_the_text_of_a_server_are_seen(tmp_path: Path, api: str) -> None:
    """The needle is named in the reasoning alone, so the answer is wrong."""
    text = "<think>Is it {needle}?</think> I do not know."
    answer = {"text": text} if api == "ids" else message(text)
    row = row_of(tmp_path, answer, api=api)
    assert row.prediction == text and row.reasoning == "whole" and row.value == 0.0 and row.ended is None


@pytest.mark.parametrize(
    ("choice", "stop", "ended"),
    [
        ({"finish_reason": "length"}, (), "limit"),
        ({"finish_reason": "stop"}, (), "end"),
        ({"finish_reason": "stop"}, ("\n",), None),
        ({"finish_reason": "stop", "stop_reason": None}, ("\n",), "end"),
        ({"finish_reason": "stop", "stop_reason": "\n"}, ("\n",), "stop"),
        ({"finish_reason": "stop", "matched_stop": 2}, ("\n",), "end"),
        ({"finish_reason": "content_filter"}, (), None),
        ({}, (), None),
    ],
)
def test_a_server_says_why_an_answer_ended(choice: dict[str, Any], stop: tuple[str, ...], ended: str | None) -> None:
    assert _ending(choice, stop) == ended


def test_answers_made_elsewhere_are_scored_by_their_final_part(tmp_path: Path) -> None:
    task = [f"model.path={FOLDER}", "task.context_length=512", "task.samples=3"]
    assert main(["prompts", *task, "--out", str(tmp_path / "prompts.jsonl")]) == 0
    prompts = [json.loads(line) for line in (tmp_path / "prompts.jsonl").read_text().splitlines()]
    right = [prompt["answers"][0] for prompt in prompts]
    answers = [f"<think>No.</think> {right[0]}", f"<think>It is {right[1]}.</think> No.", f"<think>It is {right[2]}"]
    lines = [{**prompt, "answer": text, "ended": "limit"} for prompt, text in zip(prompts, answers, strict=True)]
    file = tmp_path / "answers.jsonl"
    file.write_text("".join(json.dumps(line) + "\n" for line in lines))
    adopt = ["adopt", str(file), *task, "endpoint.method=full", f"results.dir={tmp_path / 'rows'}"]
    assert main([*adopt, "task.reasoning=strip"]) == 0
    rows = sorted(read_rows(tmp_path / "rows", warn=lambda text: None), key=lambda row: row.sample)
    assert [row.prediction for row in rows] == answers and {row.ended for row in rows} == {"limit"}
    assert [row.value for row in rows] == [1.0, 0.0, 0.0]
    assert [row.reasoning for row in rows] == ["whole", "whole", "cut"]
    file.write_text(json.dumps({**lines[0], "ended": "eos"}) + "\n")
    assert main(adopt) == 2
