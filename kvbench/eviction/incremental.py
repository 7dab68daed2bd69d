"""Repeated eviction: after every few generated tokens, or after every block of the prompt.

`IncrementalEviction.step` evicts from one layer right after new tokens were read: their KV pairs stand behind the kept
ones, and their queries attended to exactly these KV pairs. Where heads or layers share a budget, every layer is ranked
(`rank`), and once all of them have read the block the budget is divided among what they hold (`divide`, `keep`).
`policy.state` says which numbers a KV pair carries from one eviction to the next, in `LayerCache.state`:

    accumulate  the sum of the group-reduced scores of all rows so far, or one sum per query head for a score that
                reduces them last (H2O: Zhang et al. 2023,
                https://arxiv.org/abs/2306.14048, algorithm 1); a score that reads no window accumulates nothing
    overwrite   nothing: only the queries of this step decide (TOVA: Oren et al. 2024, https://arxiv.org/abs/2401.06104)
    none        nothing, and no query is observed: only positions or keys decide (StreamingLLM)

Columns of a step are slots, not positions. With `slot_order=score` the survivors lie in the order of their last
ranking, as in CAKE's published code, so that pooling mixes neighbours in rank.
"""

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from operator import gt

import torch
from torch import Tensor

from kvbench.cache.kv_cache import POSITION, KVCache, LayerCache, ObservationWindow, dense_parts
from kvbench.cache.shapes import Kept, Lengths, Scores
from kvbench.eviction.allocation.allocation import Counts
from kvbench.eviction.budget import ThresholdBudget
from kvbench.eviction.evict import Decision, Eviction, keep_mask, rank_columns, scored, too_small
from kvbench.eviction.policy import Policy
from kvbench.eviction.pooling import reduce_group
from kvbench.eviction.ranking import Ranking, merged
from kvbench.eviction.scores.recency import Recency
from kvbench.eviction.scores.score import Score
from kvbench.support.errors import UserError, blaming
from kvbench.support.facts import EQUAL_LENGTHS, ONE_EVICTION, SCORED_BEFORE_ANSWER, SCORED_ONCE, Claim, check

ACCUMULATED = "score"
"""The name of the running score in `LayerCache.state`."""

RECORDED = "recorded"
"""The name in `LayerCache.state` of what a score made of the hidden state of a pair's token."""

Capacity = int | Mapping[int, tuple[int, ...]]
"""KV pairs that a cache head may hold after an eviction: one number for all, on average if they share a budget, or one
per head by layer index."""


@dataclass(frozen=True)
class LayerEviction:
    """An eviction from one layer: the layer after it and before it, whose slots were ranked."""

    layer: LayerCache
    before: LayerCache
    ranking: Ranking


