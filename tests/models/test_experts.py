"""Mixtures of experts: what a cell reads does not depend on the cells that are read with it."""

import pytest
import torch

from kvbench.eviction.budget import TokenBudget
from kvbench.eviction.evict import Eviction
from kvbench.eviction.policy import Policy
from kvbench.eviction.scores.recency import Recency
from kvbench.models.decode.batch import RaggedBatch
from tests.models.families import engine_of


@pytest.mark.parametrize("family", ["gpt_oss", "qwen2_moe", "qwen3_moe"])
def test_cells_of_a_mixture_of_experts_are_read_as_if_alone(family: str) -> None:
    """The same bits of the logits whatever else is in the tile: while a question is read, and token by token."""
    engine = engine_of(family, max_batch=7, hidden_size=96, moe_intermediate_size=80)
    tokens = torch.arange(61) * 37 % 97
    cache = engine.prefill(tokens[:50], {5}).cache
    cells = [Eviction(Policy("p", window=5), Recency(), TokenBudget(pairs))(cache) for pairs in (9, 21, 33, 44)]
    question, after = tokens[50:57], tokens[57:59]

    def logits(caches: list) -> torch.Tensor:
        tile, step_logits = RaggedBatch(caches, engine.max_batch, 11), []
        for new in (question, *after[:, None]):
            rows = torch.stack([(new.roll(cell) + cell) % 97 for cell in range(engine.max_batch)])
            rows[0] = new
            step_logits.append(engine.read(tile, rows)[0])
        return torch.stack(step_logits)

    alone = logits(cells[:1])
    assert torch.equal(alone, logits(cells))
    assert torch.equal(alone, logits([cells[0], cells[2]]))
