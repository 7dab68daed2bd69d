"""Positions by cache: equal, in double precision, to an oracle that keeps keys before their rotation."""

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from kvbench.eviction.budget import TokenBudget
from kvbench.eviction.evict import Eviction
from kvbench.eviction.incremental import IncrementalEviction, capacity_after
from kvbench.eviction.policy import Policy
from kvbench.eviction.scores.attn import Attention
from kvbench.eviction.scores.recency import Recency
from kvbench.extras.positions.positions import Positions
from kvbench.extras.positions.re_rotation import re_rotation_of
from kvbench.extras.positions.renumbered import RenumberedCache, renumbered, rotation_of
from kvbench.extras.positions.tests.renumbered_oracle import Cut, renumbered_forward
from kvbench.models.decode.batch import RaggedBatch
from kvbench.models.decode.evicting_batch import EvictingBatch
from kvbench.models.engine import Engine
from kvbench.models.key_rotation import ROUNDING
from kvbench.models.rope import LengthRope, read_alone
from tests.models.conftest import PROMPT, make_engine
from tests.models.families import engine_of

ANSWER = torch.randint(0, 97, (13,), generator=torch.Generator().manual_seed(5))
HELD = 18


def streaming(worth: Tensor) -> list[int]:
    """Four sinks and the newest."""
    slots = list(range(len(worth)))
    return slots if len(slots) <= HELD else slots[:4] + slots[4 - HELD :]


def heavy(worth: Tensor) -> list[int]:
    """The newest six, and those with most attention so far."""
    if len(worth) <= HELD:
        return list(range(len(worth)))
    return sorted(worth[:-6].topk(HELD - 6).indices.tolist()) + list(range(len(worth) - 6, len(worth)))


RENUMBERED = (Positions("cache"),)
STREAMING = Eviction(Policy("streaming_llm", 1, sink=4, state="none", steps=RENUMBERED), Recency(), TokenBudget(HELD))
H2O = Eviction(
    Policy("h2o_obcache", 61, recent=6, state="accumulate", steps=RENUMBERED), Attention(), TokenBudget(HELD)
)
METHODS = pytest.mark.parametrize(
    ("eviction", "cut"), [(STREAMING, streaming), (H2O, heavy)], ids=["streaming", "h2o_obcache"]
)


def cut_prompt(engine: Engine, prompt: Tensor, eviction: Eviction) -> tuple[IncrementalEviction, RenumberedCache]:
    full = engine.prefill(prompt, {eviction.policy.window}).cache
    decision = eviction.decide(full)
    evictor = IncrementalEviction(eviction, capacity_after(eviction, full, decision))
    smaller = evictor.remember(full, decision, eviction.evict(full, decision))
    return evictor, renumbered(smaller, rotation_of(engine))


def expected_after(engine: Engine, prompt: Tensor, cut: Cut, every: int = len(ANSWER) + 1) -> Tensor:
    """What the oracle says of the answer, token by token, with a cut after every so many; by default without one."""
    cuts = [cut if count % every == 0 else None for count in range(1, len(ANSWER) + 1)]
    blocks = [(prompt, cut), *((token.view(1), again) for token, again in zip(ANSWER, cuts, strict=True))]
    return torch.cat(list(renumbered_forward(engine.model, blocks))[1:])


@METHODS
def test_one_cut_after_the_prompt(eviction: Eviction, cut: Cut) -> None:
    """Beside a cell with original positions and one with another budget, each at its own position."""
    engine = make_engine(torch.float64)
    _, cache = cut_prompt(engine, PROMPT, eviction)
    assert (cache.position, cache.num_tokens) == (HELD, 61)
    more = replace(eviction, budget=TokenBudget(25))
    other = replace(eviction, policy=replace(eviction.policy, steps=()))
    caches = [
        other(engine.prefill(PROMPT, {61, 1}).cache),
        cache.shown,
        cut_prompt(engine, PROMPT, more)[1].shown,
    ]
    tile = RaggedBatch(caches, engine.max_batch, len(ANSWER))
    assert tile.positions[:3] == [61, HELD, 25]
    logits = torch.stack([engine.read(tile, token.expand(engine.max_batch, 1)) for token in ANSWER], dim=1)
    expected = expected_after(engine, PROMPT, cut)
    assert (logits[1] - expected).abs().max() < 1e-10
    assert min((logits[cell] - expected).abs().max() for cell in (0, 2)) > 1e-3


@METHODS
@pytest.mark.parametrize("every", [1, 4])
def test_cuts_while_decoding(eviction: Eviction, cut: Cut, every: int) -> None:
    engine = make_engine(torch.float64)
    evictor, cache = cut_prompt(engine, PROMPT, eviction)
    tile = EvictingBatch([engine.evicting_cache(evictor, every, cache)], engine.max_batch, len(ANSWER))
    logits = torch.stack([engine.read(tile, token.expand(engine.max_batch, 1))[0] for token in ANSWER])
    assert (logits - expected_after(engine, PROMPT, cut, every)).abs().max() < 1e-10
    assert tile.positions[0] == HELD + len(ANSWER) % every


