"""Compactor: compactor-vllm written out in float64, what a model gives it, budgets. Of kvpress: test_methods_2026."""

import math
from decimal import Decimal

import pytest
import torch
from torch import Tensor

from kvbench.eviction.budget import FractionBudget, TokenBudget
from kvbench.extras.compactor.compactor import Compactor, Leverage, NonCausal
from kvbench.extras.conformance.golden.case import make_score
from kvbench.models import bridge
from kvbench.models.engine import Engine
from kvbench.support.errors import UserError
from tests.arrays import layer_of, random_layer
from tests.models.families import tiny
from tests.models.test_rotation import PROMPT


def in_deviations(rows: Tensor) -> Tensor:
    """As the kernel of compactor-vllm does it: over all heads, by the number of entries."""
    return (rows - rows.mean()) / math.sqrt(float(rows.square().mean() - rows.mean() ** 2))


def test_the_published_code_written_out() -> None:
    """150 tokens: leverage in parts of 64, 64 and 22; attention in chunks of 128 and 22, with 42 absent queries."""
    layer = random_layer(150, window=150)
    keys = layer.dense[0].double()
    queries = layer.windows[0].queries.double()
    score = make_score("compactor_vllm", {"span": 64, "sketch": None})
    assert isinstance(score, Compactor)
    parts = []
    for start, stop in ((0, 64), (64, 128), (128, 150)):
        by_head = []
        for head in keys[:, start:stop]:
            x = head - head.mean(dim=0)
            inverse = (x.T @ x + 0.005 * torch.eye(10)).inverse()
            by_head.append(torch.stack([row @ inverse @ row for row in x]))
        parts.append(in_deviations(torch.stack(by_head)))
    leverage = torch.cat(parts, dim=1)
    attention = torch.zeros(2, 150, dtype=torch.float64)
    for head, query in enumerate(queries):
        for start, stop, absent in ((0, 128, 0), (128, 150, 42)):
            for row in query[start:stop]:
                weights = (keys[head // 3, start:stop] @ row).exp()
                attention[head // 3, start:stop] += weights / weights.sum()
            attention[head // 3, start:stop] += absent / 128
    expected = in_deviations(attention) + 0.5 * leverage
    scores = score(layer, None, "sum").double()
    # its deviations are those of all entries, ours of a sample
    torch.testing.assert_close(scores, expected, rtol=0.02, atol=5e-3)
    assert [head.topk(40).indices.tolist() for head in scores] == [head.topk(40).indices.tolist() for head in expected]


def test_directions_keep_lengths_on_average_and_are_the_same_every_time() -> None:
    layer = random_layer(60)
    exact, projected, again = (Leverage(sketch=sketch)(layer, None, "sum") for sketch in (None, 1000, 1000))
    assert torch.equal(projected, again) and not torch.equal(projected, exact)
    assert torch.allclose(projected, exact, atol=0.5)
    assert not torch.allclose(Leverage(sketch=4)(layer, None, "sum"), exact, atol=0.5)
    first, second = (Leverage().directions(index, 2, 10) for index in (0, 1))
    assert not torch.equal(first, second) and not torch.equal(first[0], first[1])


@torch.inference_mode()
@pytest.mark.parametrize("family", ["llama", "qwen3", "gemma3"])
def test_keys_are_read_before_their_rotation_and_queries_after_it(family: str) -> None:
    """What transformers' own projections, norms and rotation give; one record serves every budget."""
    model, seen = tiny(family), {}
    bridge.attach(model)
    scores = [Compactor(sketch=None).of_budget(FractionBudget(Decimal(share))) for share in ("0.1", "0.4")]

    def spy(module: object, named: dict[str, Tensor]) -> None:
        seen[module.layer_idx] = module, named["hidden_states"][0]  # type: ignore[attr-defined]

    modules = [part for part in model.modules() if hasattr(part, "q_proj")]
    hooks = [part.register_forward_pre_hook(lambda m, _, named: spy(m, named), with_kwargs=True) for part in modules]
    layers = Engine(model, prefill_chunk=13, max_length=61).prefill(PROMPT, [61], scores).cache.evictable
    for hook in hooks:
        hook.remove()
    for layer in layers:
        assert len(layer.recordings) == 2
        module, hidden = seen[layer.index]
        plain = module.k_proj(hidden).view(len(PROMPT), layer.cache_heads, -1)
        plain = (module.k_norm(plain) if hasattr(module, "k_norm") else plain).transpose(0, 1)[:, 8:-4].double()
        centred = plain - plain.mean(dim=1, keepdim=True)
        gram = centred.mT @ centred + 0.01 * torch.eye(plain.shape[2]).double()
        leverage = (centred @ gram.inverse() * centred).sum(dim=2)
        recorded = layer.recordings[Leverage(8, 4, None)][:, 8:-4].double()
        torch.testing.assert_close(recorded, (leverage - leverage.mean()) / leverage.std(), rtol=1e-3, atol=1e-3)
        attention = layer.recordings[NonCausal(8, 4)]
        rotated = layer_of(layer.windows[0].queries, *layer.dense, layer.index)
        assert torch.equal(attention, NonCausal(8, 4)(rotated, None, "sum"))
        for score, share in zip(scores, (0.1, 0.4), strict=True):
            blended = (1 - share) * layer.recordings[Leverage(8, 4, None)] + attention
            assert torch.equal(score(layer, None, "sum"), blended)


def test_the_blend_follows_the_budget_unless_it_is_set() -> None:
    layer, parts = random_layer(80), Compactor().recorded
    leverage, attention = (part(layer, None, "sum") for part in parts)
    for budget, weight in ((FractionBudget(Decimal("0.25")), 0.75), (TokenBudget(20), 0.75), (TokenBudget(200), 0.0)):
        assert torch.equal(Compactor().of_budget(budget)(layer, None, "sum"), weight * leverage + attention)
        assert Compactor(blending=0.5).of_budget(budget) == Compactor(blending=0.5)
    compared = slice(8, 76)
    scores = Compactor().of_budget(TokenBudget(20))(layer, None, "sum")
    assert scores[:, :8].min() >= scores[:, compared].max() <= scores[:, 76:].min()


def test_what_cannot_be_is_refused() -> None:
    for setting in ({"sink": -1}, {"chunk": 0}, {"span": 0}, {"sketch": 0}, {"ridge": 0.0}):
        (name, value), *_ = setting.items()
        with pytest.raises(UserError, match=rf"score\.{name}={value}: "):
            Compactor(**setting)  # type: ignore[arg-type]
    assert (Compactor()(random_layer(13), None, "sum") == 0).all()
