"""A sweep of cells that a server answers: the rows, resume and prompts of every other sweep, and no torch."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from kvbench.cli.main import main
from kvbench.extras.servers.tests.stub import Stub, serving, words
from kvbench.records import Row, read_rows

pytest.importorskip("tenacity", reason="the extra endpoint is not installed")


def rows_of(folder: Path) -> list[Row]:
    return sorted(read_rows(folder, warn=lambda text: None), key=lambda row: (row.policy, row.sample))


def run(folder: Path, stub: Stub, *more: str, **settings: object) -> int:
    return main(["run", *words(stub, *more, f"results.dir={folder}", **settings), "--quiet"])


def test_rows_say_what_was_asked_and_what_answered(tmp_path: Path) -> None:
    with serving(Stub(budget=100)) as stub:
        assert run(tmp_path, stub, method="streaming_llm", budget=100, flags="--kv-budget") == 0
    rows = rows_of(tmp_path)
    assert [row.sample for row in rows] == list(range(6))
    assert {(row.policy, row.budget, row.score, row.kept_fraction) for row in rows} == {
        ("streaming_llm", "100", *[None] * 2)
    }
    assert {row.value for row in rows} == {0.0, 1.0} and {row.new_tokens for row in rows} == {5}
    assert {row.decode_evictions for row in rows} == {None}
    (environment,) = {row.environment for row in rows}
    device = json.loads((tmp_path / "environments" / f"{environment}.json").read_text())["device"]
    assert device["name"] == f"stub 1.2.3 at {stub.url}" and device["api"] == "ids"
    assert device["flags"] == "--kv-budget" and device["listed"]["max_model_len"] == 4096
    assert "abc" not in json.dumps(device) and "/home" not in json.dumps(device)


def test_prompts_are_those_of_a_local_model(tmp_path: Path) -> None:
    with serving(Stub()) as stub:
        assert run(tmp_path / "served", stub, "task.max_new_tokens=4") == 0
    local = ["policy=full", "task.samples=6", "task.context_length=512", "task.max_new_tokens=4", "--quiet"]
    assert main(["run", *local, f"results.dir={tmp_path / 'local'}"]) == 0
    served, here = rows_of(tmp_path / "served"), rows_of(tmp_path / "local")
    assert [row.prompt_sha256 for row in served] == [row.prompt_sha256 for row in here]
    assert [row.prompt_tokens for row in served] == [row.prompt_tokens for row in here]
    assert [row.context_sha256 for row in served] == [row.context_sha256 for row in here]


def test_the_same_command_asks_for_what_is_missing_only(tmp_path: Path) -> None:
    with serving(Stub()) as stub:
        assert run(tmp_path, stub, "task.samples=2") == 0
        asked = len(stub.requests)
        assert run(tmp_path, stub, "task.samples=2") == 0 and len(stub.requests) == asked
        assert run(tmp_path, stub) == 0 and len(stub.requests) == asked + 1 + 4
    assert len(rows_of(tmp_path)) == 6


def test_a_named_server_may_move(tmp_path: Path) -> None:
    for samples in (2, 6):
        with serving(Stub()) as stub:
            assert run(tmp_path, stub, f"task.samples={samples}", server="ours") == 0
    assert len({row.cell for row in rows_of(tmp_path)}) == 1 and len(rows_of(tmp_path)) == 6


@pytest.mark.parametrize("way", ["ids", "text", "chat"])
def test_the_first_way_that_a_server_takes_is_used(tmp_path: Path, way: str) -> None:
    takes = ("ids", "text", "chat")
    with serving(Stub(takes=takes[takes.index(way) :])) as stub:
        assert run(tmp_path, stub) == 0
    assert {row.value for row in rows_of(tmp_path)} == {1.0}
    sent = stub.requests[-1]
    prompt = sent.get("prompt")
    assert "messages" in sent if way == "chat" else isinstance(prompt, list if way == "ids" else str)


def test_requests_that_fail_are_rows_with_errors_and_are_retried(tmp_path: Path) -> None:
    with serving(Stub(statuses=[400, 400])) as stub:  # a stream, then the whole
        asked = words(stub, "task.samples=3", f"results.dir={tmp_path}", api="ids", concurrency=1)
        assert main(["run", *asked, "--quiet"]) == 4
        failed = [row for row in rows_of(tmp_path) if row.error]
        assert len(failed) == 1 and "HTTP 400" in str(failed[0].error) and failed[0].prompt_sha256
        assert main(["run", *asked, "--quiet", "--retry-errors"]) == 0 and len(stub.requests) == 5


def test_a_truncating_server_gives_no_values(tmp_path: Path) -> None:
    with serving(Stub(truncates=200)) as stub:
        assert run(tmp_path, stub) == 4
    assert all("it truncates prompts" in str(row.error) and row.value is None for row in rows_of(tmp_path))


def test_texts_are_scored_by_the_log_probabilities_of_the_prompt(tmp_path: Path) -> None:
    (tmp_path / "data" / "pg19").mkdir(parents=True)
    (tmp_path / "data" / "pg19" / "book.txt").write_text("A few words of a book. " * 20)
    scored = ["task=pg19", "task.context_length=16", "task.samples=1", f"data.root={tmp_path / 'data'}"]
    for has, code in ((True, 0), (False, 4)):
        with serving(Stub(logprobs=has)) as stub:
            assert run(tmp_path / str(has), stub, *scored) == code
    (row,), (failed,) = rows_of(tmp_path / "True"), rows_of(tmp_path / "False")
    assert row.metric == "nll" and row.value is not None and 0.1 <= row.value <= 3.0 and row.new_tokens == 16
    assert "no log-probabilities" in str(failed.error)


def test_torch_is_not_imported(tmp_path: Path) -> None:
    script = (
        "import sys; from kvbench.cli.main import main; code = main(sys.argv[1:]); "
        "assert not {'torch', 'transformers'} & set(sys.modules); sys.exit(code)"
    )
    with serving(Stub()) as stub:
        command = ["run", *words(stub, "task.samples=1", f"results.dir={tmp_path}")]
        ended = subprocess.run([sys.executable, "-c", script, *command], capture_output=True, text=True)
    assert ended.returncode == 0, ended.stderr
    assert "full" in ended.stdout
