"""`budget=threshold:T`: the scores decide how many pairs stay. Golden numbers: DMSPress of kvpress."""

import json
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import kvbench
from kvbench.cache.attention import AttentionParams
from kvbench.cache.kv_cache import KVCache, from_dense
from kvbench.config.cells import CellBuilder
from kvbench.config.compose import combinations
from kvbench.config.overrides import parse
from kvbench.eviction.budget import ThresholdBudget, parse_budget
from kvbench.eviction.evict import Eviction
from kvbench.eviction.incremental import IncrementalEviction, capacity_after
from kvbench.eviction.policy import Policy
from kvbench.eviction.scores.attn import Attention
from kvbench.eviction.scores.keys import KeyNorm
from kvbench.models.decode.evicting_cache import EvictingCache
from kvbench.support.errors import UserError
from scripts.golden_evictions import TESTS, inputs
from tests.arrays import random_cache
from tests.eviction.test_stacks import CACHE, IN_STACKS, POLICIES

GOLDEN = json.loads((TESTS / "methods_2026" / "dms.json").read_text("utf-8"))
EVEN = ("uniform", "a mean over the layer", "shared heads", "chunks", "query heads", "a window that ends earlier")


@pytest.mark.parametrize("threshold", GOLDEN["kept_by_threshold"])
def test_kept_pairs_are_those_of_kvpress(threshold: str) -> None:
    keys = torch.from_numpy(inputs(GOLDEN["seed"])["key"])
    layers = tuple(from_dense(index, 4, key, key, ()) for index, key in enumerate(keys))
    eviction = Eviction(Policy("dms", recent=GOLDEN["window"]), KeyNorm(), parse_budget(f"threshold:{threshold}"))
    decision = eviction.decide(KVCache(layers, keys.shape[2]))
    kept = [[head.nonzero()[:, 0].tolist() for head in layer] for layer in decision.kept]
    assert kept == GOLDEN["kept_by_threshold"][threshold]
    assert decision.lengths.tolist() == [[len(head) for head in layer] for layer in kept]


@pytest.mark.parametrize("threshold", GOLDEN["kept_while_answering"])
def test_pairs_kept_while_answering_are_those_of_kvpress(threshold: str) -> None:
    keys, first = torch.from_numpy(inputs(GOLDEN["seed"])["key"]), GOLDEN["prompt"]
    layers = tuple(from_dense(index, 4, key[:, :first], key[:, :first], ()) for index, key in enumerate(keys))
    full = KVCache(layers, first)
    eviction = Eviction(Policy("dms", recent=GOLDEN["window"]), KeyNorm(), parse_budget(f"threshold:{threshold}"))
    decision = eviction.decide(full)
    evictor = IncrementalEviction(eviction, capacity_after(eviction, full, decision), decoding=True)
    cache = EvictingCache(evictor, 1, evictor.remember(full, decision, eviction.evict(full, decision)))
    before, lost = decision.lengths, 0
    for token, expected in enumerate(GOLDEN["kept_while_answering"][threshold], start=first):
        held = [[head.tolist() for head in layer.positions.split(layer.lengths)] for layer in cache.freeze().layers]
        assert held == expected
        lengths = torch.tensor([layer.lengths for layer in cache.freeze().layers])
        lost, before = lost + bool((lengths < before + (token > first)).any()), lengths
        assert cache.evictions == lost
        if token < keys.shape[2]:
            for index, key in enumerate(keys[:, :, token : token + 1]):
                cache.attend(index, torch.zeros(4, 1, key.shape[2]), key, key, AttentionParams(1.0))
            cache.finish(1)


@given(st.floats(0, 0.2), st.integers(0, 3), st.integers(0, 9))
def test_what_reaches_the_threshold_stays_and_what_is_protected(threshold: float, sink: int, recent: int) -> None:
    cache = random_cache(40, layers=2, window=8)
    eviction = Eviction(Policy("any", window=8, sink=sink, recent=recent), Attention(), ThresholdBudget(threshold))
    decision = eviction.decide(cache)
    assert decision.rankings is not None
    for kept, ranking in zip(decision.kept, decision.rankings, strict=True):
        expected = torch.ones_like(kept)
        expected[:, sink : 40 - recent] = ranking.scores >= threshold
        assert torch.equal(kept, expected)


def test_a_score_that_equals_the_threshold_reaches_it() -> None:
    """DMSPress of kvpress evicts what is less than the threshold."""
    cache = random_cache(40, layers=1, window=8)
    (ranking,) = Eviction(Policy("any", window=8), Attention(), ThresholdBudget(0.1)).rank(cache)
    threshold = float(ranking.scores[0].sort().values[25])
    kept = Eviction(Policy("any", window=8), Attention(), ThresholdBudget(threshold)).decide(cache).kept[0]
    assert int(kept[0].sum()) == 15


