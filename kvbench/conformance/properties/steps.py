"""What cuts that follow each other must do: one after every token of an answer, or after every block of a prompt."""

from collections.abc import Iterator
from functools import lru_cache

import torch
from torch import Tensor

from kvbench.cache.attention import Rule, over_layer
from kvbench.cache.kv_cache import LayerCache
from kvbench.conformance.properties.inputs import HEAD_DIM, HEADS, KV_HEADS, evicting, recorded, require
from kvbench.eviction.evict import reads_rows
from kvbench.eviction.incremental import IncrementalEviction, Step, capacity_after, check_steps
from kvbench.eviction.policy import Policy
from kvbench.eviction.scores.score import Score

PROMPT, NEW, BLOCK = 50, 2, 22
Token = tuple[Tensor, Tensor, Tensor]


def decoding_holds_the_capacity(policy: Policy, score: Score) -> None:
    """After every token each head holds what the prompt's cut left it, protected tokens among it, alike every time."""
    if _refused(policy, score, blocks=False):
        return
    eviction, cache = evicting(policy, score, 33, PROMPT), recorded(PROMPT)
    decision = eviction.decide(cache)
    whole = eviction.policy.heads.kind == "binary"
    stepping = IncrementalEviction(eviction, capacity_after(cache, decision, 33, whole=whole), decoding=True)
    first = stepping.remember(cache, decision, eviction.cut(cache, decision)).evictable
    for layer in first:
        for number, step in enumerate(_run(stepping, layer, _tokens(PROMPT + NEW)[PROMPT:], PROMPT), 1):
            grown = [length + (number if whole and length == PROMPT else 0) for length in layer.lengths]
            after = f"lengths {step.layer.lengths} after {number} tokens, not {grown}"
            require(list(step.layer.lengths) == grown, after)
            _protects(eviction.policy, step.layer, PROMPT + number)
    again = _run(stepping, first[-1], _tokens(PROMPT + NEW)[PROMPT:], PROMPT)[-1]
    require(torch.equal(step.layer.positions, again.layer.positions), "a second answer keeps something else")


def blocks_hold_the_budget_and_do_not_look_ahead(policy: Policy, score: Score) -> None:
    """After every block each head holds the budget or all there is, the same whether or not more blocks follow."""
    if _refused(policy, score, blocks=True):
        return
    found = []
    for budget, blocks in ((2 * PROMPT, 2), (33, 3), (33, 2)):
        stepping = IncrementalEviction(evicting(policy, score, budget, PROMPT), budget)
        steps = _run(stepping, _nothing(stepping), _blocks(PROMPT)[:blocks], 0)
        for number, step in enumerate(steps, 1):
            seen = min(number * BLOCK, PROMPT)
            lengths = [min(budget, seen)] * step.layer.cache_heads
            require(list(step.layer.lengths) == lengths, f"lengths {step.layer.lengths} after {seen} tokens")
            _protects(stepping.policy, step.layer, seen)
        found.append(steps[1].layer.positions)
    require(torch.equal(found[1], found[2]), "what is kept depends on later blocks")


def _refused(policy: Policy, score: Score, blocks: bool) -> bool:
    """Whether the schedule is refused with a reason; a ragged last block may have fewer rows than a score takes."""
    try:
        check_steps(policy.of_prompt(5, PROMPT, 33), score, blocks)
    except ValueError:
        return True
    return blocks and score.least_rows > PROMPT % BLOCK


def _run(stepping: IncrementalEviction, layer: LayerCache, news: list[Token], seen: int) -> list[Step]:
    steps = []
    for queries, keys, values in news:
        layer = layer.append(keys, values, seen)
        rows = over_layer(queries, layer, Rule(HEAD_DIM**-0.5))
        asks = reads_rows(stepping.policy, stepping.eviction.score)
        steps.append(stepping.step(layer, rows if asks else None))
        layer, seen = steps[-1].layer, seen + keys.shape[1]
    return steps


def _nothing(stepping: IncrementalEviction) -> LayerCache:
    return stepping.start(0, HEADS, KV_HEADS, torch.empty(HEAD_DIM))


@lru_cache
def _text(tokens: int) -> Token:
    generator = torch.Generator().manual_seed(tokens)
    queries, keys, values = (torch.randn(heads, tokens, HEAD_DIM, generator=generator) for heads in (HEADS, 2, 2))
    return queries, keys, values


def _tokens(tokens: int) -> list[Token]:
    return list(zip(*(part.split(1, dim=1) for part in _text(tokens)), strict=True))


def _blocks(tokens: int) -> list[Token]:
    return list(zip(*(part.split(BLOCK, dim=1) for part in _text(tokens)), strict=True))


def _protects(policy: Policy, layer: LayerCache, seen: int) -> None:
    wanted = {*range(min(policy.sinks, seen)), *range(max(0, seen - policy.last), seen)}
    for head, positions in enumerate(_by_head(layer)):
        require(len(set(positions)) == len(positions), f"head {head} holds a position twice")
        lost = sorted(wanted - set(positions))
        require(not lost, f"head {head} has lost protected positions {lost} after {seen} tokens")


def _by_head(layer: LayerCache) -> Iterator[list[int]]:
    yield from (part.tolist() for part in layer.positions.split(layer.lengths))
