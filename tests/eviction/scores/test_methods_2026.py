"""Methods of 2025-26 against numbers that their own code or kvpress computed (scripts/golden_methods.py)."""

import json
from dataclasses import replace
from typing import Any

import pytest
import torch

from kvbench.cache.attention import AttentionParams, strongest
from kvbench.cache.kv_cache import KVCache
from kvbench.eviction.allocation.heads import ChunkHeads, SafeguardHeads
from kvbench.eviction.budget import TokenBudget
from kvbench.eviction.evict import Eviction
from kvbench.eviction.policy import Policy
from kvbench.eviction.pooling import Pool
from kvbench.eviction.scores.attn import Attention
from kvbench.eviction.scores.host import CriticalKV
from kvbench.eviction.scores.keys import Cur
from kvbench.extras.compactor.compactor import Leverage
from kvbench.extras.conformance.golden.case import make_score
from kvbench.extras.gated_chunks.gated_chunks import GatedChunkHeads
from kvbench.support.errors import UserError
from scripts.golden_methods import FOLDER, made_up, sketch
from tests.arrays import layer_of, random_layer

CASES = [
    pytest.param(case, id=f"{path.stem}-{number}")
    for path in sorted(FOLDER.glob("*.json"))
    if isinstance(cases := json.loads(path.read_text("utf-8")), list)  # a file of another form has a test of its own
    for number, case in enumerate(cases)
]
HEADS = {kind.kind: kind for kind in (ChunkHeads, GatedChunkHeads, SafeguardHeads)}
PARTS = {"pool": lambda words: Pool(**words), "heads": lambda words: HEADS[words["kind"]](**words), "order": tuple}


def repeated(arrays: dict[str, torch.Tensor], tokens: int, head: int) -> torch.Tensor:
    """What KVzip+ records where the rows from `tokens` on repeat all before them but the first `head`."""
    queries, keys = arrays["queries"][:, tokens:], arrays["keys"]
    norms = torch.cat((queries, keys[:, tokens:])).square().sum(dim=(0, 2)).sqrt()
    record = strongest(queries, keys, slice(head, tokens), AttentionParams(keys.shape[2] ** -0.5), norms=norms)
    return torch.cat((torch.zeros(len(record), head), record), dim=1)


@pytest.mark.parametrize("case", CASES)
def test_scores_and_kept_pairs_are_those_of_the_published_code(
    case: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    arrays = {name: torch.from_numpy(array) for name, array in made_up(case["seed"], case["shape"]).items()}
    score = make_score(case["score"], case["params"]).of_budget(TokenBudget(case["budget"]))
    tokens = case["shape"]["tokens"] - case.get("rows", 0)
    if "drawn" in case:
        kv_heads, _, head_dim = arrays["keys"].shape
        drawn = torch.from_numpy(sketch(case["drawn"], kv_heads, head_dim, case["params"]["sketch"]))
        monkeypatch.setattr(Leverage, "directions", lambda *of: drawn)
    layer = layer_of(arrays["queries"][:, :tokens], arrays["keys"][:, :tokens], arrays["values"][:, :tokens])
    layer = replace(layer, projections={"output": arrays["output"]})
    if score.inputs.repeat:
        layer = replace(layer, recordings={score.inputs.repeat: repeated(arrays, tokens, case["policy"]["sink"])})
    cache = KVCache((layer,), tokens)
    fields = {name: PARTS.get(name, lambda value: value)(value) for name, value in case["policy"].items()}
    policy = Policy("golden", **fields)
    eviction = Eviction(policy, score, TokenBudget(case["budget"]))
    if case["scores"] is not None:
        expected = torch.tensor([[torch.nan if value is None else value for value in head] for head in case["scores"]])
        scores = eviction.rank(cache)[0].scores
        expected = expected[:, policy.sink_tokens : policy.sink_tokens + scores.shape[1]]
        scored = ~expected.isnan()
        assert torch.allclose(scores[scored], expected[scored], rtol=1e-5, atol=1e-6 if score.signed else 1e-7)
    (kept,) = eviction.decide(cache).kept
    assert [head.nonzero()[:, 0].tolist() for head in kept] == case["kept"]


@pytest.mark.parametrize(
    ("score", "params", "says"),
    [
        ("criticalkv", {"first_stage": 1.5}, r"score\.first_stage=1\.5: a part of the pairs is from 0 to 1"),
        ("criticalkv", {"epsilon": -1}, r"score\.epsilon=-1\.0: 0 or more is added"),
        ("cur", {"sink": -1}, r"score\.sink=-1: the number of first tokens is 0 or more"),
        ("cur", {"span": 0}, r"score\.span=0: null, or a number from 1"),
        ("lagkv", {"lag": 1}, r"score\.lag=1: a partition has at least 2 tokens"),
        ("lagkv", {"sink": -1}, r"score\.sink=-1: the number of first tokens is 0 or more"),
    ],
)
def test_a_setting_without_a_meaning_is_refused(score: str, params: dict[str, Any], says: str) -> None:
    with pytest.raises(UserError, match=says):
        make_score(score, params)


def test_the_epsilon_of_criticalkv_is_added_to_a_mean_whatever_the_policy_says() -> None:
    layer = random_layer(60)
    rows = layer.observed(16)
    summed, mean, largest = (CriticalKV()(layer, rows, reduce) for reduce in ("sum", "mean", "max"))
    assert torch.equal(summed, mean) and torch.allclose(16 * mean, Attention()(layer, rows, "sum"))
    assert torch.equal(largest, Attention()(layer, rows, "max"))


def test_cur_projects_keys_and_values_alike_and_the_same_way_every_time() -> None:
    """Lengths of random projections are those of the rows on average, so that many directions change little."""
    layer = random_layer(60)
    exact, projected, again = (Cur(sketch=sketch)(layer, None, "sum") for sketch in (None, 4000, 4000))
    assert torch.equal(projected, again) and not torch.equal(projected, exact)
    assert torch.allclose(projected, exact, rtol=0.25)
    assert not torch.allclose(Cur(sketch=2)(layer, None, "sum"), exact, rtol=0.25)
    deeper, seeded = Cur(sketch=4000)(replace(layer, index=7), None, "sum"), Cur(sketch=4000, seed=1)
    assert not torch.equal(deeper, projected), "every layer has directions of its own"
    assert not torch.equal(seeded(layer, None, "sum"), projected)
