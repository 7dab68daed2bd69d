"""What holds for every way to treat pairs after selection, on random layers and any kept pairs."""

from collections.abc import Sequence
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from kvbench.eviction.allocation.heads import MixHeads
from kvbench.eviction.incremental import check_steps
from kvbench.eviction.policy import Policy
from kvbench.eviction.scores.keys import KeyNorm
from kvbench.eviction.step import Kind, Step
from kvbench.extras.merging.merging import D2O, CaM, Nearest
from kvbench.extras.pages.pages import Pages
from kvbench.extras.positions.positions import Positions
from kvbench.extras.sharing.sharing import Sharing
from kvbench.extras.stores.channels import ThinK
from kvbench.support.errors import UserError
from tests.arrays import random_cache, random_layer
from tests.extras.apply.made_up import TOKENS, applied, evicting, kept_masks

MERGES = (D2O(), CaM(spread=3), Nearest())
ALL = (*MERGES, ThinK(window=4, recent=3))


@settings(max_examples=25, deadline=None)
@given(kept_masks, st.integers(0, 3), st.sampled_from(ALL))
def test_pairs_positions_and_heads_stay_what_was_selected(
    kept: Sequence[Sequence[bool]], seed: int, apply: Kind
) -> None:
    plain, after = applied(apply, random_layer(TOKENS, seed=seed), torch.tensor(kept))
    assert torch.equal(after.positions, plain.positions) and after.offsets == plain.offsets
    assert after.keys.shape == plain.keys.shape and after.values.shape == plain.values.shape
    assert after.keys.isfinite().all() and after.values.isfinite().all()
    if not isinstance(apply, D2O | ThinK):
        assert torch.equal(after.keys, plain.keys)


@pytest.mark.parametrize("apply", ALL, ids=lambda apply: apply.kind)
def test_a_head_does_not_see_the_others(apply: Kind, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ragged heads, each as it is alone; a query head's copy is treated like the KV head that it came from."""
    monkeypatch.setattr(CaM, "chances", lambda self, layer, tokens, shape: torch.full(tuple(shape), 0.7))
    layer, kept = random_layer(TOKENS), torch.rand(2, TOKENS, generator=torch.Generator().manual_seed(1)) < 0.5
    _, after = applied(apply, layer, kept)
    assert len(set(after.lengths)) == 2
    for head in range(2):
        alone = replace(layer.of_heads([head]), windows=tuple(w.of_heads([head], 2) for w in layer.windows))
        _, expected = applied(apply, alone, kept[head : head + 1])
        mine = slice(*after.offsets[head : head + 2])
        assert torch.allclose(after.keys[mine], expected.keys) and torch.allclose(after.values[mine], expected.values)
    if apply.kind in ("d2o", "nearest"):  # the others read the rows of each query head
        _, copies = applied(apply, layer, kept.repeat_interleave(3, dim=0))
        for copy in range(3):
            for head, part in enumerate(after.values.split(after.lengths)):
                assert torch.equal(copies.values.split(copies.lengths)[3 * head + copy], part)


@pytest.mark.parametrize("apply", ALL, ids=lambda apply: apply.kind)
def test_half_precision_stays_and_untouched_pairs_keep_their_bits(apply: Kind) -> None:
    layer = random_layer(TOKENS)
    layer = replace(layer, keys=layer.keys.bfloat16(), values=layer.values.bfloat16())
    kept = torch.ones(2, TOKENS, dtype=torch.bool)
    kept[:, 5] = False  # one pair: it is merged into one other, or into the next three
    plain, after = applied(apply, layer, kept)
    assert after.keys.dtype == after.values.dtype == torch.bfloat16
    changed = (after.values != plain.values).any(dim=1).view(2, -1).sum(dim=1)
    assert (changed <= {"d2o": 1, "nearest": 1, "cam": 3, "think": 0}[apply.kind]).all()


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"steps": (ThinK(),)}, r"policy\.apply=think follows the eviction of a prompt only"),
        ({"steps": (CaM(),), "state": "none"}, r"policy\.state=none, but policy\.apply=cam reads observed queries"),
        (
            {"steps": (CaM(),), "heads": MixHeads()},
            r"policy\.apply=cam reads the queries of a block, but with policy\.heads=mix",
        ),
    ],
)
def test_what_cannot_evict_again_is_refused(changes: dict[str, object], says: str) -> None:
    with pytest.raises(UserError, match=says):
        check_steps(Policy("p", **changes), KeyNorm(), blocks=True)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: D2O(beta=1.5), r"policy\.apply\.beta=1\.5: allowed: 0 to 1"),
        (lambda: D2O(published_beta=-1), r"policy\.apply\.published_beta=-1: allowed: 0 to 1"),
        (lambda: Nearest(threshold=2), r"policy\.apply\.threshold=2: allowed: -1 to 1"),
        (lambda: CaM(spread=0), r"policy\.apply\.spread=0: allowed: 1 or more"),
        (lambda: ThinK(ratio=1), r"policy\.apply\.ratio=1: allowed: from 0 to below 1"),
        (lambda: ThinK(window=0), r"policy\.apply\.window=0: allowed: 1 or more"),
        (lambda: ThinK(recent=-1), r"policy\.apply\.recent=-1: allowed: 0 or more"),
        (lambda: Policy("p", steps=(D2O(), Positions("cache"))), r"policy\.apply=d2o makes keys that no position"),
        (
            lambda: Policy("p", steps=(D2O(),), variant="official", heads=MixHeads()),
            r"n-th evicted pairs.*heads=mix",
        ),
    ],
)
def test_values_that_mean_nothing_are_refused(make: object, says: str) -> None:
    with pytest.raises(UserError, match=says):
        make()  # type: ignore[operator]


@settings(max_examples=12, deadline=None)
@given(st.permutations([Sharing("layer"), Pages(4), CaM(spread=3)]), st.integers(8, TOKENS))
def test_steps_follow_each_other_in_their_own_order(steps: list[Step], pairs: int) -> None:
    """Sets of heads are shared first, then pages are made of them, then evicted pairs are merged."""
    policy = Policy("p", window=8, recent=2, steps=tuple(steps))
    assert [type(step) for step in policy.steps] == [Sharing, Pages, CaM]
    assert policy == Policy("p", window=8, recent=2, steps=tuple(reversed(steps)))


class Idle(Step):
    """A step that overrides nothing."""


def test_a_step_whose_hooks_do_nothing_changes_no_bit() -> None:
    cache = random_cache(TOKENS, window=TOKENS)
    with_step = evicting(Idle(), 11)
    plain = replace(with_step, policy=replace(with_step.policy, steps=()))
    for layer, expected in zip(with_step(cache).layers, plain(cache).layers, strict=True):
        assert torch.equal(layer.keys, expected.keys) and torch.equal(layer.values, expected.values)
        assert torch.equal(layer.positions, expected.positions)
