"""LU-KV's budget tables: what each head can do without, by the attention of answers to what a score ranks low.

LU-KV (Tang et al. 2026, https://arxiv.org/abs/2602.08585), as `step1_llama.py` and `step2_compute_curve.py` of its code
find a table: the utility of a pair is the largest weight that any token of an answer gives it, times the norm of its
projected value over the layer's; a head evicts by its score; heads give up the least utility first, on the
convex hull of what each gives up. Answers here are greedy; its code draws them at a temperature of 0.7.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from scipy.optimize import isotonic_regression
from torch import Tensor

from kvbench.cache.attention import AttentionParams, strongest
from kvbench.cache.kv_cache import LayerCache
from kvbench.eviction.scores.host import projected_norms
from kvbench.extras.heads.calibration import loaded, prompts_of
from kvbench.extras.probes.scene import Scene
from kvbench.models import bridge
from kvbench.models.prompts.tokens import ends
from kvbench.models.repeat import FrozenAttentionCache
from kvbench.run.evict_cell import eviction_of
from kvbench.run.plan import Plan
from kvbench.run.prefill_job import prefill
from kvbench.support.errors import UserError

Table = np.ndarray[Any, np.dtype[np.float64]]


@dataclass(frozen=True)
class BudgetTable:
    """The part of each KV head that is evicted at budgets of 0.99, 0.98, ... 0.01; `model`: by name."""

    parts: Float[np.ndarray, "99 layers kv_heads"]
    model: str

    @property
    def shape(self) -> tuple[int, ...]:
        """Layers and KV heads."""
        return self.parts.shape[1:]

    def write(self, path: Path) -> None:
        """Write the parts alone, in .npy format."""
        np.save(path, self.parts)


def budget_table(plan: Plan, on_read: Callable[[int], None] = lambda prompts: None) -> BudgetTable:
    """Return the mean of the tables of the prompts of a plan, whose cells have one model, score and policy.

    `on_read` is called with the number of prompts read.

    Raises UserError or MissingFile for a model or a sample that cannot be run, and for an answer of one token.
    """
    (_, model), total, read = loaded(plan), np.zeros(()), 0
    for read, (prompt, cell, new_tokens) in enumerate(prompts_of(plan, model), 1):
        scene = Scene(model, prompt, prefill(model, {0: prompt}, [cell]))
        ranked = [ranking.scores.double().cpu().numpy() for ranking in scene.rank(cell)]
        first = eviction_of(cell, prompt).policy.sink_tokens
        stop = ends(model.tokenizer, cell.task, model.stop)
        utility = np.stack(utilities(scene, stop, new_tokens))[..., first : first + ranked[0].shape[1]]
        total = total + evicted_parts(utility, np.stack(ranked), scene.tokens)
        on_read(read)
    return BudgetTable(total / read, plan.cells[0].model.label)


def evicted_parts(utility: Table, scores: Table, tokens: int) -> Table:
    """Return the table of one prompt of `tokens` tokens. utility, scores: of the pairs that are not protected, [layers,
    KV heads, pairs]. A head keeps at least a hundredth of the tokens, and the protected ones.
    """
    layers, heads, pairs = scores.shape
    given_up = np.take_along_axis(utility, scores.argsort(axis=2), axis=2).reshape(-1, pairs)
    most = tokens - max(round(tokens / 100), tokens - pairs)
    hull = np.stack([isotonic_regression(head).x[:most] for head in given_up])  # the slopes of the sums' lower hull
    owners = hull.argsort(axis=None, kind="stable") // most
    goals = (round(part / 100 * layers * heads * tokens) for part in range(1, 100))
    counts = [np.bincount(owners[:goal], minlength=layers * heads) for goal in goals]
    return np.stack(counts).reshape(99, layers, heads) / tokens


@torch.inference_mode()
def utilities(scene: Scene, stop: frozenset[int], new_tokens: int) -> list[Table]:
    """Return the utility of every pair of each layer, [KV heads, tokens], to the answer of the full cache."""
    engine, cache, question = scene.model.engine, scene.shared.cache, list(scene.prompt.question)
    batch = engine.batch([cache], len(question) + new_tokens)
    on_cpu = torch.tensor(question) if question else None
    (answer,) = engine.generate(scene.reading.prefilled, batch, stop, question=on_cpu)
    if len(answer.ids) < 2:
        raise UserError(
            "an answer of one token attends to nothing: use a task with longer answers, or raise task.max_new_tokens"
        )
    weights: dict[int, Tensor] = {}

    def record(layer: LayerCache, queries: Tensor, keys: Tensor, values: Tensor, rule: AttentionParams) -> None:
        """Keep the largest weight that the tokens of the answer give each pair of the cache."""
        if layer.evictable:
            cached = layer.dense[0]
            every_key, columns = torch.cat((cached, keys), dim=1), slice(0, cached.shape[1])
            weights[layer.index] = strongest(queries[:, -(len(answer.ids) - 1) :], every_key, columns, rule)

    reader = FrozenAttentionCache(cache, engine.max_length, engine.attend, record)
    ids = torch.tensor([[*question, *answer.ids[:-1]]], device=engine.device)
    bridge.forward(engine.model, ids, cache.num_tokens, reader)
    utility = []
    for layer in cache.evictable:
        projected = replace(layer, projections={"output": scene.projection(layer)})
        norms = projected_norms(projected, scene.tokens, 2)
        by_head = weights[layer.index] * norms / norms.sum()
        utility.append(by_head.view(layer.cache_heads, -1, scene.tokens).amax(dim=1).double().cpu().numpy())
    return utility
