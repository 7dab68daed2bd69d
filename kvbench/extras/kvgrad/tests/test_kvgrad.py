"""KVgrad against kvpress in float64 (scripts/golden_methods.py), its gradients written out, and what it refuses."""

import json
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from kvbench.cache.kv_cache import KVCache
from kvbench.eviction.allocation.layers import GlobalLayers
from kvbench.eviction.budget import TokenBudget
from kvbench.eviction.evict import Eviction
from kvbench.eviction.policy import Policy
from kvbench.extras.kvgrad.kvgrad import KVgrad
from kvbench.models import bridge
from kvbench.models.engine import Engine
from kvbench.models.linear_layers import Products, use_products
from kvbench.models.prompts.prompt import Prompt
from kvbench.models.repeat import RepeatPass, passes
from kvbench.run.memory import activations
from kvbench.support.errors import UserError
from scripts.golden_methods import FOLDER, Characters, small_model
from tests.models.families import tiny
from tests.models.test_rotation import PROMPT

CASES = json.loads((FOLDER / "kvgrad.json").read_text("utf-8"))["cases"]


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case['kind']} {'chat' if case['templated'] else 'raw'}")
def test_repetitions_scores_and_kept_pairs_are_those_of_kvpress(case: dict[str, Any]) -> None:
    model, score, tokenizer = small_model(case["kind"]).double(), KVgrad(chunk=case["chunk"]), Characters(True)
    bridge.attach(model)
    engine, repeat, ids = Engine(model, max_length=512), score.inputs.repeat, tuple(case["ids"])
    assert repeat is not None
    head, turn = ("[user] ", " [answer]") if case["templated"] else ("", "\n")
    prompt = Prompt(ids, (), "", len(head), tuple(tokenizer(turn).input_ids))
    repeats = list(passes(tokenizer, prompt, repeat))
    assert [list(part.ids) for part in repeats] == case["repeats"]
    cache = engine.repeat(engine.prefill(torch.tensor(ids), (), [score]).cache, repeats, repeat)
    for layer, expected in zip(cache.evictable, torch.tensor(case["scores"]), strict=True):
        by_head = score(layer, None, "max").view(2, 3, len(ids)).amax(dim=1)
        torch.testing.assert_close(by_head, expected, rtol=2e-5, atol=0)
    policy = Policy("kvzip", window=1, reduce="max", sink=4, layers=GlobalLayers())
    kept = Eviction(policy, score, TokenBudget(16)).decide(cache).kept
    assert [[head.nonzero()[:, 0].tolist() for head in layer] for layer in kept] == case["kept"]


class Drawn:
    """Passes that repeat 61 tokens behind a head of 3, 25 at a time, by tokens that no tokenizer chose."""

    score = KVgrad(chunk=25)
    passes = tuple(
        RepeatPass(3, start, min(start + 25, 61), (*range(5, 12), *PROMPT[start : start + 25].tolist()))
        for start in (3, 28, 53)
    )

    @classmethod
    def of(cls, model: Any) -> KVCache:
        """The cache of a model after these passes."""
        bridge.attach(model)
        engine, repeat = Engine(model, max_length=512), cls.score.inputs.repeat
        assert repeat is not None
        return engine.repeat(engine.prefill(PROMPT, (), [cls.score]).cache, cls.passes, repeat)


def scores_of(cache: KVCache) -> list[Tensor]:
    return [Drawn.score(layer, None, "max") for layer in cache.evictable]


def state_of(model: Any) -> list[Any]:
    """What a pass may leave in a model: attributes, hooks, and whether parameters take a gradient."""
    hooks = [(len(part._forward_hooks), len(part._forward_pre_hooks), {*vars(part)}) for part in model.modules()]
    return [*hooks, *((weight.requires_grad, weight.grad) for weight in model.parameters())]


