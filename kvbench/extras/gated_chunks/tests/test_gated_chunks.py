"""Chunks with a gate, by hand and where kvpress has no case. Of kvpress: tests/eviction/scores/test_methods_2026.py."""

from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from kvbench.config.cells import CellBuilder
from kvbench.config.compose import combinations
from kvbench.config.overrides import parse
from kvbench.eviction.allocation.heads import ChunkHeads
from kvbench.eviction.budget import TokenBudget
from kvbench.eviction.evict import Eviction
from kvbench.eviction.policy import Policy
from kvbench.eviction.ranking import Ranking
from kvbench.eviction.scores.attn import Attention
from kvbench.extras.gated_chunks.gated_chunks import GatedChunkHeads
from tests.eviction.test_stacks import CACHE, IN_STACKS


def test_uneven_chunks_give_their_best_tokens_and_the_others_come_last() -> None:
    """Chunks of three from token 0, of which the first is protected: [1 2] [3 4 5] [6 7 8] [9 10], by hand.

    Their means are 0.95, 2.97, 2 and 1.5, and [3 4 5] is the most uneven: it gives token 4 first.
    """
    scores = torch.tensor([[1, 0.9, 0.5, 8, 0.4, 2, 2.2, 1.8, 1.4, 1.6]] * 2)
    ranking = Ranking(scores, scores, first=1)
    order = GatedChunkHeads(size=3, spiky=1).chooses(ranking).order + 1
    assert order.tolist() == [[4, 7, 6, 8, 10, 9, 1, 2, 3, 5]] * 2
    assert ChunkHeads(size=3).chooses(ranking).order[0].add(1).tolist() == [4, 3, 5, 7, 6, 8, 10, 9, 1, 2]


@given(st.integers(1, 40), st.integers(0, 7), st.integers(2, 6), st.data())
def test_a_larger_budget_keeps_what_a_smaller_one_keeps(
    tokens: int, first: int, size: int, data: st.DataObject
) -> None:
    heads = GatedChunkHeads(size=size, spiky=data.draw(st.integers(1, size - 1)))
    scores = torch.randn(3, tokens, generator=torch.Generator().manual_seed(tokens))
    chosen = heads.chooses(Ranking(scores, scores, first))
    assert (chosen.order == chosen.order[:1]).all() and chosen.order[0].sort().values.tolist() == list(range(tokens))


def test_layers_in_a_stack_keep_what_each_keeps_by_itself() -> None:
    budget = 31
    policy = Policy("gated", window=8, recent=8, heads=GatedChunkHeads(size=5, spiky=2))
    eviction = Eviction(policy, Attention(), TokenBudget(budget))
    together, alone = eviction.decide(IN_STACKS), eviction.decide(CACHE)
    assert all(map(torch.equal, together.kept, alone.kept)) and (alone.lengths == budget).all()
    plain = Eviction(replace(policy, heads=ChunkHeads(size=5)), Attention(), TokenBudget(budget)).decide(CACHE)
    assert not all(map(torch.equal, plain.kept, alone.kept))


def test_the_policy_is_even_and_evicts_again() -> None:
    (tree,) = combinations(parse(["policy=gated_chunkkv", "budget=128", "schedule.decode_every=16"]))
    cell = CellBuilder().cell(tree)
    cell.check()
    assert cell.policy.divides_evenly and cell.policy.heads == GatedChunkHeads(size=10, spiky=4)


@pytest.mark.parametrize("spiky", [0, 10])
def test_a_part_of_a_chunk_is_not_all_of_it(spiky: int) -> None:
    with pytest.raises(ValueError, match=rf"^policy\.heads\.spiky={spiky}: allowed: 1 to 9, fewer than a chunk has"):
        GatedChunkHeads(spiky=spiky)
