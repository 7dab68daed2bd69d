"""Methods of 2025-26 against numbers that their own code or kvpress computed (scripts/golden_methods.py)."""

import json
from dataclasses import replace
from typing import Any

import pytest
import torch

from kvbench.cache.kv_cache import KVCache
from kvbench.conformance.golden.case import make_score
from kvbench.eviction.allocation.heads import ChunkHeads, SafeguardHeads
from kvbench.eviction.budget import Tokens
from kvbench.eviction.evict import Eviction
from kvbench.eviction.policy import Policy
from kvbench.eviction.pooling import Pool
from kvbench.support.errors import UserError
from scripts.golden_methods import FOLDER, made_up
from tests.arrays import layer_of

CASES = [
    pytest.param(case, id=f"{path.stem}-{number}")
    for path in sorted(FOLDER.glob("*.json"))
    for number, case in enumerate(json.loads(path.read_text("utf-8")))
]
HEADS = {kind.kind: kind for kind in (ChunkHeads, SafeguardHeads)}
PARTS = {"pool": lambda words: Pool(**words), "heads": lambda words: HEADS[words["kind"]](**words), "order": tuple}


@pytest.mark.parametrize("case", CASES)
def test_scores_and_kept_pairs_are_those_of_the_published_code(case: dict[str, Any]) -> None:
    arrays = {name: torch.from_numpy(array) for name, array in made_up(case["seed"], case["shape"]).items()}
    layer = layer_of(arrays["queries"], arrays["keys"], arrays["values"])
    cache = KVCache((replace(layer, projections={"output": arrays["output"]}),), case["shape"]["tokens"])
    fields = {name: PARTS.get(name, lambda value: value)(value) for name, value in case["policy"].items()}
    policy = Policy("golden", **fields)
    eviction = Eviction(policy, make_score(case["score"], case["params"]), Tokens(case["budget"]))
    if case["scores"] is not None:
        expected = torch.tensor([[torch.nan if one is None else one for one in head] for head in case["scores"]])
        got = eviction.rank(cache)[0].scores
        expected = expected[:, policy.sinks : policy.sinks + got.shape[1]]
        scored = ~expected.isnan()
        assert torch.allclose(got[scored], expected[scored], rtol=1e-5, atol=1e-7)
    (kept,) = eviction.decide(cache).kept
    assert [head.nonzero()[:, 0].tolist() for head in kept] == case["kept"]


@pytest.mark.parametrize(
    ("score", "params", "says"),
    [
        ("criticalkv", {"first_stage": 1.5}, r"score\.first_stage=1\.5: a part of the pairs is from 0 to 1"),
        ("criticalkv", {"epsilon": -1}, r"score\.epsilon=-1\.0: 0 or more is added"),
        ("lagkv", {"lag": 1}, r"score\.lag=1: a partition has at least 2 tokens"),
        ("lagkv", {"sink": -1}, r"score\.sink=-1: the number of first tokens is 0 or more"),
    ],
)
def test_a_setting_without_a_meaning_is_refused(score: str, params: dict[str, Any], says: str) -> None:
    with pytest.raises(UserError, match=says):
        make_score(score, params)
