"""Compactor: how far the key of a pair lies off the others, and the attention that it gets from its neighbours.

Compactor (Chari, Van Durme 2025, https://arxiv.org/abs/2507.08143), as `LeverageScorePress`, `NonCausalAttnPress` and
`CompactorPress` of kvpress, which its first author wrote, or as in his compactor-vllm (`compression/compactor.py`).
All three scores are in standard deviations over the KV heads of a layer, and read the prompt in one pass.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Annotated, ClassVar

import torch
import torch.nn.functional as F

from kvbench.cache.kv_cache import LayerCache, ObservationWindow
from kvbench.cache.shapes import Dense, Rows, Scores
from kvbench.eviction.budget import Budget, FractionBudget, parse_budget
from kvbench.eviction.pooling import Pool
from kvbench.eviction.scores.random import generator
from kvbench.eviction.scores.score import AttentionCall, Reduce, Score, ScoreInputs
from kvbench.support.annotations import Help
from kvbench.support.errors import UserError
from kvbench.support.facts import SIZED_BUDGET, Claim

ROW_TILE = 64
"""Queries that the kernel of compactor-vllm handles at a time."""


Sketch = Annotated[int | None, Help("random directions that keys are projected to; null: keys as they are")]
Padded = Annotated[
    bool, Help("the last chunk is filled with keys of 0, as in kvpress; false: it is not, as in compactor-vllm")
]
"""Settings that `Compactor` shares with its two parts."""


@dataclass(frozen=True)
class _OfPrompt(Score):
    """Base class: the first `sink` and last `recent` tokens are left out, and score as much as the best pair.

    A prompt with fewer than two others has no statistics: all pairs score 0.
    """

    sink: Annotated[int, Help("first tokens that are left out and score as much as the best")] = 0
    recent: Annotated[int, Help("last tokens, likewise")] = 0
    inputs: ClassVar[ScoreInputs] = ScoreInputs(hidden_states="prompt", queries=True)
    signed: ClassVar[bool] = True

    def __post_init__(self) -> None:
        for field, least in (("sink", 0), ("recent", 0), ("span", 1), ("sketch", 1), ("chunk", 1)):
            if (number := getattr(self, field, None)) is not None and number < least:
                raise UserError(f"score.{field}={number}: a number of tokens or directions from {least}, e.g. 48")

    def __call__(self, layer: LayerCache, window: ObservationWindow | None, reduce: Reduce) -> Scores:
        return layer.recordings[self]

    def read_call(self, layer: LayerCache, call: AttentionCall) -> Scores:
        tokens = layer.lengths[0]
        if tokens < self.sink + self.recent + 2:
            return layer.keys.new_zeros(layer.cache_heads, tokens)
        compared = slice(self.sink, tokens - self.recent)
        scores = self._of_tokens(layer, call, compared)
        filled = scores.max().repeat(len(scores), tokens)
        filled[:, compared] = scores
        return filled

    def _of_tokens(self, layer: LayerCache, call: AttentionCall, compared: slice) -> Scores:
        """Return the scores of these tokens alone."""
        raise NotImplementedError


@dataclass(frozen=True)
class Leverage(_OfPrompt):
    """x_j.(X^T X + ridge I)^-1 x_j of keys before their rotation, less their mean, in `sketch` random directions.

    sketch: None for the keys themselves. span: tokens that are compared with each other, from the first on; None: all.
    """

    sketch: Sketch = 48
    ridge: Annotated[float, Help("J5: as in kvpress; compactor-vllm: 0.005")] = 0.01
    span: Annotated[
        int | None, Help("J3: all tokens are compared, as in kvpress; 512: so many in a row, as in compactor-vllm")
    ] = None
    seed: Annotated[int, Help("of the random directions")] = 0
    name: str = "leverage"

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.ridge > 0:
            raise UserError(f"score.ridge={self.ridge}: more than 0 is added to the diagonal, e.g. 0.01")

    def _of_tokens(self, layer: LayerCache, call: AttentionCall, compared: slice) -> Scores:
        keys, heads = layer.dense[0][:, compared], []
        for head, directions in enumerate(self.directions(layer.index, *keys.shape[::2])):
            plain = call.unrotate(keys[head : head + 1], self.sink)[0].double() @ directions.to(keys.device)
            heads.append([self._leverage(part) for part in plain.split(self.span or len(plain))])
        return torch.cat([standardized(torch.stack(span)) for span in zip(*heads, strict=True)], dim=1)

    def directions(self, layer: int, kv_heads: int, head_dim: int) -> torch.Tensor:
        """Return the sketch of a layer, float64 [kv_heads, head_dim, sketch]; lengths are kept on average."""
        if self.sketch is None:
            return torch.eye(head_dim).double().expand(kv_heads, -1, -1)
        drawn = torch.randn(kv_heads, head_dim, self.sketch, generator=generator(self.seed, layer, self.sketch))
        return drawn.double() / self.sketch**0.5

    def _leverage(self, rows: torch.Tensor) -> torch.Tensor:
        rows = rows - rows.mean(dim=0)
        factor = torch.linalg.cholesky_ex(rows.mT @ rows + self.ridge * torch.eye(rows.shape[1]).to(rows))[0]
        return torch.linalg.solve_triangular(factor, rows.mT, upper=False).square().sum(dim=0)


@dataclass(frozen=True)
class NonCausal(_OfPrompt):
    """sum_i A_ij |v_j| over all queries i of the chunk of j, mean of the query heads; A as softmax_j of q_i.k_j, not
    scaled, over the keys of the chunk; then an average pool of 3.

    Chunks have `chunk` tokens. The missing queries of the last one count as if each attended to all of it alike.
    padded: its missing keys take part with a logit of 0, and all queries are missing that it lacks, as in kvpress;
    False: no keys, and the queries that are missing from a multiple of 64, as in compactor-vllm. values: False leaves
    out |v_j| and the pool.
    """

    chunk: Annotated[int, Help("J1: as in kvpress; compactor-vllm: 128")] = 256
    padded: Padded = True
    values: Annotated[
        bool,
        Help("J4: times the norm of the value, then an average pool of 3, as in kvpress; false: as in compactor-vllm"),
    ] = True
    name: str = "non_causal"

    def _of_tokens(self, layer: LayerCache, call: AttentionCall, compared: slice) -> Scores:
        keys, values = (part[:, compared] for part in layer.dense)
        assert call.queries is not None
        parts = zip(call.queries[:, compared].split(self.chunk, 1), keys.split(self.chunk, 1), strict=True)
        scores = torch.cat([self._received(*part) for part in parts], dim=1)
        if self.values:
            scores = Pool("avg", 3)(scores * values.float().norm(dim=-1))
        return standardized(scores)

    def _received(self, queries: Rows, keys: Dense) -> Scores:
        kv_heads, tokens, _ = keys.shape
        logits = queries.float().unflatten(0, (kv_heads, -1)) @ keys.float().mT[:, None]
        weights = F.pad(logits, (0, self.chunk - tokens if self.padded else 0)).softmax(dim=-1)[..., :tokens]
        missing = self.chunk - tokens if self.padded else -tokens % ROW_TILE
        return weights.sum(dim=2).mean(dim=1) + missing / self.chunk


@dataclass(frozen=True)
class Compactor(_OfPrompt):
    """blending x leverage + attention of the chunk, by `Leverage` and `NonCausal`.

    blending: None for the evicted part of the prompt, which depends on the cell's `budget`.
    """

    only_if_stated: ClassVar[tuple[str, ...]] = ("budget",)
    sink: Annotated[
        int,
        Help("first tokens that are left out and score as much as the best; compactor-vllm: 0, but policy.sink=16"),
    ] = 8
    recent: Annotated[int, Help("last tokens, likewise; compactor-vllm: 0, but policy.recent=64")] = 4
    sketch: Sketch = 48
    ridge: Annotated[float, Help("J5: as in kvpress; compactor-vllm: 0.005")] = 0.01
    span: Annotated[
        int | None, Help("J3: all keys are compared, as in kvpress; 512: so many in a row, as in compactor-vllm")
    ] = None
    chunk: Annotated[int, Help("J1: tokens that attend to each other, as in kvpress; compactor-vllm: 128")] = 256
    padded: Padded = True
    values: Annotated[
        bool,
        Help(
            "J4: attention times the norm of the value, then an average pool of 3, as in kvpress; compactor-vllm: false"
        ),
    ] = True
    blending: Annotated[
        float | None,
        Help("J2: the weight of the leverage: the part that is evicted, as in kvpress; compactor-vllm: 0.5"),
    ] = None
    seed: Annotated[int, Help("of the random directions")] = 0
    budget: str | None = None
    name: str = "compactor"

    def __post_init__(self) -> None:
        super().__post_init__()
        Leverage(ridge=self.ridge)

    @cached_property
    def recorded(self) -> tuple[Score, ...]:  # type: ignore[override]
        left_out = self.sink, self.recent
        leverage = Leverage(*left_out, self.sketch, self.ridge, self.span, self.seed)
        return leverage, NonCausal(*left_out, self.chunk, self.padded, self.values)

    def claims(self) -> Iterator[Claim]:
        yield from super().claims()
        if self.budget is not None:
            needs = {SIZED_BUDGET: "weighs its two parts by the budget"}
            yield Claim(f"score {self.name}", "score.blending=0.5, or another number", needs)

    def of_budget(self, budget: Budget) -> Score:
        return self if self.blending is not None else replace(self, budget=str(budget))

    def __call__(self, layer: LayerCache, window: ObservationWindow | None, reduce: Reduce) -> Scores:
        leverage, attention = (layer.recordings[part] for part in self.recorded)
        return self._blending(layer.lengths[0]) * leverage + attention

    def _blending(self, tokens: int) -> float:
        if self.blending is not None or self.budget is None:
            return self.blending or 0.0
        budget = parse_budget(self.budget)
        kept = float(budget.share) if isinstance(budget, FractionBudget) else budget.of(tokens) / tokens
        return max(0.0, 1 - kept)


def standardized(scores: torch.Tensor) -> Scores:
    """Return scores of the KV heads of a layer less their mean, over their standard deviation, in float32."""
    return ((scores - scores.mean()) / scores.std().clamp_min(1e-6)).float()
