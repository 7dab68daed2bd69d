"""The embedded model behind `transformers serve`: the same prompts, and the answers of the full cache here."""

import os
import sys
from pathlib import Path

import pytest

from kvbench.extras.servers.tests.serving import answers_are_those_of_the_full_cache, served
from kvbench.extras.servers.tests.stub import FOLDER

pytest.importorskip("tenacity", reason="the extra endpoint is not installed")
for package in ("fastapi", "uvicorn", "openai"):
    pytest.importorskip(package, reason=f"transformers serve needs {package}: pip install 'transformers[serving]'")


@pytest.mark.slow
def test_it_answers_as_the_full_cache_does_here(tmp_path: Path) -> None:
    program = Path(sys.executable).with_name("transformers")
    with served([program, "serve", FOLDER], dict(os.environ)) as url:
        answers_are_those_of_the_full_cache(url, tmp_path)