@METHODS
@pytest.mark.parametrize("block", [1, 7, 40])
def test_cuts_after_every_block(eviction: Eviction, cut: Cut, block: int) -> None:
    """The prompt, then an answer without further cuts."""
    engine, prompt = make_engine(torch.float64), PROMPT[:40]
    read = engine.prefill_evicting(prompt, IncrementalEviction(eviction, HELD), block)
    blocks = [(part, cut) for part in prompt.split(block)] + [(ANSWER, None)]
    *_, before, after = renumbered_forward(engine.model, blocks)
    assert (read.logits - before[-1]).abs().max() < 1e-10
    tile = RaggedBatch([read.cache.shown], 1, len(ANSWER))
    assert (engine.read(tile, ANSWER[None])[0] - after[-1]).abs().max() < 1e-10


def test_nll_token_by_token() -> None:
    """A sequence longer than the model may read: positions end where the cache does."""
    engine, prompt = make_engine(torch.float64), PROMPT[:45]
    engine.max_length = 40
    original = replace(STREAMING, policy=replace(STREAMING.policy, steps=()))
    nll, other = (
        engine.nll(prompt, [engine.evicting_cache(IncrementalEviction(eviction, HELD), 1)])[0]
        for eviction in (STREAMING, original)
    )
    logits = torch.cat(list(renumbered_forward(engine.model, [(token.view(1), streaming) for token in prompt])))
    expected = torch.nn.functional.cross_entropy(logits[:-1], prompt[1:], reduction="none")
    assert torch.allclose(nll, expected, atol=1e-10) and (other - nll).abs().max() > 1e-3


def test_the_same_until_the_first_cut() -> None:
    engine = make_engine()
    roomy = replace(STREAMING, budget=TokenBudget(500))
    _, cache = cut_prompt(engine, PROMPT, roomy)
    assert (cache.position, cache.num_tokens) == (61, 61)
    shown, full = cache.shown, engine.prefill(PROMPT).cache
    assert all(
        torch.equal(layer.keys, expected.keys) for layer, expected in zip(shown.layers, full.layers, strict=True)
    )


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("family", ["llama", "llama3 rope", "qwen3", "granite", "olmo2", "phi", "glm4", "stablelm"])
def test_families_rotate_as_their_keys_say(family: str, dtype: torch.dtype) -> None:
    """Keys of a token at 403, turned to 11, are the keys that the model makes of it there; parts may not be rotated."""
    engine = engine_of(family, dtype)
    re_rotation = re_rotation_of(engine.model)
    far, near = (_keys(engine, at) for at in (403, 11))
    for layer, rotation in re_rotation.by_layer.items():
        old, new = (torch.full((len(far[layer]),), float(at)) for at in (403, 11))
        error = (rotation.turn(far[layer], old, new) - near[layer]).norm() / near[layer].norm()
        assert error < ROUNDING[dtype]
    assert len(re_rotation.by_layer) == 4


def _keys(engine: Engine, position: int) -> dict[int, Tensor]:
    with torch.inference_mode():
        return {layer: keys[0, :, 0] for layer, keys in read_alone(engine.model, position).keys.items()}


@pytest.mark.parametrize(
    ("family", "reason"),
    [
        ("smollm3", "SmolLM3ForCausalLM does not rotate the keys of layer 1"),
        ("opt", "OPTForCausalLM does not rotate the keys of layer 0"),
        ("gemma3", "has local layers, first layer 0"),
        ("mistral window", "has local layers, first layer 0"),
    ],
)
def test_what_cannot_be_rotated_anew_is_refused(family: str, reason: str) -> None:
    with pytest.raises(ValueError, match=rf"policy\.positions=cache: .*{reason}.*; use policy\.positions=original"):
        rotation_of(engine_of(family))


def test_frequencies_that_depend_on_the_length_are_refused() -> None:
    engine = make_engine()
    engine.rope = LengthRope("dynamic", 512)
    with pytest.raises(ValueError, match=r"policy\.positions=cache: .*dynamic.*use policy\.positions=original"):
        engine.evicting_cache(IncrementalEviction(STREAMING, HELD), 1)


def test_heads_of_different_lengths_are_refused() -> None:
    engine = make_engine()
    full = engine.prefill(PROMPT).cache
    ragged = replace(
        full, layers=(full.layers[0].of_heads((0,)).append(*2 * [torch.zeros(1, 1, 8)], 61), *full.layers[1:])
    )
    with pytest.raises(ValueError, match="heads hold 61 to 62 pairs"):
        renumbered(ragged, rotation_of(engine))
