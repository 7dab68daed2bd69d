"""The training script's modules, importable; a source of rows over few words and one invented book."""

import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
from tokenizers import Tokenizer

from kvbench.support import paths

SCRIPTS = Path(__file__).parents[2] / "scripts"


@pytest.fixture(scope="session")
def modules() -> Iterator[SimpleNamespace]:
    """The modules of scripts/reference_model by name."""
    sys.path.insert(0, str(SCRIPTS))
    from reference_model import (  # type: ignore[import-not-found]
        data,
        evaluation,
        families,
        growth,
        network,
        perplexity,
        rows,
        suppression,
    )

    names = {module.__name__.rpartition(".")[2]: module for module in (data, evaluation, families, growth)}
    yield SimpleNamespace(**names, network=network, perplexity=perplexity, rows=rows, suppression=suppression)
    sys.path.remove(str(SCRIPTS))


@pytest.fixture(scope="session")
def tokenizer() -> Tokenizer:
    return Tokenizer.from_file(str(paths.assets() / "reference" / "tokenizer.json"))


@pytest.fixture(scope="session")
def source(modules: SimpleNamespace, tokenizer: Tokenizer):
    """Draws rows over four adjectives, forty nouns and a book of numbered sentences."""
    adjectives, nouns = (
        ["blue", "slow", "teeny-tiny", "odd"],
        [f"noun{chr(97 + index % 26)}{chr(99 + index // 26)}" for index in range(40)],
    )
    book = " ".join(f"Nobody had seen the house number {index} of the long road." for index in range(900))
    return modules.data.Source(
        lambda text: tokenizer.encode(text).ids, tokenizer.get_vocab_size(), adjectives, nouns, [book]
    )
