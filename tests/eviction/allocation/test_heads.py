"""Head allocations: exact sums, the stated order among equals, and published rounding."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from kvbench.eviction.allocation.allocation import Heads, Layers, UniformHeads, UniformLayers
from kvbench.eviction.allocation.heads import (
    BinaryHeads,
    ChunkHeads,
    FlatHeads,
    MixHeads,
    SafeguardHeads,
    SharedHeads,
    normalized,
)
from kvbench.eviction.allocation.layers import GlobalLayers
from kvbench.eviction.allocation.shares import AllocationBudget
from kvbench.eviction.evict import check_host
from kvbench.eviction.incremental import check_steps
from kvbench.eviction.policy import Policy
from kvbench.eviction.ranking import Ranking
from kvbench.eviction.scores.attn import Attention
from kvbench.eviction.scores.keys import KeyNorm
from kvbench.support.errors import UserError

EXACT = [
    UniformHeads(),
    SharedHeads(),
    ChunkHeads(),
    FlatHeads(),
    MixHeads(alpha=0.2),
    MixHeads(alpha=0.7),
    SafeguardHeads(alpha=0.6),
]


def ranking(*heads: Sequence[float]) -> Ranking:
    """One layer whose stored heads have these scores."""
    scores = torch.tensor(heads, dtype=torch.float32)
    return Ranking(scores, scores, first=0)


def terms(base: int, candidates: int, **more: Any) -> AllocationBudget:
    """BudgetInfo with four protected tokens."""
    return AllocationBudget(budget=base + 4, sink=1, recent=3, tokens=candidates + 4, **more)


@st.composite
def layer_scores(draw: st.DrawFn) -> Tensor:
    """Scores of each head and the same before pooling, of few distinct values, so that many are equal."""
    heads, candidates = draw(st.integers(1, 5)), draw(st.integers(1, 30))
    numbers = st.lists(st.integers(0, 6), min_size=heads * candidates, max_size=heads * candidates)
    return torch.tensor([draw(numbers) for _ in range(2)]).view(2, heads, candidates).float()


def ranking_of(scores: Tensor) -> Ranking:
    """Not drawn as such: its arrays are checked with random numbers, which a strategy may not use."""
    return Ranking(*scores, first=0)


@given(kind=st.sampled_from([*EXACT, MixHeads(normalize=True)]), scores=layer_scores(), data=st.data())
def test_a_layer_keeps_its_share_exactly(kind: Heads, scores: Tensor, data: st.DataObject) -> None:
    ranked = ranking_of(scores)
    share = data.draw(st.integers(0, ranked.candidates))
    counts = kind(ranked, share, terms(share, ranked.candidates))
    assert sum(counts) == share * ranked.scores.shape[0]
    assert all(0 <= count <= ranked.candidates for count in counts)


@given(kind=st.sampled_from([*EXACT, BinaryHeads()]), scores=layer_scores(), data=st.data())
def test_a_larger_share_never_takes_from_a_head(kind: Heads, scores: Tensor, data: st.DataObject) -> None:
    """Of more than a unit: rounding may move one."""
    ranked = ranking_of(scores)
    small, large = sorted(data.draw(st.tuples(*[st.integers(0, ranked.candidates)] * 2)))
    less, more = (kind(ranked, share, terms(share, ranked.candidates)) for share in (small, large))
    assert all(low <= high + 1 for low, high in zip(less, more, strict=True))


@given(scores=layer_scores(), data=st.data())
def test_flat_counts_are_those_of_one_sorted_list(scores: Tensor, data: st.DataObject) -> None:
    ranked = ranking_of(scores)
    share = data.draw(st.integers(0, ranked.candidates))
    heads, candidates = ranked.scores.shape
    every = sorted(
        (-ranked.scores[head, column].item(), -ranked.unpooled[head, column].item(), head, column)
        for head in range(heads)
        for column in range(candidates)
    )
    expected = tuple(sum(pair[2] == head for pair in every[: heads * share]) for head in range(heads))
    assert FlatHeads()(ranked, share, terms(share, candidates)) == expected
    assert SafeguardHeads(alpha=0)(ranked, share, terms(share, candidates)) == expected
    assert MixHeads(alpha=0)(ranked, share, terms(share, candidates)) == expected
    assert MixHeads(alpha=1)(ranked, share, terms(share, candidates)) == (share,) * heads


def test_flat_heads_mix_in_the_published_part_in_the_variant_official_alone() -> None:
    ranked = ranking([9, 8, 7, 6, 5, 4], [3, 2, 1, 0, 0, 0])
    stale = terms(3, 6, variant="official", stale_floor=True)
    assert FlatHeads(published_alpha=0.5)(ranked, 3, stale) == MixHeads(alpha=0.5)(ranked, 3, stale) == (6, 3)
    assert FlatHeads(published_alpha=0.5)(ranked, 3, terms(3, 6)) == FlatHeads()(ranked, 3, stale) == (6, 0)


def test_normalised_heads_compete_by_what_their_best_pairs_hold() -> None:
    """The first head has 9 of 15 in its best two, the second 4 of 4: scaled, 5.4 3.6 .. against 3 1."""
    ranked = ranking([5, 4, 3, 3, 0, 0], [3, 1, 0, 0, 0, 0])
    scaled = normalized(ranked, 2)
    assert torch.allclose(scaled.scores, torch.tensor([[3, 2.4, 1.8, 1.8, 0, 0], [3, 1, 0, 0, 0, 0]]))
    assert MixHeads(alpha=0)(ranked, 2, terms(2, 6)) == (4, 0)
    assert MixHeads(alpha=0, normalize=True)(ranked, 2, terms(2, 6)) == (3, 1)
    assert normalized(ranking([0, 0]), 1).scores.tolist() == [[0, 0]]


def test_published_whole_heads_lose_the_last_that_is_paid_for() -> None:
    """Of eight heads a half pays for four, and KVzip's code keeps three; all that equal the last go with it."""
    eight = ranking(*([score, 0] for score in (1, 7, 5, 8, 2, 6, 4, 3)))
    half, official = terms(1, 2), terms(1, 2, variant="official")
    ours, strict = BinaryHeads(), BinaryHeads(published_strict=True)
    assert ours(eight, 1, half) == ours(eight, 1, official) == strict(eight, 1, half) == (0, 2, 2, 2, 0, 2, 0, 0)
    assert strict(eight, 1, official) == (0, 2, 0, 2, 0, 2, 0, 0)
    assert GlobalLayers().counts([eight], strict, official) == (strict(eight, 1, official),)
    tied = ranking(*([score, 0] for score in (1, 7, 5, 8, 2, 7, 4, 7)))
    assert strict(tied, 1, official) == (0, 0, 0, 2, 0, 0, 0, 0)
    assert strict(eight, 0, terms(0, 2, variant="official")) == (0,) * 8


