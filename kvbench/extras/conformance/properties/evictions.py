"""The properties: of a single eviction, of an eviction with odd input, and of repeated evictions."""

from collections.abc import Callable
from dataclasses import replace
from decimal import Decimal
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from kvbench.cache.attention import AttentionParams, attend_layer, causal
from kvbench.cache.kv_cache import KVCache, LayerCache, ObservationWindow, from_dense
from kvbench.eviction.budget import FractionBudget, TokenBudget
from kvbench.eviction.evict import Decision, Eviction, reads_rows
from kvbench.eviction.incremental import RECORDED, IncrementalEviction, LayerEviction, capacity_after, check_steps
from kvbench.eviction.policy import Policy
from kvbench.eviction.scores.score import AttentionCall, Score
from kvbench.extras.conformance.properties.caches import (
    HEAD_DIM,
    HEADS,
    KV_HEADS,
    LAYERS,
    beginning_of_text,
    recorded,
    saturated,
    with_equal_pairs,
    without_newest,
)

Property = Callable[[Policy, Score], None]
Token = tuple[Tensor, Tensor, Tensor]
"""Queries, keys and values [heads, new, head_dim] of new tokens."""

TOKENS, BUDGET, SKIPPED = 97, 53, 7
NOT_FINITE = (("keys", torch.nan), ("keys", -torch.inf), ("values", torch.inf))
PROMPT, NEW, BLOCK = 50, 2, 22
"""Repeated evictions: tokens of the prompt, of the answer, and of a block of the prompt."""
SHORT, LONGEST = 8, 64
"""Tokens of a prompt shorter than windows and protected tokens, and the most of its answer."""
FEW = 5
"""Protected tokens of an answer with a budget of its own, which first has to be filled."""


def require(holds: object, message: str) -> None:
    """Raise AssertionError with the message unless it holds."""
    if not holds:
        raise AssertionError(message)