@dataclass(frozen=True)
class IncrementalEviction:
    """Repeated eviction at a fixed capacity. Its state lies in the cache (`LayerCache.state`).

    decoding: whether these evictions come after the prompt's and use the policy for decoding. prompt: the tokens
    of a prompt whose pairs are never evicted again, beside which the answer has a budget of its own.

    Raises UserError for a capacity below the protected tokens, and for a state that does not fit the score.
    """

    eviction: Eviction
    capacity: Capacity
    decoding: bool = False
    prompt: int = 0

    def __post_init__(self) -> None:
        check_steps(self.eviction.policy, self.eviction.score)
        policy = self.eviction.policy
        if self.least_capacity < policy.protected:
            raise UserError(too_small(policy, f"a cache of {self.least_capacity} tokens"))

    @property
    def least_capacity(self) -> int:
        """KV pairs that every cache head may hold after an eviction."""
        return self.capacity if isinstance(self.capacity, int) else min(map(min, self.capacity.values()))

    def limits(self, layer: LayerCache) -> tuple[int, ...]:
        """KV pairs that each cache head of a layer may hold after an eviction."""
        return (self.capacity,) * layer.cache_heads if isinstance(self.capacity, int) else self.capacity[layer.index]

    def changes(self, layer: LayerCache) -> bool:
        """Return whether a step may change a layer: a head is full, or pairs carry running scores or an order."""
        return any(map(gt, layer.lengths, self.limits(layer))) or self.accumulates or self.policy.slot_order == "score"

    @property
    def policy(self) -> Policy:
        return self.eviction.policy.decoding if self.decoding else self.eviction.policy

    @property
    def score(self) -> Score:
        """Where whole heads or layers have been chosen, the others keep their protected tokens: nothing is scored."""
        return Recency() if self.policy.keeps_whole and not self.divides else self.eviction.score

    @property
    def divides(self) -> bool:
        """Whether the heads or layers share a budget, which is divided at the end of every block."""
        return isinstance(self.capacity, int) and not self.policy.divides_evenly

    @property
    def accumulates(self) -> bool:
        return self.eviction.policy.state == "accumulate" and self.score.inputs.window

    @property
    def reads_hidden(self) -> bool:
        """Whether pairs carry what the score makes of the hidden states of their tokens."""
        return self.score.inputs.hidden_states == "token"

    def start(self, index: int, query_heads: int, kv_heads: int, like: Tensor) -> LayerCache:
        """Return an empty layer for block-wise reading; `like` gives the dtype, device and size of a key."""
        cache_heads = query_heads if self.eviction.policy.layout == "query_heads" else kv_heads
        rows = query_heads // cache_heads if self.score.merges_last else 1
        names = [*(_sum_names(rows) if self.accumulates else ()), *([RECORDED] if self.reads_hidden else ())]
        return LayerCache(
            index=index,
            query_heads=query_heads,
            keys=like.new_empty(0, like.shape[-1]),
            values=like.new_empty(0, like.shape[-1]),
            positions=torch.empty(0, dtype=POSITION, device=like.device),
            offsets=(0,) * (cache_heads + 1),
            state={name: like.new_empty(0, dtype=torch.float) for name in names},
        )

    def after(self, cache: KVCache) -> "IncrementalEviction":
        """Return evictions from the answer to a prompt that was evicted from block by block: heads keep their sizes."""
        if not self.divides:
            return replace(self, decoding=True)
        assert isinstance(self.capacity, int)
        capacity = _capacities(self.eviction.policy, cache, cache.lengths, self.capacity)
        return replace(self, capacity=capacity, decoding=True)

    def with_answer_budget(self, cache: KVCache, pairs: int | None) -> "IncrementalEviction":
        """Return the evictions that leave all of `cache`, what is kept of a prompt, and the best `pairs` per head of
        the rest.

        Without a number these evictions themselves, whose budget is for both. Raises UserError for fewer pairs than
        the newest tokens that the policy protects.
        """
        if pairs is None:
            return self
        policy = self.eviction.policy.decoding
        check_answer_budget(policy, pairs)
        least = self.eviction.policy.protected
        capacity = _by_head(policy, cache, cache.lengths, lambda length: max(length + pairs, least))
        return replace(self, capacity=capacity, decoding=True, prompt=cache.num_tokens)

    def remember(self, full: KVCache, decision: Decision, smaller: KVCache) -> KVCache:
        """`smaller` (`full` after `decision`) with the state that later steps need."""
        policy, layers = self.eviction.policy, []
        for before, layer, kept in zip(full.evictable, smaller.evictable, decision.kept, strict=True):
            if self.accumulates:
                running = self.raw(before, before.observed(policy.rows(full.num_tokens)), kept.shape[0])
                by_head = running.unflatten(0, (kept.shape[0], -1)).unbind(1)
                names = _sum_names(len(by_head))
                layer = replace(layer, state={name: sums[kept] for name, sums in zip(names, by_head, strict=True)})
            if self.reads_hidden:
                recorded = before.recordings[self.score]
                recorded = recorded.repeat_interleave(len(kept) // len(recorded), dim=0)[kept]
                layer = replace(layer, state={**layer.state, RECORDED: recorded})
            layers.append(layer)
        if policy.slot_order == "score" and decision.rankings is not None and not decision.keeps_all(full.num_tokens):
            ranked = zip(layers, decision.kept, decision.rankings, strict=True)
            layers = [best_slots_first(layer, kept, ranking) for layer, kept, ranking in ranked]
        return smaller.with_evictable(layers)

    def step(
        self, layer: LayerCache, window: ObservationWindow | None, finite: list[Tensor] | None = None
    ) -> LayerEviction:
        """Update the state, and evict from every cache head down to its capacity, or what a threshold does not keep.

        window: the queries read since the last eviction, with their attention over the layer; None for a score that
        reads none. finite: a list for whether scores are, which the caller reads once the device has made them.
        Without one the host waits, and UserError is raised for a score that is not finite.
        """
        layer, ranking = self.rank(layer, window, finite)
        if isinstance(budget := self.eviction.budget, ThresholdBudget):
            counts = tuple(self.policy.chooses(ranking).counts_above(budget.score).tolist())
            return self.keep(layer, ranking, counts, window)
        heads = zip(ranking.available, self.limits(layer), layer.lengths, strict=True)
        counts = tuple(max(0, most - max(0, length - limit)) for most, limit, length in heads)
        return self.keep(layer, ranking, counts, window)

    def rank(
        self, layer: LayerCache, window: ObservationWindow | None, finite: list[Tensor] | None = None
    ) -> tuple[LayerCache, Ranking]:
        """Return a layer with its running scores, and one ranking of its slots, whatever its heads hold; arguments and
        errors as for `step`.
        """
        policy, rankings, sums = self.policy, dict[tuple[int, ...], Ranking](), dict[int, Tensor]()
        for heads, part in dense_parts(layer):
            score = self.score if len(heads) == layer.cache_heads else self.score.of_heads(heads)
            part_rows = window and window.of_heads(heads, layer.cache_heads).last(policy.rows(window.queries.shape[1]))
            if self.reads_hidden:
                part = replace(part, recordings={score: part.state[RECORDED].view(part.cache_heads, -1)})
            raw = self.raw(part, part_rows, part.cache_heads, score)
            if self.accumulates:
                by_head = raw.unflatten(0, (part.cache_heads, -1))
                names = _sum_names(by_head.shape[1])
                so_far = torch.stack([part.state[name].view(by_head[:, 0].shape) for name in names], dim=1)
                by_head = so_far + by_head
                raw = by_head.flatten(0, 1)
                sums |= zip(heads, by_head, strict=True)
            ranking = rank_columns(raw, part, policy, score)
            is_finite = ranking.scores.isfinite().all()
            if finite is not None:
                finite.append(is_finite)
            elif not is_finite:
                raise UserError(f"score {self.score.name} of layer {layer.index} is not finite: NaN or inf")
            rankings[heads] = self._after_prompt(ranking, part)
        if sums:
            accumulated = torch.cat([sums[head] for head in range(layer.cache_heads)], dim=1)
            named = zip(_sum_names(len(accumulated)), accumulated, strict=True)
            layer = replace(layer, state={**layer.state, **dict(named)})
        ranking = merged(rankings)
        if self.divides:
            observed, scores = window and window.last(policy.layer_rows(window.queries.shape[1])), ranking.real_scores
            with blaming("allocation", policy.layers):
                layer_weight = policy.layers.layer_weight(layer, observed, scores, policy.recent_tokens)
            ranking = replace(ranking, layer_weight=float(layer_weight))
        return layer, ranking

    def _after_prompt(self, ranking: Ranking, layer: LayerCache) -> Ranking:
        """Return the ranking of a dense layer with the pairs of the prompt, if they stay, before all others."""
        if not self.prompt:
            return ranking
        columns = slice(ranking.first, ranking.first + ranking.candidates)
        stays = layer.positions.view(layer.cache_heads, -1)[:, columns] < self.prompt
        return ranking.mapped(lambda scores: scores.masked_fill(stays, torch.inf))

    def divide(self, rankings: Sequence[Ranking], num_tokens: int) -> Counts:
        """Candidates that each cache head of each layer keeps after `num_tokens` tokens: all of them up to the budget.

        Beyond it, as of a prompt that ends here. What a layer or head no longer has of its share goes to the others.
        """
        assert isinstance(self.capacity, int)
        available = [ranking.available for ranking in rankings]
        if num_tokens <= self.capacity:
            return tuple(available)
        held = tuple(sum(heads) // len(heads) for heads in available)
        budget = replace(self.policy.budget_info(self.capacity, num_tokens), held=held)
        with blaming("allocation", self.policy.layers):
            return self.policy.layers.counts(rankings, self.policy.heads, budget)

    def keep(
        self, layer: LayerCache, ranking: Ranking, counts: tuple[int, ...], window: ObservationWindow | None = None
    ) -> LayerEviction:
        """Keep so many candidates of each cache head, and the protected pairs. window: what steps may read."""
        choosing = self.policy.chooses(ranking)
        kept = keep_mask(choosing, torch.tensor(counts), max(layer.lengths))
        heads = zip(layer.lengths, ranking.available, counts, strict=True)
        lengths = [length - most + count for length, most, count in heads]
        kept_layer = layer.select(kept, lengths)
        if counts != ranking.available:
            observed = window and window.last(self.policy.rows(window.queries.shape[1]))
            for step in self.policy.steps:
                with blaming("step", step):
                    kept_layer = step.change(layer, kept, kept_layer, observed, self.policy.variant)
        if self.policy.slot_order == "score":
            kept_layer = best_slots_first(kept_layer, kept, choosing)
        return LayerEviction(kept_layer, layer, ranking)

    def raw(
        self, layer: LayerCache, window: ObservationWindow | None, cache_heads: int, score: Score | None = None
    ) -> Scores:
        """Return scores of a dense layer, reduced over the group unless the score does that last; in a step this comes
        before pooling. score: of these heads, if they are not all.
        """
        policy, score = self.policy, score or self.score
        raw = scored(score, layer, window, policy.reduce)
        if (copies := cache_heads // raw.shape[0]) > 1:
            raw = raw.repeat_interleave(copies, dim=0)
        return reduce_group(raw, "none" if score.merges_last else policy.group_of(score.group), cache_heads)


def _sum_names(rows: int) -> list[str]:
    """Return the names of a pair's running scores in `LayerCache.state`: one for each row that its cache head has."""
    return [ACCUMULATED, *(f"{ACCUMULATED} {row}" for row in range(1, rows))]


def check_answer_budget(policy: Policy, pairs: int) -> None:
    """Raise UserError for a budget of the answer below the newest tokens that are protected.

    Before the prompt is known their number may not be (`policy.recent` is no number then): nothing is refused.
    """
    if isinstance(policy.recent, int) and pairs < policy.recent:
        raise UserError(
            f"schedule.answer_budget={pairs} cannot hold the {policy.recent} newest tokens that {policy.name} protects "
            f"(policy.recent={policy.recent}): use {policy.recent} or more, or protect fewer"
        )


def check_steps(policy: Policy, score: Score, blocks: bool = False) -> None:
    """Raise UserError for a policy and a score that cannot evict repeatedly, or not block by block.

    What no two settings decide is not among the claims.
    """
    facts = (ONE_EVICTION, SCORED_BEFORE_ANSWER, *((SCORED_ONCE, EQUAL_LENGTHS) if blocks else ()))
    fix = "schedule.prefill_block=null schedule.decode_every=null"
    later = Claim("the schedule", fix, breaks=dict.fromkeys(facts, "evicts again"))
    check((*policy.claims(), *score.claims(), later))
    reading = [step.setting for step in policy.reading_steps]
    where = f"policy.heads={policy.heads.kind} policy.layers={policy.layers.kind}"
    if policy.state == "none" and (score.inputs.window or reading):
        part = f"score {score.name}" if score.inputs.window else reading[0]
        raise UserError(
            f"policy.state=none, but {part} reads observed queries: use policy.state=overwrite or accumulate"
        )
    if blocks and reading and not policy.divides_evenly:
        raise UserError(
            f"{reading[0]} reads the queries of a block, but with {where} the budget is divided after them: use "
            "policy.heads=uniform policy.layers=uniform, or schedule.prefill_block=null"
        )
    if blocks and score.by_head and policy.layout == "query_heads":
        raise UserError(
            f"score {score.name} has a number for each KV head, but with policy.layout=query_heads later blocks evict "
            "from query heads: use policy.layout=kv_heads, or schedule.prefill_block=null"
        )
    heads_differ = not policy.heads.even or policy.layers.divides_heads
    if blocks and heads_differ and policy.group_of(score.group) == "layer_mean":
        raise UserError(
            f"{where} of {policy.name} cannot evict block by block: group=layer_mean is a mean over heads, which soon "
            "hold different tokens. Use policy.heads=uniform policy.layers=uniform, or schedule.prefill_block=null"
        )


def kept_of(cache: KVCache) -> tuple[Kept, ...]:
    """Return masks of the positions that each cache head of each evictable layer holds."""
    masks = []
    for layer in cache.evictable:
        kept = torch.zeros(layer.cache_heads, cache.num_tokens, dtype=torch.bool, device=layer.positions.device)
        for head, positions in enumerate(layer.positions.split(layer.lengths)):
            kept[head, positions] = True
        masks.append(kept)
    return tuple(masks)


def capacity_after(eviction: Eviction, cache: KVCache, decision: Decision) -> Capacity:
    """Return the capacity of each head for later evictions: the pairs that the eviction of the prompt left it.

    If nothing was evicted from the prompt, the capacity of every head is the budget: a shorter prompt grows to it, and
    one that the allocation kept entirely shrinks to it, as in CAKE's published code (row E1 of the disagreements).
    Where heads or layers are kept whole, those that hold every token have no limit. With a threshold: the protected.
    """
    if isinstance(eviction.budget, ThresholdBudget):
        return eviction.policy.protected
    return _capacities(eviction.policy, cache, decision.lengths, eviction.capacity(cache.num_tokens))


def _capacities(policy: Policy, cache: KVCache, lengths: Lengths, budget: int) -> Capacity:
    complete = bool((lengths == cache.num_tokens).all())
    return _by_head(policy, cache, lengths, lambda length: budget if complete else length)


def _by_head(policy: Policy, cache: KVCache, lengths: Lengths, limit: Callable[[int], int]) -> Capacity:
    """Return the limit of each head by its length; heads that are kept whole have none."""
    whole = cache.num_tokens if policy.keeps_whole else None
    heads = [tuple(sys.maxsize if length == whole else limit(length) for length in row) for row in lengths.tolist()]
    return {layer.index: row for layer, row in zip(cache.evictable, heads, strict=True)}


def best_slots_first(layer: LayerCache, kept: Kept, ranking: Ranking) -> LayerCache:
    """`layer` (the pairs marked in `kept`) in the order: sinks, ranked slots from best to worst, newest."""
    slots, candidates = kept.shape[1], ranking.candidates
    place = torch.arange(slots, device=kept.device).repeat(kept.shape[0], 1)
    place[:, ranking.first : ranking.first + candidates] = ranking.first + ranking.places
    by_head = [start + place[head, kept[head]].argsort() for head, start in enumerate(layer.offsets[:-1])]
    return layer.gather(torch.cat(by_head), layer.lengths)