def test_shared_heads_choose_by_their_mean() -> None:
    apart = ranking([5.0, 1.0, 2.0], [0.0, 1.0, 4.0])
    assert SharedHeads().chooses(apart).order.tolist() == [[2, 0, 1]] * 2
    same = ranking([0.1, 0.7, 0.2], [0.1, 0.7, 0.2])
    assert SharedHeads().chooses(same).scores.equal(same.scores), "their mean may differ in the last bit"


@pytest.mark.parametrize("kind", [*EXACT, BinaryHeads(), MixHeads(normalize=True)], ids=repr)
def test_where_all_tokens_are_protected_no_head_has_a_candidate_to_keep(kind: Heads) -> None:
    empty = ranking_of(torch.empty(2, 2, 0))
    assert kind(empty, 0, terms(0, 0)) == (0, 0)
    assert GlobalLayers().counts([empty, empty], kind, terms(0, 0)) == ((0, 0), (0, 0))


def test_whole_heads_are_bought_by_their_best_pair() -> None:
    layers = [ranking([1, 5, 1], [2, 2, 2]), ranking([0, 0, 9], [5, 0, 0])]
    for base, expected in ((0, ((0, 0), (0, 0))), (1, ((0, 0), (3, 0))), (2, ((3, 0), (3, 0))), (3, ((3, 3), (3, 3)))):
        assert GlobalLayers().counts(layers, BinaryHeads(), terms(base, 3)) == expected
    assert UniformLayers().counts(layers, BinaryHeads(), terms(2, 3)) == ((3, 0), (3, 0))


@pytest.mark.parametrize("kind", [MixHeads, SafeguardHeads])
@pytest.mark.parametrize("alpha", [-0.1, 1.5, float("nan")])
def test_a_part_is_from_nothing_to_all(kind: type, alpha: float) -> None:
    with pytest.raises(ValueError, match=r"policy\.heads\.alpha=.*: allowed: 0 to 1, a fraction of what a head keeps"):
        kind(alpha=alpha)


def test_chunks_are_counted_from_the_first_token_and_ordered_by_their_means() -> None:
    """Two first tokens are kept anyway: the chunks of four are columns 2-3, 4-7 and 8-10, the same in both heads."""
    scores = torch.tensor([[3.0, 5, 1, 1, 1, 1, 9, 0, 0], [3.0, 1, 2, 0, 0, 2, 3, 0, 0]])
    chosen = ChunkHeads(size=4).chooses(Ranking(scores, scores, first=2))
    assert chosen.scores.tolist() == [[3.0] * 2 + [1.0] * 4 + [2.0] * 3] * 2
    assert chosen.order[0].tolist() == [0, 1, 6, 7, 8, 2, 5, 3, 4]


def test_a_chunk_has_a_token() -> None:
    with pytest.raises(ValueError, match=r"policy\.heads\.size=0: a chunk has at least one token"):
        ChunkHeads(size=0)


def test_a_part_says_what_it_needs_of_a_score_and_of_the_schedule() -> None:
    """One that does not say `ragged` divides a prompt, and not what is left of it."""

    @dataclass(frozen=True)
    class Falling(Layers):
        kind: str = "falling"
        reads_scores: ClassVar[bool] = True

        def __call__(self, layer_weights: Sequence[float], terms: AllocationBudget) -> tuple[int, ...]:
            return tuple(range(len(layer_weights), 0, -1))

    policy = Policy("mine", layers=Falling())
    check_steps(policy, Attention())
    with pytest.raises(UserError, match=r"among heads of one length .*, but the schedule evicts again"):
        check_steps(policy, Attention(), blocks=True)
    with pytest.raises(UserError, match="reads scores as a distribution, but score key_norm can be negative"):
        check_host(policy, KeyNorm())
    with pytest.raises(UserError, match=r"policy\.heads\.normalize=true of mine scales by sums of scores, but"):
        check_host(Policy("mine", heads=MixHeads(normalize=True)), KeyNorm())
    check_host(Policy("mine", heads=MixHeads()), KeyNorm())