def evicting(policy: Policy, score: Score, pairs: int, tokens: int, **fields: Any) -> Eviction:
    """Return an eviction of `tokens` to `pairs` per head, with fields of the policy replaced; the head of the prompt
    has 5.

    Of the newest tokens that a policy protects, no more than these small budgets hold.
    """
    inside = replace(policy, budget_span="prompt").resolve(5, tokens, TokenBudget(pairs))  # what is outside adds to it
    if inside.protected > pairs:
        inside = replace(inside, recent=pairs // 3)
    return Eviction(replace(inside, **fields), score, TokenBudget(pairs))


def masks(decision: Decision) -> Tensor:
    """Return the kept masks, [layers, cache heads, tokens]."""
    return torch.stack(decision.kept)


def require_spent(budget: int, pairs: int, eviction: Eviction, tokens: int) -> None:
    """Require that the budget of all heads is spent; of whole heads or layers, less is left than another of them
    needs.
    """
    policy, unused = eviction.policy, budget - pairs
    whole = max(1, tokens - policy.protected) * (HEADS if policy.layers.kind == "lazy" else 1)
    limit = whole if policy.keeps_whole else 1
    require(0 <= unused < limit, f"{unused} KV pairs of the budget are not used")


def budget_is_spent_and_protected_tokens_stay(policy: Policy, score: Score) -> None:
    """Require that the smaller cache holds what was decided: exactly the budget, first and newest tokens included."""
    eviction, cache = evicting(policy, score, BUDGET, TOKENS), recorded(TOKENS)
    decision = eviction.decide(cache)
    smaller = eviction.evict(cache, decision)
    require_spent(BUDGET * len(decision.kept[0]) * LAYERS, smaller.pairs, eviction, TOKENS)
    require(smaller.pairs == int(decision.lengths.sum()), f"{smaller.pairs} pairs, decided {decision.lengths.sum()}")
    for index, (mask, layer) in enumerate(zip(decision.kept, smaller.layers, strict=True)):
        protected = (
            mask[:, : eviction.policy.sink_tokens].all() and mask[:, TOKENS - eviction.policy.protected_tail :].all()
        )
        require(protected, f"layer {index} evicts protected tokens")
        same = layer.positions.tolist() == mask.nonzero()[:, 1].tolist()
        require(same, f"layer {index} holds other positions than were decided")


def budget_for_everything_keeps_the_dense_cache(policy: Policy, score: Score) -> None:
    """With a budget of the prompt or more, attention equals the dense cache's."""
    cache = recorded(TOKENS)
    for pairs in (TOKENS, TOKENS + 40):
        eviction = evicting(policy, score, pairs, TOKENS)
        kept = eviction(cache)
        require(eviction.policy.layout == "query_heads" or kept is cache, f"budget {pairs} copies the cache")
        per_query_head = evicting(policy, score, pairs, TOKENS, layout="query_heads", group=None)(cache)
        for dense, layer in zip(cache.layers, per_query_head.layers, strict=True):
            keys, values = dense.dense
            queries = dense.windows[0].queries[:, -1:]
            expected = causal(queries, keys, values, HEAD_DIM**-0.5)
            actual = attend_layer(queries, layer, AttentionParams(HEAD_DIM**-0.5)).outputs
            same = torch.allclose(actual, expected, atol=1e-5)
            require(same, f"budget {pairs}: attention differs from the dense cache's")


def samples_do_not_see_each_other(policy: Policy, score: Score) -> None:
    """Whatever the order of the samples, each keeps the same as alone."""
    eviction = evicting(policy, score, BUDGET, TOKENS)
    first, second, first_again = (masks(eviction.decide(recorded(TOKENS, seed))) for seed in (0, 1, 0))
    require(torch.equal(first, first_again), "a sample keeps other KV pairs if it comes after another sample")
    fresh = Eviction(eviction.policy, score, TokenBudget(BUDGET)).decide(recorded(TOKENS, 1))
    require(torch.equal(second, masks(fresh)), "a sample keeps other KV pairs alone than after another sample")


def only_declared_inputs_are_read(policy: Policy, score: Score) -> None:
    """Without the records that are not declared, and with NaN in the rows outside the window, the same is kept."""
    eviction, cache = evicting(policy, score, BUDGET, TOKENS), recorded(TOKENS)
    outside = TOKENS - eviction.policy.layer_rows(TOKENS)

    def spoilt(window: ObservationWindow) -> ObservationWindow:
        queries, outputs, lse = (part.clone() for part in (window.queries, window.outputs, window.lse))
        for part in (queries, outputs, lse):
            part[:, :outside] = torch.nan
        return ObservationWindow(queries, outputs, lse, window.scaling)

    reads = reads_rows(eviction.policy, score)
    layers = [replace(layer, windows=tuple(map(spoilt, layer.windows)) if reads else ()) for layer in cache.layers]
    if score.inputs.repeat is None and score.inputs.hidden_states is None:
        layers = [replace(layer, recordings={}) for layer in layers]
    if not score.inputs.projections:
        layers = [replace(layer, projections={}) for layer in layers]
    if score.inputs.future_queries is None:
        layers = [replace(layer, future_queries=()) for layer in layers]
    complete, reduced = eviction.decide(cache), eviction.decide(KVCache(tuple(layers), TOKENS))
    require(torch.equal(masks(complete), masks(reduced)), "an input that was not declared changes what is kept")


def later_tokens_change_nothing(policy: Policy, score: Score) -> None:
    """Check that a span's kept set does not depend on what follows it, in the same memory or appended afterwards."""
    if policy.layers.kind == "table":  # of so many layers, and this cache has one
        return
    eviction, kept = evicting(policy, score, BUDGET, TOKENS), []
    for later in (1e4, torch.nan):
        (layer,) = eviction(beginning_of_text(TOKENS, later)).layers
        kept.append(_by_head(layer))
        new = torch.full((layer.cache_heads, 1, HEAD_DIM), later)
        grown = [positions[:-1] for positions in _by_head(layer.append(new, new, TOKENS))]
        require(grown == kept[-1], "a new token changes KV pairs that were kept")
    require(kept[0] == kept[1], "the KV pairs kept depend on later tokens")


def skipped_tokens_only_stay(policy: Policy, score: Score) -> None:
    """With a window that ends before the newest tokens, these are kept, and of the others what a prompt without them
    keeps. Not of scores that read the whole prompt again, or with other passes.
    """
    inputs = score.inputs
    if policy.layers.kind == "table" or inputs.repeat or inputs.hidden_states or inputs.future_queries:
        return
    eviction = evicting(policy, score, BUDGET + SKIPPED, TOKENS, window_skips=SKIPPED)
    alone, stop = Eviction(replace(eviction.policy, window_skips=0), score, TokenBudget(BUDGET)), TOKENS - SKIPPED
    kept, kept_alone = masks(eviction.decide(recorded(TOKENS))), masks(alone.decide(without_newest(TOKENS, SKIPPED)))
    require(kept[..., stop:].all(), "tokens that the window skips are evicted")
    require(torch.equal(kept[..., :stop], kept_alone), "tokens that the window skips change what else is kept")


def query_heads_can_be_stored_apart(policy: Policy, score: Score) -> None:
    """With a cache for each query head, each gets the budget, and the bytes count repeated pairs."""
    eviction = evicting(policy, score, BUDGET, TOKENS, layout="query_heads", group=None)
    smaller = eviction(recorded(TOKENS))
    require_spent(BUDGET * HEADS * LAYERS, smaller.pairs, eviction, TOKENS)
    require(smaller.bytes_held == smaller.pairs * 2 * HEAD_DIM * 4, f"{smaller.bytes_held} bytes are held")


def official_variant_stays_near_the_budget(policy: Policy, score: Score) -> None:
    """Allow that it overspends by a quarter or leaves a few pairs; it never touches the protected tokens."""
    eviction = evicting(policy, score, BUDGET, TOKENS, variant="official")
    decision = eviction.decide(recorded(TOKENS))
    mean = float(decision.lengths.float().mean())
    least = eviction.policy.protected if eviction.policy.keeps_whole else BUDGET - 2  # heads that tie are all evicted
    most = TOKENS if eviction.policy.layers.kind == "lazy" else 1.25 * BUDGET  # a threshold knows no budget
    require(least <= mean <= most, f"{mean} pairs per head at a budget of {BUDGET}")
    require(masks(decision)[:, :, TOKENS - eviction.policy.protected_tail :].all(), "the newest tokens are evicted")


def short_prompts_stay_whole(policy: Policy, score: Score) -> None:
    """Shorter than window and budget: nothing is scored, and nothing copied."""
    for tokens in (1, 2, 7):
        eviction, cache = evicting(policy, score, 40, tokens, layout="kv_heads"), recorded(tokens)
        require(eviction(cache) is cache, f"a prompt of {tokens} tokens is evicted from")


def window_may_be_longer_than_the_prompt(policy: Policy, score: Score) -> None:
    """Twelve tokens are scored by the rows that exist, with little protected."""
    eviction = evicting(policy, score, 9, 12, sink=1, recent=2)
    smaller = eviction(recorded(12))
    require_spent(9 * len(smaller.lengths[0]) * LAYERS, smaller.pairs, eviction, 12)
    require((smaller.lengths >= 3).all(), "protected tokens are evicted")


def one_candidate_may_be_left_out(policy: Policy, score: Score) -> None:
    """All but one token are protected, and the budget is exactly these."""
    smaller = evicting(policy, score, 29, 30, sink=5, recent=24)(recorded(30))
    require((smaller.lengths == 29).all(), f"lengths {smaller.lengths.tolist()}, all could be 29")
    require(all(5 not in layer.positions.tolist() for layer in smaller.layers), "the one candidate stays")


def no_candidate_may_stay(policy: Policy, score: Score) -> None:
    """Require that a budget of exactly the protected tokens keeps those alone."""
    for variant in ("paper", "official"):
        lengths = evicting(policy, score, 16, 60, sink=4, recent=12, variant=variant).decide(recorded(60)).lengths
        stale = policy.layers.kind in ("entropy", "lazy", "table") and variant == "official"  # of the whole budget
        require((lengths >= 16).all(), f"{variant}: protected tokens are evicted")
        require(stale or (lengths == 16).all(), f"{variant}: more is kept than a budget of the protected tokens")


def equal_pairs_are_chosen_the_same_way(policy: Policy, score: Score) -> None:
    """Equal pairs are ranked by layer, head and position: the same ones every time."""
    eviction, cache = evicting(policy, score, 40, 50, sink=2, recent=4), with_equal_pairs(50)
    first, again = eviction.decide(cache), eviction.decide(cache)
    require_spent(40 * len(first.kept[0]) * LAYERS, int(first.lengths.sum()), eviction, 50)
    require(torch.equal(masks(first), masks(again)), "a second eviction chooses other KV pairs among equal scores")


def saturated_attention_is_ranked(policy: Policy, score: Score) -> None:
    """If one token has all the weight of every row, in half precision, scores are finite and budgets are spent."""
    eviction = evicting(policy, score, 20, 40, sink=0, recent=4)
    for dtype in (torch.bfloat16, torch.float16):
        smaller = eviction(saturated(dtype))
        require_spent(20 * len(smaller.lengths[0]) * LAYERS, smaller.pairs, eviction, 40)


def numbers_that_are_none_are_refused(policy: Policy, score: Score) -> None:
    """NaN or inf in the cache is refused even if the score does not read it: attention could not use what is kept."""
    eviction, cache = evicting(policy, score, 20, 40, sink=0, recent=4), recorded(40)
    for part, value in NOT_FINITE:
        spoilt = getattr(cache.layers[1], part).clone()
        spoilt[17, 3] = value
        layers = (cache.layers[0], replace(cache.layers[1], **{part: spoilt}), cache.layers[2])
        try:
            eviction(KVCache(layers, 40))
        except ValueError as error:
            named = f"layer 1 holds NaN or inf in its {part}" in str(error)
            require(named, f"{value} in the {part} is refused, but not by name: {error}")
        else:
            raise AssertionError(f"{value} in the {part} is ranked")


def decoding_holds_the_capacity(policy: Policy, score: Score) -> None:
    """After every token each head holds as many pairs as after the prompt, protected tokens included; repeatable."""
    if _refuses(policy, score, blocks=False):
        return
    eviction, cache = evicting(policy, score, 33, PROMPT), recorded(PROMPT)
    decision = eviction.decide(cache)
    incremental = IncrementalEviction(eviction, capacity_after(eviction, cache, decision), decoding=True)
    layers = incremental.remember(cache, decision, eviction.evict(cache, decision)).evictable
    answer = _split(PROMPT + NEW, 1)[PROMPT:]
    for layer in layers:
        for number, step in enumerate(_run(incremental, layer, answer, PROMPT), 1):
            grows = PROMPT if eviction.policy.keeps_whole else None
            lengths = [length + (number if length == grows else 0) for length in layer.lengths]
            message = f"lengths {step.layer.lengths} after {number} tokens, not {lengths}"
            require(list(step.layer.lengths) == lengths, message)
            _require_protected(eviction.policy, step.layer, PROMPT + number)
    again = _run(incremental, layers[-1], answer, PROMPT)[-1]
    require(torch.equal(step.layer.positions, again.layer.positions), "a second answer keeps other KV pairs")


def short_prompts_grow_to_what_is_protected(policy: Policy, score: Score) -> None:
    """At budget 1.0, a prompt shorter than what is protected stays whole, and its answer is evicted from no earlier."""
    whole = replace(policy, budget_span="prompt").resolve(5, SHORT, FractionBudget(Decimal(1)))
    eviction, cache = Eviction(whole, score, FractionBudget(Decimal(1))), recorded(SHORT)
    tokens = SHORT + min(whole.decoding.protected, LONGEST) + 2
    if not _refuses(policy, score, blocks=False):
        decision = eviction.decide(cache)
        require(decision.keeps_all(SHORT), f"a prompt of {SHORT} tokens is evicted from at budget 1.0")
        incremental = IncrementalEviction(eviction, capacity_after(eviction, cache, decision), decoding=True)
        for layer in incremental.remember(cache, decision, eviction.evict(cache, decision)).evictable:
            for step in _run(incremental, layer, _split(tokens, SHORT)[1:], SHORT):
                read = 1 + int(step.layer.positions.max())
                most = read if whole.keeps_whole else min(read, max(SHORT, whole.protected))
                require(
                    {*step.layer.lengths} == {most}, f"lengths {step.layer.lengths} after {read} tokens, not {most}"
                )
                _require_protected(incremental.policy, step.layer, read)
    if not _refuses(policy, score, blocks=True):
        incremental = IncrementalEviction(eviction, eviction.capacity(SHORT))
        for layer in _run_blocks(incremental, _split(SHORT, SHORT // 2))[-1]:
            require({*layer.lengths} == {SHORT}, f"lengths {layer.lengths} of {SHORT} tokens at budget 1.0")


def an_answer_has_its_own_budget(policy: Policy, score: Score) -> None:
    """With `schedule.answer_budget` each head keeps all that it has of the prompt, and so many pairs of the answer, of
    which few are protected.
    """
    if _refuses(policy, score, blocks=False):
        return
    recent = min(FEW, evicting(policy, score, 33, PROMPT).policy.recent_tokens)
    eviction, cache = evicting(policy, score, 33, PROMPT, recent=recent), recorded(PROMPT)
    decision = eviction.decide(cache)
    incremental = IncrementalEviction(eviction, capacity_after(eviction, cache, decision), decoding=True)
    smaller = incremental.remember(cache, decision, eviction.evict(cache, decision))
    pairs = max(2, eviction.policy.decoding.recent_tokens)
    incremental, tokens = incremental.with_answer_budget(smaller, pairs), PROMPT + pairs + NEW
    for layer in smaller.evictable:
        for number, step in enumerate(_run(incremental, layer, _split(tokens, 1)[PROMPT:], PROMPT), 1):
            _require_protected(eviction.policy, step.layer, PROMPT + number)
            heads = (part.positions.split(part.lengths) for part in (layer, step.layer))
            for before, after in zip(*heads, strict=True):
                prompt, answer = after[after < PROMPT], after[after >= PROMPT]
                require(torch.equal(prompt.sort().values, before.sort().values), "a pair of the prompt was evicted")
                whole = eviction.policy.keeps_whole and len(before) == PROMPT
                most = number if whole else min(number, pairs)
                require(len(answer) == most, f"{len(answer)} pairs of an answer of {number} tokens, not {most}")


def blocks_hold_the_budget_and_do_not_look_ahead(policy: Policy, score: Score) -> None:
    """After every block the budget or everything is held, the same whether or not more blocks follow."""
    if _refuses(policy, score, blocks=True):
        return
    second_blocks = []
    for budget, blocks in ((2 * PROMPT, 2), (33, 3), (33, 2)):
        incremental = IncrementalEviction(evicting(policy, score, budget, PROMPT), budget)
        layers_after = _run_blocks(incremental, _split(PROMPT, BLOCK)[:blocks])
        for number, layers in enumerate(layers_after, 1):
            num_tokens, lengths = min(number * BLOCK, PROMPT), [layer.lengths for layer in layers]
            pairs, most = sum(map(sum, lengths)), min(budget, num_tokens)
            if policy.layers.kind == "table":
                require(pairs <= most * sum(map(len, lengths)), f"{pairs} KV pairs after {num_tokens} tokens")
            elif incremental.divides:
                require_spent(most * sum(map(len, lengths)), pairs, incremental.eviction, num_tokens)
            else:
                require({*sum(lengths, ())} == {most}, f"lengths {lengths} after {num_tokens} tokens")
            for layer in layers:
                _require_protected(incremental.policy, layer, num_tokens)
        second_blocks.append(torch.cat([layer.positions for layer in layers_after[1]]))
    require(torch.equal(second_blocks[1], second_blocks[2]), "the KV pairs kept depend on later blocks")


def _refuses(policy: Policy, score: Score, blocks: bool) -> bool:
    """Return whether the schedule is refused with a reason; a ragged last block may have fewer rows than a score
    takes.
    """
    try:
        check_steps(policy.resolve(5, PROMPT, TokenBudget(33)), score, blocks)
    except ValueError:
        return True
    return blocks and score.least_rows > PROMPT % BLOCK


def _run(
    incremental: IncrementalEviction, layer: LayerCache, blocks: list[Token], num_tokens: int
) -> list[LayerEviction]:
    steps = []
    for queries, keys, values in blocks:
        layer = layer.append(keys, values, num_tokens, _read_hidden(incremental, layer, keys, values))
        rows = attend_layer(queries, layer, AttentionParams(HEAD_DIM**-0.5))
        reads = reads_rows(incremental.policy, incremental.eviction.score)
        steps.append(incremental.step(layer, rows if reads else None))
        layer, num_tokens = steps[-1].layer, num_tokens + keys.shape[1]
    return steps


def _read_hidden(
    incremental: IncrementalEviction, layer: LayerCache, keys: Tensor, values: Tensor
) -> dict[str, Tensor]:
    """Return the state of new pairs; the hidden state of a token is its keys side by side, as in `caches.layer_of`."""
    if not incremental.reads_hidden:
        return {}
    new = replace(from_dense(layer.index, HEADS, keys, values), projections=layer.projections)
    call = AttentionCall(None, None, keys.transpose(0, 1).flatten(1)[None], {})
    return {RECORDED: incremental.score.read_call(new, call)}


def _run_blocks(incremental: IncrementalEviction, blocks: list[Token]) -> list[list[LayerCache]]:
    """Return the layers after each block; their queries differ in scale."""
    layers = [incremental.start(index, HEADS, KV_HEADS, torch.empty(HEAD_DIM)) for index in range(LAYERS)]
    layers_after, num_tokens = [], 0
    for queries, keys, values in blocks:
        layers = [
            layer.append(keys, values, num_tokens, _read_hidden(incremental, layer, keys, values)) for layer in layers
        ]
        rows = [attend_layer(queries * (layer.index + 1), layer, AttentionParams(HEAD_DIM**-0.5)) for layer in layers]
        num_tokens += keys.shape[1]
        if incremental.divides:
            ranked = list(map(incremental.rank, layers, rows))
            counts = incremental.divide([ranking for _, ranking in ranked], num_tokens)
            layers = [incremental.keep(*each, kept).layer for each, kept in zip(ranked, counts, strict=True)]
        else:
            layers = [incremental.step(*each).layer for each in zip(layers, rows, strict=True)]
        layers_after.append(layers)
    return layers_after


@lru_cache
def _split(tokens: int, size: int) -> list[Token]:
    """Return a random text in blocks of `size` tokens."""
    generator = torch.Generator().manual_seed(tokens)
    text = [torch.randn(heads, tokens, HEAD_DIM, generator=generator) for heads in (HEADS, KV_HEADS, KV_HEADS)]
    return list(zip(*(part.split(size, dim=1) for part in text), strict=True))


def _require_protected(policy: Policy, layer: LayerCache, num_tokens: int) -> None:
    protected = {
        *range(min(policy.sink_tokens, num_tokens)),
        *range(max(0, num_tokens - policy.protected_tail), num_tokens),
    }
    for head, positions in enumerate(_by_head(layer)):
        require(len(set(positions)) == len(positions), f"head {head} holds a position twice")
        lost = sorted(protected - set(positions))
        require(not lost, f"head {head} has lost protected positions {lost} after {num_tokens} tokens")


def _by_head(layer: LayerCache) -> list[list[int]]:
    return [positions.tolist() for positions in layer.positions.split(layer.lengths)]


SINGLE: tuple[Property, ...] = (
    budget_is_spent_and_protected_tokens_stay,
    budget_for_everything_keeps_the_dense_cache,
    samples_do_not_see_each_other,
    only_declared_inputs_are_read,
    later_tokens_change_nothing,
    skipped_tokens_only_stay,
    query_heads_can_be_stored_apart,
    official_variant_stays_near_the_budget,
)
"""Of a single eviction."""
EDGE_CASES: tuple[Property, ...] = (
    short_prompts_stay_whole,
    window_may_be_longer_than_the_prompt,
    one_candidate_may_be_left_out,
    no_candidate_may_stay,
    equal_pairs_are_chosen_the_same_way,
    saturated_attention_is_ranked,
    numbers_that_are_none_are_refused,
)
"""Of an eviction with odd input."""
INCREMENTAL: tuple[Property, ...] = (
    decoding_holds_the_capacity,
    short_prompts_grow_to_what_is_protected,
    an_answer_has_its_own_budget,
    blocks_hold_the_budget_and_do_not_look_ahead,
)
"""Of repeated evictions; a schedule that is refused with a reason has nothing to hold."""
PROPERTIES: tuple[Property, ...] = (*SINGLE, *EDGE_CASES, *INCREMENTAL)
