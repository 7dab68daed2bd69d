"""The embedded model behind `transformers serve`: the same prompts, and the answers of the full cache here."""

import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from urllib.error import URLError
from urllib.request import urlopen

import pytest

from kvbench.cli.main import main
from kvbench.records import read_rows
from tests.servers.stub import FOLDER

pytest.importorskip("tenacity", reason="the extra endpoint is not installed")
for package in ("fastapi", "uvicorn", "openai"):
    pytest.importorskip(package, reason=f"transformers serve needs {package}: pip install 'transformers[serving]'")
TASK = ["task=ruler/niah_single_1", "task.context_length=512", "task.samples=4", "task.max_new_tokens=12"]


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    program = Path(sys.executable).with_name("transformers")
    command = [program, "serve", FOLDER, "--port", str(port), "--host", "127.0.0.1", "--dtype", "float32"]
    server = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        for _ in range(120):
            try:
                urlopen(f"http://127.0.0.1:{port}/health", timeout=5).close()
                break
            except (URLError, OSError):
                time.sleep(1)
        else:
            pytest.skip("transformers serve did not start within two minutes")
        yield f"http://127.0.0.1:{port}/v1"
    finally:
        server.terminate()
        server.wait()


@pytest.mark.slow
def test_it_answers_as_the_full_cache_does_here(url: str, tmp_path: Path) -> None:
    served = ["model=endpoint", f"model.path={FOLDER}", f"endpoint.url={url}", "endpoint.method=full"]
    assert main(["run", *served, *TASK, f"results.dir={tmp_path / 'served'}", "--quiet"]) == 0
    assert main(["run", "policy=full", *TASK, f"results.dir={tmp_path / 'here'}", "--quiet"]) == 0
    answers = [
        {row.prompt_sha256: row.prediction for row in read_rows(tmp_path / side, warn=lambda text: None)}
        for side in ("served", "here")
    ]
    assert len(answers[0]) == 4 and answers[0] == answers[1]
