"""Honest servers pass; one that ignores its budget, one that truncates, one that answers from another cache do not."""

from contextlib import ExitStack
from pathlib import Path

import pytest

from kvbench.cli.main import main
from kvbench.extras.servers.tests.stub import FOLDER, Stub, serving

pytest.importorskip("tenacity", reason="the extra endpoint is not installed")
COMMON = [f"model.path={FOLDER}", "task.context_length=512", "task.samples=8", "endpoint.model=tiny"]


def conform(
    capsys: pytest.CaptureFixture[str], *servers: tuple[Stub, str], more: tuple[str, ...] = ()
) -> tuple[int, list[str]]:
    """The exit code, and the checks that fail."""
    flags = []
    for stub, settings in servers:
        flags += ["--endpoint", f"{stub.url},{settings}"]
    code = main(["conform", *flags, *COMMON, "endpoint.retries=0", *more])
    printed = capsys.readouterr().out.splitlines()
    return code, [line.split()[1].rstrip(":") for line in printed if line.startswith("FAIL")]


@pytest.fixture
def serve() -> "ExitStack":
    with ExitStack() as stack:
        yield stack


def test_honest_servers_pass(capsys: pytest.CaptureFixture[str], serve: ExitStack) -> None:
    full, large, small = (serve.enter_context(serving(Stub(budget=n))) for n in (None, 300, 100))
    servers = (
        (full, "method=full"),
        (large, "method=streaming_llm,budget=300"),
        (small, "method=streaming_llm,budget=100"),
    )
    assert conform(capsys, *servers) == (0, [])


def test_a_budget_that_is_ignored(capsys: pytest.CaptureFixture[str], serve: ExitStack) -> None:
    a, b = (serve.enter_context(serving(Stub())) for _ in range(2))
    code, failed = conform(capsys, (a, "method=streaming_llm,budget=300"), (b, "method=streaming_llm,budget=100"))
    assert code == 5 and {"order", "budget"} == set(failed)
    code, failed = conform(capsys, (a, "method=snapkv,budget=300"), (b, "method=snapkv,budget=100"))
    assert code == 5 and failed == ["budget"]


@pytest.mark.parametrize("counts", [True, False])
def test_a_server_that_truncates(capsys: pytest.CaptureFixture[str], serve: ExitStack, counts: bool) -> None:
    stub = serve.enter_context(serving(Stub(truncates=250, counts=counts)))
    code, failed = conform(capsys, (stub, "method=full"))
    assert code == 5 and failed == ["read"]


def test_answers_from_the_cache_of_another_prompt(capsys: pytest.CaptureFixture[str], serve: ExitStack) -> None:
    stub = serve.enter_context(serving(Stub(cached=100)))
    code, failed = conform(capsys, (stub, "method=full,concurrency=1"))
    assert code == 5 and "own" in failed


def test_a_larger_budget_that_loses_what_a_smaller_one_finds(
    capsys: pytest.CaptureFixture[str], serve: ExitStack
) -> None:
    large, small = (serve.enter_context(serving(Stub(budget=n))) for n in (60, 300))
    code, failed = conform(capsys, (large, "method=snapkv,budget=300"), (small, "method=snapkv,budget=60"))
    assert code == 5 and failed == ["order"]


def test_the_full_cache_of_a_server_against_ours(
    capsys: pytest.CaptureFixture[str], serve: ExitStack, tmp_path: Path
) -> None:
    stub, other = (serve.enter_context(serving(Stub(budget=n))) for n in (None, 100))
    local = ["policy=full", "task.samples=8", "task.context_length=512", "task.max_new_tokens=5"]
    assert main(["run", *local, f"results.dir={tmp_path}", "--quiet"]) == 0
    more = ("--dense", str(tmp_path), "task.max_new_tokens=5")
    assert conform(capsys, (stub, "method=full"), more=more) == (0, [])
    assert conform(capsys, (other, "method=full"), more=more)[1] == ["read", "dense"]
    assert main(["conform", "--endpoint", f"{stub.url},method=full", *COMMON, "--dense", str(tmp_path / "none")]) == 3