@pytest.mark.parametrize("name", EVEN)
@pytest.mark.parametrize("threshold", [0.11, 0.14])
def test_layers_in_a_stack_keep_what_each_keeps_by_itself(name: str, threshold: float) -> None:
    eviction = Eviction(POLICIES[name], Attention(), ThresholdBudget(threshold))
    together, alone = eviction.decide(IN_STACKS), eviction.decide(CACHE)
    assert torch.equal(together.lengths, alone.lengths)
    assert all(map(torch.equal, together.kept, alone.kept))
    smaller = eviction(CACHE)
    assert [layer.lengths for layer in smaller.evictable] == [tuple(row) for row in alone.lengths.tolist()]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("policy=ada_snapkv", r"^policy\.heads=mix of ada_snapkv divides a budget, but budget=threshold:-4 lets"),
        ("policy=pyramidkv", r"^policy\.layers=pyramid of pyramidkv divides a budget, but budget=threshold:-4"),
        (
            "policy=snapkv schedule.decode_every=4",
            r"^budget=threshold:-4 judges pairs by a score that lasts, as key_norm, but",
        ),
        (
            "policy=plain score=key_diff schedule.decode_every=4",
            r"^budget=threshold:-4 judges pairs by a score that la",
        ),
        ("policy=snapkv schedule.prefill_block=64", r"^budget=threshold:-4 judges a prompt as a whole, but"),
        (
            "policy=snapkv task=pg19",
            r"^task pg19 evicts while it reads, but budget=threshold:-4 lets the scores",
        ),
        (
            "policy=plain score=key_norm schedule.decode_every=4 schedule.answer_budget=8",
            r"^schedule\.answer_budget=8 is a second number of KV pairs, but budget=threshold:-4 lets the scores",
        ),
        ("policy=snapkv score=criticalkv", r"^score criticalkv chooses a part of the budget by other scores, but"),
        (
            "policy=snapkv score=compactor",
            r"^score compactor weighs its two parts by the budget, but budget=threshold:-4",
        ),
        ("policy=snapkv policy.positions=cache", r"needs the same number of KV pairs in every head, but budget="),
    ],
)
def test_settings_that_need_to_know_how_much_stays_are_refused(words: str, message: str) -> None:
    (tree,) = combinations(parse([*words.split(), "budget=threshold:-4"]))
    with pytest.raises(UserError, match=message):
        CellBuilder().cell(tree).check()


@pytest.mark.parametrize(
    ("written", "text"), [("threshold:-4", "threshold:-4"), ("threshold:-4.0", "threshold:-4"),
                          ("threshold:1e-3", "threshold:0.001"), ("threshold:0.1234567", "threshold:0.1234567")]
)  # fmt: skip
def test_a_threshold_as_it_is_written(written: str, text: str) -> None:
    assert str(parse_budget(written)) == text and parse_budget(written).of(77) == 77


@pytest.mark.parametrize("written", ["threshold:", "threshold:nan", "threshold:inf", "threshold:x", "threshold"])
def test_what_is_no_threshold_is_refused(written: str) -> None:
    with pytest.raises(UserError, match=r"^budget=threshold.* (has no|is no|is not a) number.*allowed: a fraction"):
        parse_budget(written)


def test_rows_say_how_much_a_threshold_keeps_of_a_prompt_and_of_its_answer(tmp_path: Path) -> None:
    rows = kvbench.run(
        *("policy=plain", "score=key_norm", "policy.recent=16", "schedule.decode_every=1,null"),
        *("task.samples=1", "task.context_length=400", "task.max_new_tokens=8", "task.min_new_tokens=8"),
        budget=["threshold:-8", "threshold:-1000", "threshold:0", "64"],
        **{"results.dir": str(tmp_path)},
    )
    assert rows.error.isna().all()
    evicts_again = rows.schedule.str.contains("decode_every")
    answers, prompts = rows[evicts_again].set_index("budget"), rows[~evicts_again].set_index("budget")
    kept, sizes, evictions = prompts.kept_fraction, prompts.cache_bytes, answers.decode_evictions
    assert 0 < kept["threshold:0"] < kept["threshold:-8"] < kept["threshold:-1000"] == 1
    assert sizes["threshold:0"] < sizes["threshold:-8"] < rows.full_cache_bytes.mean()
    assert evictions["threshold:-1000"] == 0 < evictions["threshold:0"]
    assert answers.peak_bytes["threshold:0"] < prompts.peak_bytes["threshold:0"]
