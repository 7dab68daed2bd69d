"""One eviction: score every KV pair, rank them, divide the budget, keep the best.

    smaller = Eviction(policy, score, TokenBudget(1024))(cache)

The steps are functions of arrays that can be called one by one: `raw_scores` -> `rank_columns` (pooling and reduction)
-> `Layers.counts` (KV pairs per cache head) -> `keep_mask` (which ones) -> `compact` (a smaller cache). Nothing here
knows models, tasks or settings.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any, get_args

import torch
from jaxtyping import Int
from torch import Tensor

from kvbench.cache.kv_cache import KVCache, LayerCache, ObservationWindow, compact
from kvbench.cache.shapes import Kept, Lengths, Ranked, Scores
from kvbench.eviction.allocation.allocation import Layers, UniformLayers
from kvbench.eviction.budget import Budget, ThresholdBudget
from kvbench.eviction.policy import Policy
from kvbench.eviction.pooling import Group, Pool, Weight, pool_and_reduce, reduce_group
from kvbench.eviction.ranking import Ranking, Rankings, in_larger_stacks
from kvbench.eviction.scores.score import Reduce, Score, is_separate
from kvbench.eviction.step import Step
from kvbench.support.errors import UserError, blaming, named_part
from kvbench.support.facts import check

WITHOUT_WINDOW = "; a score that reads `window` declares inputs = ScoreInputs(window=True)"


@dataclass(frozen=True)
class Decision:
    """The kept set: masks and lengths by evictable layer and cache head; `rankings` unless everything is kept."""

    kept: tuple[Kept, ...]
    lengths: Lengths
    rankings: tuple[Ranking, ...] | None

    def keeps_all(self, num_tokens: int) -> bool:
        """Return whether every head keeps all of `num_tokens` tokens."""
        return bool((self.lengths == num_tokens).all())


@dataclass(frozen=True)
class Eviction:
    """An eviction method with its budget: call it on a full KV cache to get a smaller copy. It has no state.

    Raises UserError for a policy and a score that cannot be combined.
    """

    policy: Policy
    score: Score
    budget: Budget

    def __post_init__(self) -> None:
        check_host(self.policy, self.score)

    def __call__(self, cache: KVCache) -> KVCache:
        """Evict from a cache that holds every token. Returns `cache` itself if nothing changes."""
        return self.evict(cache, self.decide(cache))

    def evict(self, cache: KVCache, decision: Decision) -> KVCache:
        """Carry out a decision: a compacted copy, or `cache` itself if nothing changes."""
        is_whole = decision.rankings is None and self.policy.layout == "kv_heads"
        smaller = cache if is_whole else compact(cache, decision.kept, decision.lengths)
        for step in self.policy.steps:
            if step.always or not is_whole:
                pairs = zip(cache.evictable, decision.kept, smaller.evictable, strict=True)
                smaller = smaller.with_evictable([self._changed(step, *each) for each in pairs])
        return smaller

    def _changed(self, step: Step, before: LayerCache, kept: Kept, after: LayerCache) -> LayerCache:
        """Return a dense layer after a step, up to the end of the window."""
        policy, stop = self.policy, before.lengths[0] - self.policy.skipped
        before = before.without_newest(policy.skipped)
        rows = before.observed(step.rows(policy.rows(stop), stop)) if step.reads_rows else None
        with blaming("step", step):
            return step.change(before, kept[:, :stop], after, rows, policy.variant)

    def decide(self, cache: KVCache, rankings: Sequence[Ranking] | None = None) -> Decision:
        """Choose what to keep. `rankings`: the result of `rank`, which does not depend on the budget, to reuse it.

        Raises UserError as `check` does, and for NaN or inf in the cache.
        """
        self.check(cache)
        if self.keeps_all(cache):
            heads = [cache_heads(layer, self.policy) for layer in cache.evictable]
            kept = tuple(torch.ones(count, cache.num_tokens, dtype=torch.bool) for count in heads)
            return Decision(kept, torch.full((len(heads), max(heads, default=1)), cache.num_tokens), None)
        rankings = self.rank(cache) if rankings is None else rankings
        units = self.policy.units(cache.num_tokens)
        if isinstance(rankings, Rankings) and self._marks_stacks:
            stacks = [self.policy.chooses(stack) for stack in rankings.stacks]
            counts, kept = self._counts(rankings, stacks, cache.num_tokens), []
            of_stacks = counts.split([stack.layers for stack in stacks])
            for stack, of_layers in zip(stacks, of_stacks, strict=True):
                marked = keep_mask(stack, of_layers.flatten(), units.number)
                kept += marked.unflatten(0, (stack.layers, -1)).unbind()
            return Decision(tuple(kept), units.lengths(counts, kept), rankings)
        rankings = tuple(rankings)
        by_unit = [units.ranking(ranking) for ranking in rankings]
        choices = [units.ranking(chosen) for chosen in self.policy.choices(rankings)]
        counts = self._counts(by_unit, choices, cache.num_tokens)
        pairs = zip(choices, counts, strict=True)
        kept = tuple(units.kept_tokens(keep_mask(chosen, of_layer, units.number)) for chosen, of_layer in pairs)
        return Decision(kept, units.lengths(counts, kept), rankings)

    def _counts(
        self, rankings: Sequence[Ranking], choices: Sequence[Ranking], tokens: int
    ) -> Int[Tensor, "layers cache_heads"]:
        """Candidates that each cache head keeps: its share of the budget, or what reaches the threshold.

        choices: what heads choose from, of one or several layers each.
        """
        if isinstance(self.budget, ThresholdBudget):
            reached = [each.counts_above(self.budget.score).view(each.layers, -1) for each in choices]
            return torch.cat([part.to(reached[0].device, non_blocking=True) for part in reached]).cpu()
        budget = self.policy.budget_info(self.pairs(tokens), tokens)
        with blaming("allocation", self.policy.layers):
            return torch.tensor(self.policy.layers.counts(rankings, self.policy.heads, budget))

    @property
    def _marks_stacks(self) -> bool:
        """Whether every cache head chooses in a stack of layers as in one layer."""
        return self.policy.heads.ragged and all(step.renumbers for step in self.policy.steps)

    def check(self, cache: KVCache) -> None:
        """Raise UserError for a cache that is not full or not evictable, or a budget below the protected tokens."""
        if (cache.lengths != cache.num_tokens).any():
            raise UserError(
                f"the cache holds {cache.pairs} KV pairs after {cache.num_tokens} tokens: it was evicted from "
                "before; give a full cache"
            )
        if not cache.evictable and not self.keeps_all(cache):
            raise UserError(
                f"nothing can be evicted: all {cache.local_layers} layers have a sliding window, which is kept as it "
                "is; use policy=full, or a model.max_length no longer than any window"
            )
        pairs, outside = self.pairs(cache.num_tokens), self.policy.unbudgeted
        share = f"budget={self.budget} is {pairs - outside} of {cache.num_tokens - outside} tokens and"
        if pairs < min(self.policy.protected, cache.num_tokens):
            raise UserError(too_small(self.policy, share))
        if not self.keeps_all(cache):
            self.policy.units(cache.num_tokens).check(pairs, self.policy.name, share)

    def pairs(self, num_tokens: int) -> int:
        """KV pairs per cache head that are kept of `num_tokens` tokens, protected ones included."""
        return self.policy.pairs(self.budget, num_tokens)

    def capacity(self, num_tokens: int, reserved: int = 0) -> int:
        """KV pairs that a cache head may hold after later evictions: the pairs of `num_tokens` tokens, less the
        reserved.

        A budget that holds every token of a text shorter than what is protected grows to the protected tokens.
        """
        pairs = self.pairs(num_tokens)
        return max(pairs - reserved, self.policy.protected) if pairs >= num_tokens else pairs - reserved

    def keeps_all(self, cache: KVCache) -> bool:
        """Return whether nothing is scored: the budget holds every token, and the policy keeps them then."""
        policy, tokens = self.policy, cache.num_tokens
        divides = policy.variant == "official" and policy.layers.official_divides_all and tokens > policy.protected
        return policy.keeps_all(self.budget, tokens) and not divides

    def rank(self, cache: KVCache) -> tuple[Ranking, ...]:
        """Score, pool and order the candidates of every evictable layer."""
        (rankings,) = rank_together(cache, (self.policy,), self.score)
        return rankings


def rank_together(cache: KVCache, policies: Sequence[Policy], score: Score) -> list[Rankings]:
    """Return the rankings of several policies with equal raw scores (`scores_alike`): each layer is scored only once,
    without the newest tokens that their windows skip.

    A score that reads every head by itself takes a stack of layers at once. Raises UserError for NaN or inf in the
    cache or in a score, read from the device once all layers are ranked, as layer weights are.
    """
    layers = cache.stacked if is_separate(score) else cache.evictable
    by_policy: list[list[Ranking]] = [[] for _ in policies]
    finite, members, skipped = list[Tensor](), iter(cache.evictable), policies[0].skipped
    weights: list[list[float | Tensor]] = [[] for _ in policies]
    for layer in layers:
        older, own = layer.without_newest(skipped), list(islice(members, layer.layers))
        raw = raw_scores(older, policies[0], score)
        for policy, rankings, of_policy in zip(policies, by_policy, weights, strict=True):
            rankings.append(rank_columns(raw, older, policy, score))
            if not weighs_no_layer(policy):
                parts = [older] if layer.layers == 1 else [part.without_newest(skipped) for part in own]
                of_policy += _layer_weights(parts, policy, rankings[-1])
        ranked = (rankings[-1].scores.isfinite().all() for rankings in by_policy)
        finite.append(torch.stack((*layer.finite, *ranked)))
    device = finite[0].device if finite else None  # layers may lie on several GPUs
    flags = [part.to(device, non_blocking=True) for part in finite]
    for layer, (keys, values, *scores) in zip(layers, torch.stack(flags).tolist() if flags else [], strict=True):
        if keys and values and all(scores):
            continue
        if layer.layers > 1:  # which of them, and for which policy, is found layer by layer
            return rank_together(replace(cache, stacks=()), policies, score)
        if not (keys and values):
            where = "values" if keys else "keys"
            raise UserError(
                f"layer {layer.index} holds NaN or inf in its {where}: scores cannot be ranked; try model.dtype=float32"
            )
        where = f"score {score.name} of layer {layer.index}"
        raise UserError(f"{where} is not finite: NaN or inf in the observed queries")
    read = [_read(of_policy) for of_policy in weights]
    return [Rankings(in_larger_stacks(by_policy.pop(0)), of_policy) for of_policy in read]


def scores_alike(policy: Policy, score: Score, tokens: int) -> tuple[int, tuple[int, str] | None]:
    """Return a key that is equal for policies with equal raw scores: the number of newest tokens that are skipped, the
    number of observed rows, and how they are merged.
    """
    return policy.skipped, (policy.rows(tokens - policy.skipped), policy.reduce) if score.inputs.window else None


def ranks_alike(policy: Policy, score: Score) -> Policy:
    """Return a key that is equal for policies with equal rankings: the policy with defaults for all that rankings
    ignore.
    """
    return Policy(
        name="",
        window=policy.window if reads_rows(policy, score) else 1,
        window_skips=policy.window_skips,
        reduce=policy.reduce,
        pool=policy.pool,
        group=policy.group,
        order=policy.order,
        sink=policy.sink,
        recent=policy.recent,
        layers=UniformLayers() if weighs_no_layer(policy) else policy.layers,
        layout=policy.layout,
    )


def weighs_no_layer(policy: Policy) -> bool:
    """Return whether all layers have the same weight for the allocation."""
    return type(policy.layers).layer_weight is Layers.layer_weight


def raw_scores(layer: LayerCache, policy: Policy, score: Score) -> Scores:
    """Return the score of every column of a dense layer, before pooling: a row per query head or cache head.

    The layer ends where the window ends, as for `rank_layer` and `rank_columns`. Raises UserError as `scored`.
    """
    raw = layer.recordings.get((score, policy.reduce, policy.skipped)) if policy.window == "all" else None
    if raw is None:
        window = layer.observed(policy.rows(layer.lengths[0])) if score.inputs.window else None
        raw = scored(score, layer, window, policy.reduce)
    return raw


def scored(score: Score, layer: LayerCache, window: ObservationWindow | None, reduce: Reduce) -> Scores:
    """Return what a score makes of a dense layer. Raises UserError if that is no floating-point tensor of the layer's
    device and of an allowed shape, and Fault for what else the score raises.
    """
    with blaming("score", score, "" if score.inputs.window else WITHOUT_WINDOW):
        raw: Any = score(layer, window, reduce)
    allowed = {(heads, layer.lengths[0]) for heads in (layer.query_heads, layer.cache_heads)}
    fault, expected = "", " or ".join(str(list(shape)) for shape in sorted(allowed))
    if not isinstance(raw, Tensor):
        fault, expected = f"is of type {type(raw).__name__}", "a torch.Tensor"
    elif not raw.is_floating_point():
        fault, expected = f"has dtype {raw.dtype}", "torch.float32"
    elif raw.device != layer.keys.device:
        fault, expected = f"is on device {raw.device}", str(layer.keys.device)
    elif tuple(raw.shape) not in allowed:
        fault = f"has shape {list(raw.shape)}"
    if fault:
        raise UserError(f"{named_part('score', score)} of layer {layer.index} {fault}, expected {expected}")
    return raw


def rank_layer(layer: LayerCache, policy: Policy, score: Score, raw: Scores) -> Ranking:
    """Return the ranking of a dense layer, with its layer weight."""
    ranking = rank_columns(raw, layer, policy, score)
    (layer_weight,) = _layer_weights([layer], policy, ranking)
    return replace(ranking, layer_weight=float(layer_weight))


def _layer_weights(layers: Sequence[LayerCache], policy: Policy, ranking: Ranking) -> list[float | Tensor]:
    """Return the weights of dense layers by their ranking, of a stack if they are several."""
    scores, weights = ranking.scores.unflatten(0, (len(layers), -1)), list[float | Tensor]()
    for layer, of_layer in zip(layers, scores, strict=True):
        rows = layer.observed(policy.layer_rows(layer.lengths[0])) if policy.layers.reads_rows else None
        with blaming("allocation", policy.layers):
            weights.append(policy.layers.layer_weight(layer, rows, of_layer, policy.recent_tokens))
    return weights


def _read(numbers: Sequence[float | Tensor]) -> list[float]:
    """Return numbers, with one wait for those on devices."""
    on_device = [number for number in numbers if isinstance(number, Tensor)]
    if not on_device:
        return [float(number) for number in numbers]
    read = torch.stack([number.to(on_device[0].device, non_blocking=True) for number in on_device]).tolist()
    return [read.pop(0) if isinstance(number, Tensor) else number for number in numbers]


def rank_columns(raw: Scores, layer: LayerCache, policy: Policy, score: Score) -> Ranking:
    """Pool and reduce the raw scores of a dense layer, and leave out the protected columns.

    The newest protected ones are not pooled with others unless `score.pools_protected`. A layer may have no candidates.
    """
    stop = layer.lengths[0] - policy.recent_tokens
    if stop <= policy.sink_tokens:
        empty = raw.new_empty(cache_heads(layer, policy), 0)
        return Ranking(empty, empty, min(policy.sink_tokens, layer.lengths[0]), layers=layer.layers)
    columns = raw if score.pools_protected else raw[:, :stop]
    columns = columns.repeat_interleave(max(1, cache_heads(layer, policy) // columns.shape[0]), dim=0)
    with blaming("score", score):
        weight = score.weigh(layer, policy.recent_tokens)
        scores = _shaped(columns, policy.pool, weight, layer, policy, score)[:, :stop]
        unpooled = scores if policy.pool is None else _shaped(columns, None, weight, layer, policy, score)[:, :stop]
        second = score.second_stage(scores, layer, policy.protected)
    ranking = Ranking(scores, unpooled, policy.sink_tokens, second=second, layers=layer.layers)
    return ranking.mapped(lambda scores: scores[:, policy.sink_tokens :])


def _shaped(
    columns: Scores, pool: Pool | None, weight: Weight | None, layer: LayerCache, policy: Policy, score: Score
) -> Ranked:
    """Raw scores pooled, reduced to cache heads, and refined; or refined before they are reduced (`merges_last`)."""
    group = policy.group_of(score.group)
    first = "none" if score.merges_last else group
    heads = layer.cache_heads
    refined = score.refine(pool_and_reduce(columns, pool, first, policy.order, heads, weight, layer.layers), layer)
    return reduce_group(refined, group, heads, layer.layers) if score.merges_last else refined


def keep_mask(ranking: Ranking, counts: Int[Tensor, "cache_heads"], tokens: int) -> Kept:
    """Return True for the best `counts` candidates of each cache head and for every protected column.

    tokens: columns, the pairs of the longest head. Columns beyond the pairs of a shorter one are False.
    """
    device = ranking.scores.device
    limits = counts.int().to(device, non_blocking=True)[:, None]
    kept = torch.ones(ranking.scores.shape[0], tokens, dtype=torch.bool, device=device)
    columns = kept[:, ranking.first : ranking.first + ranking.candidates]
    if ranking.second is None:  # no scatter for each budget, which a GPU sorts for
        torch.lt(ranking.places, limits, out=columns)
    else:
        chosen = torch.arange(ranking.candidates, device=device) < limits
        columns.scatter_(1, ranking.order_for(counts), chosen)
    if ranking.by_head is None:
        return kept
    column = torch.arange(tokens, device=device)
    newest = ranking.first + torch.tensor(ranking.by_head).to(device, non_blocking=True)[:, None]
    return (kept | (column >= newest)) & (column < newest + tokens - ranking.first - ranking.candidates)


def cache_heads(layer: LayerCache, policy: Policy) -> int:
    """Heads that the policy caches, for a layer that caches KV heads."""
    return layer.query_heads if policy.layout == "query_heads" else layer.cache_heads


def reads_rows(policy: Policy, score: Score) -> bool:
    """Return whether the score or the layer allocation reads the observation window."""
    return score.inputs.window or policy.layers.reads_rows


def check_host(policy: Policy, score: Score) -> None:
    """Raise UserError, with the reason, for a policy and a score that cannot be combined."""
    if score.group not in get_args(Group):
        allowed = ", ".join(get_args(Group))
        raise UserError(f"{named_part('score', score)} has group={score.group!r}; allowed: {allowed}")
    policy.layers.check()
    check((*policy.claims(), *score.claims()))
    # the window of the prompt alone: an answer gives layers no new weights
    if policy.window == 1 and max(policy.layers.least_rows, score.least_rows) > 1:
        subject = f"score {score.name}" if score.least_rows > 1 else f"policy.layers={policy.layers.kind}"
        raise UserError(f"policy.window=1: {subject} takes a variance over the observed rows; use 2 or more, e.g. 32")


def too_small(policy: Policy, subject: str) -> str:
    """Return the message for a budget below the protected tokens that it has to hold."""
    names = ("sink", "recent") if policy.budget_span == "prompt" else ("recent",)
    names += ("window_skips",) if policy.window_skips else ()
    values = ", ".join(f"policy.{name}={getattr(policy, name)}" for name in names)
    least = policy.budgeted
    advice = f"raise the budget to at least {least} tokens or protect fewer"
    if "sink" in names and policy.sink:
        advice += ", or use policy.budget_span=context, which does not count the first ones"
    return f"{subject} cannot hold the {least} protected tokens of {policy.name} ({values}): {advice}"