@pytest.mark.parametrize("family", ["qwen2 window", "gpt_oss", "qwen3_moe", "cohere2", "opt"])
def test_families_whose_attention_is_added_as_it_is_are_scored(family: str) -> None:
    """And a model stays as it was, a parameter that took no gradient before among it."""
    model = tiny(family)
    next(model.parameters()).requires_grad_(False)
    bridge.attach(model)
    before = state_of(model)
    for scores in scores_of(Drawn.of(model)):
        assert scores.isfinite().all() and (scores[:, 3:] > 0).all() and (scores[:, :3] == 0).all()
    assert state_of(model) == before


@pytest.mark.parametrize(
    ("family", "says"),
    [
        ("olmo2", "a norm, a factor or a gate stands between"),
        ("granite", "a norm, a factor or a gate stands between"),
        ("glm4", "a norm, a factor or a gate stands between"),
        ("lfm2", "has layers with a recurrent state"),
    ],
)
def test_other_families_are_refused_and_stay_as_they_were(family: str, says: str) -> None:
    model = tiny(family)
    bridge.attach(model)
    before = state_of(model)
    with pytest.raises(UserError, match=rf"^score kvgrad: .*{says}"):
        Drawn.of(model)
    assert state_of(model) == before


CHANGES: dict[str, tuple[str, Callable[[Tensor], Tensor]]] = {
    "a factor": ("output", lambda states: 2 * states),
    "a norm": ("output", lambda states: torch.nn.functional.layer_norm(states, states.shape[-1:])),
    "a norm behind a bias": ("output", lambda states: torch.nn.functional.layer_norm(states + 1, states.shape[-1:])),
    "a gate": ("input", lambda states: states * states.sigmoid()),
}


@pytest.mark.parametrize("name", CHANGES)
def test_what_stands_between_heads_and_sum_is_seen(name: str) -> None:
    """Before the output matrix of one layer, or behind it."""
    side, change = CHANGES[name]
    model = tiny("llama")
    matrix = model.model.layers[1].self_attn.o_proj
    if side == "output":
        matrix.register_forward_hook(lambda module, arguments, output: change(output))
    else:
        matrix.register_forward_pre_hook(lambda module, arguments: (change(arguments[0]),))
    with pytest.raises(UserError, match="score kvgrad: layer 1 of LlamaForCausalLM does not add"):
        Drawn.of(model)


def test_steps_that_change_no_number_are_let_through() -> None:
    plain, moved = tiny("llama"), tiny("llama")
    matrix = moved.model.layers[1].self_attn.o_proj
    matrix.register_forward_hook(lambda module, arguments, output: output.clone().mT.mT)
    for one, other in zip(scores_of(Drawn.of(plain)), scores_of(Drawn.of(moved)), strict=True):
        assert torch.equal(one, other)


@pytest.mark.parametrize("products", ["onednn", "torch", "mixed"])
def test_every_product_of_a_processor_has_a_gradient(products: Products) -> None:
    plain, changed = tiny("llama"), tiny("llama")
    use_products(changed, products)
    for one, other in zip(scores_of(Drawn.of(plain)), scores_of(Drawn.of(changed)), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-3, atol=0)


def test_a_pass_holds_no_more_than_memory_says() -> None:
    """Of each layer: the numbers that a pass holds of one. The cache itself is not held again."""
    model, held = tiny("llama"), dict[int, int]()
    bridge.attach(model)
    engine, repeat = Engine(model, max_length=512), Drawn.score.inputs.repeat
    assert repeat is not None
    cache = engine.prefill(PROMPT.repeat(6), (), [Drawn.score]).cache
    weights = {weight.data_ptr() for weight in model.parameters()}

    def hold(part: Tensor) -> Tensor:
        if part.data_ptr() not in weights:
            held[part.untyped_storage().data_ptr()] = part.untyped_storage().nbytes()
        return part

    with torch.autograd.graph.saved_tensors_hooks(hold, lambda part: part):
        engine.repeat(cache, Drawn.passes[:1], repeat)
    rows = len(Drawn.passes[0].ids)
    most = activations(model.config, torch.float32, rows) * model.config.num_hidden_layers
    assert most / 3 < sum(held.values()) < most
