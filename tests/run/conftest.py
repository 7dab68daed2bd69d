"""A tiny model over the words of RULER.

The process that shares tests out reads this file too, so that torch and transformers are imported where they are used.
"""

from collections.abc import Callable, Sequence
from copy import copy
from typing import TYPE_CHECKING, Any

import pytest

from tests.repository import GOLDEN

if TYPE_CHECKING:
    import torch

    from kvbench.models.loading.load import LoadedModel


@pytest.fixture(scope="session")
def tokenizer() -> Any:
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(GOLDEN / "ruler" / "tokenizer")


@pytest.fixture(scope="session")
def load(tokenizer: Any) -> "Callable[..., LoadedModel]":
    """Make a tiny model with settings of its engine; a test may change its tokenizer. `stop`: ids that end answers."""
    from kvbench.models import bridge
    from kvbench.models.engine import Engine
    from kvbench.models.loading.load import LoadedModel
    from tests.models.conftest import tiny_llama

    def make(
        dtype: "torch.dtype | None" = None, stop: Sequence[int] = (), max_length: int = 512, **settings: Any
    ) -> LoadedModel:
        model = tiny_llama(*([dtype] if dtype else []), vocab_size=len(tokenizer))
        bridge.attach(model)
        engine = Engine(model, **({"max_batch": 3} | settings))
        return LoadedModel(engine, copy(tokenizer), frozenset(stop), max_length, {"name": "cpu"})

    return make
