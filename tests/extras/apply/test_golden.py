"""`policy.apply` against numbers of other code: definitions pair by pair in numpy, D2O's class, presses of kvpress.

scripts/golden_apply.py makes them.
"""

import json
from typing import Any

import pytest
import torch
from torch import Tensor

from kvbench.cache.kv_cache import KVCache, LayerCache
from kvbench.eviction.allocation.heads import SharedHeads
from kvbench.eviction.budget import TokenBudget
from kvbench.eviction.evict import Eviction
from kvbench.eviction.policy import Policy
from kvbench.eviction.pooling import Pool
from kvbench.eviction.step import Kind
from kvbench.extras.conformance.golden.case import make_score
from kvbench.extras.merging.merging import D2O, CaM, Nearest
from kvbench.extras.stores.channels import ThinK
from scripts.golden_apply import FOLDER, chances, made_up
from tests.arrays import layer_of

KINDS = {kind().kind: kind for kind in (D2O, CaM, Nearest, ThinK)}
PARTS = {"pool": lambda words: Pool(**words), "heads": lambda words: SharedHeads(), "order": tuple}
CASES = [
    pytest.param(case, id=f"{path.stem}-{number}")
    for path in sorted(FOLDER.glob("*.json"))
    for number, case in enumerate(json.loads(path.read_text("utf-8")))
]


def arrays_of(case: dict[str, Any]) -> tuple[Tensor, Tensor, Tensor]:
    """Queries, keys and values of a case."""
    arrays = made_up(case["seed"], case["shape"])
    queries, keys, values = (torch.from_numpy(arrays[name]) for name in ("queries", "keys", "values"))
    return queries, keys, values


def apply_of(case: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> Kind:
    """The part of the policy; its chances are those of the case."""
    if "drawn" in case:
        drawn = torch.from_numpy(chances(case["drawn"], case["shape"]["kv_heads"], case["shape"]["tokens"]))
        monkeypatch.setattr(CaM, "chances", lambda *of: drawn)
    words = dict(case["apply"])
    return KINDS[words.pop("kind")](**words)


def marked(positions: list[list[int]], pairs: int) -> Tensor:
    """The kept mask of these slots by cache head."""
    kept = torch.zeros(len(positions), pairs, dtype=torch.bool)
    for row, slots in zip(kept, positions, strict=True):
        row[slots] = True
    return kept


def by_head(numbers: Tensor, layer: LayerCache) -> list[Tensor]:
    """Keys or values of each cache head."""
    return list(numbers.split(layer.lengths))


@pytest.mark.parametrize("case", CASES)
def test_pairs_after_the_step_are_those_of_other_code(case: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    queries, keys, values = arrays_of(case)
    apply, tokens = apply_of(case, monkeypatch), keys.shape[1]
    first = case.get("later", tokens)
    before = layer_of(queries[:, first - case.get("window", 1) : first], keys[:, :first], values[:, :first])
    kept = marked(case["kept"], first)
    rows = before.observed(apply.rows(case["window"], first)) if apply.reads_rows else None
    after = apply.change(before, kept, before.select(kept), rows, case["variant"])
    if "then" in case:  # the tokens that follow, and a second eviction
        before = after.append(keys[:, first:], values[:, first:], first)
        kept = marked(case["then"], max(before.lengths))
        after = apply.change(before, kept, before.select(kept), None, case["variant"])
    for name, unchanged in (("keys", before.select(kept).keys), ("values", before.select(kept).values)):
        numbers = getattr(after, name)
        if case[name] is None:
            assert torch.equal(numbers, unchanged)
            continue
        parts = by_head(numbers.sum(dim=1) if "sums" in case else numbers, after)
        for part, expected in zip(parts, case[name], strict=True):
            assert torch.allclose(part, torch.tensor(expected), rtol=1e-4, atol=2e-5)


@pytest.mark.parametrize("case", [case for case in CASES if "score" in case.values[0]])  # type: ignore[operator]
def test_the_whole_eviction_gives_what_a_press_leaves(case: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    queries, keys, values = arrays_of(case)
    apply = apply_of(case, monkeypatch)
    fields = {name: PARTS.get(name, lambda value: value)(value) for name, value in case["policy"].items()}
    policy = Policy("golden", steps=(apply,), **fields)
    layer = layer_of(queries[:, -32:], keys, values)
    (after,) = Eviction(policy, make_score(case["score"], {}), TokenBudget(case["budget"]))(
        KVCache((layer,), keys.shape[1])
    ).layers
    assert [positions.tolist() for positions in by_head(after.positions, after)] == case["kept"]
    for name in ("keys", "values"):
        if case[name] is not None:
            expected = torch.tensor(case[name]).flatten(0, 1)
            assert torch.allclose(getattr(after, name), expected, rtol=1e-4, atol=2e-5)
