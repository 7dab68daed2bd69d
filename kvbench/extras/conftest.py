"""Fixtures of several extras' tests: of reports and of commands, and of tasks that read rows which are made up."""

from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.cli.conftest import kvbench, stopping_model, tiny, tiny_model
from tests.report.conftest import cell, results, small
from tests.tasks.versions import GOLDEN

if TYPE_CHECKING:
    from kvbench.models.prompts.tokens import TokensOf

__all__ = ["cell", "kvbench", "results", "root", "small", "stopping_model", "tiny", "tiny_model", "tokens"]


@pytest.fixture(scope="session")
def tokens() -> "TokensOf":
    """Return the tokenizer that golden prompts are counted by."""
    from transformers import AutoTokenizer

    from kvbench.models.prompts.tokens import TokensOf

    return TokensOf(AutoTokenizer.from_pretrained(GOLDEN / "ruler" / "tokenizer"))


@pytest.fixture(scope="module")
def root(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder of data with the rows that `rows.py` beside the tests of an extra makes up."""
    extra = request.path.parents[1].name
    folder = tmp_path_factory.mktemp(extra)
    import_module(f"kvbench.extras.{extra}.tests.rows").write(folder)
    return folder
