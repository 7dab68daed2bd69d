"""Scores of whole heads, computed once on samples of a task and kept in a file: KVzip's context-independent mode.

KVzip (Kim et al. 2025, https://arxiv.org/abs/2505.23416), `head` of attention/kvcache.py in its code: the score of a
head is the largest score of any pair of any calibration context.
"""

from collections.abc import Callable
from dataclasses import asdict

import torch
from jaxtyping import Float
from torch import Tensor

from kvbench.eviction.pooling import reduce_group
from kvbench.eviction.scores.head_table import HeadFile
from kvbench.eviction.scores.score import Score
from kvbench.models.loading.load import LoadedModel, ModelInfo, load, model_info
from kvbench.models.prompts.prompt import Prompt
from kvbench.models.repeat import passes
from kvbench.run.plan import Cell, Plan
from kvbench.run.prefill_job import prompt_of
from kvbench.run.runner import dry_run, samples_of
from kvbench.support.errors import UserError
from kvbench.tasks.task import InvalidSample

HeadScores = Float[Tensor, "layers kv_heads"]


def calibrate(plan: Plan, done: Callable[[int], None] = lambda prompts: None) -> HeadFile:
    """The table of the one model of a plan, whose cells have one score that repeats; each context is prefilled once.

    `done` is called with the number of prompts read. Layers with a sliding window are never evicted from and score 0.
    Raises UserError or MissingFile for a model or a sample that cannot be run.
    """
    cell = plan.cells[0]
    info = model_info(cell.model)
    for group in plan.groups:
        dry_run(info, group)
    model = load(info)
    table, prompts = torch.zeros(info.heads), 0
    for group in plan.groups:
        first = {min(job.missing) for job in group.jobs}
        for sample in samples_of(info.tokenizer, group):
            if isinstance(sample, InvalidSample):
                raise UserError(f"{group.task.name}: sample {sample.id} cannot be read: {sample.error}")
            if sample.id in first:
                prompt = prompt_of(model, sample, group.cells[0])
                table = table.maximum(head_scores(model, info, prompt, cell.score))
                prompts += 1
                done(prompts)
    rows = tuple(tuple(row) for row in table.double().tolist())
    return HeadFile(rows, cell.model.label, cell.weights, _source(plan, cell, prompts))


def head_scores(model: LoadedModel, info: ModelInfo, prompt: Prompt, score: Score) -> HeadScores:
    """The best score of any pair behind the prompt's head, by layer and KV head, when the context is repeated."""
    repeat = score.inputs.repeat
    assert repeat is not None
    prefilled = model.engine.prefill(torch.tensor(prompt.context)).cache
    cache = model.engine.repeat(prefilled, passes(model.tokenizer, prompt, repeat), repeat)
    table = torch.zeros(info.heads)
    for layer in cache.evictable:
        best = score(layer, None, "max")[:, prompt.head :].amax(dim=1, keepdim=True)
        table[layer.index] = reduce_group(best, score.group, layer.cache_heads)[:, 0].cpu()
    return table


def _source(plan: Plan, cell: Cell, contexts: int) -> dict[str, object]:
    """The origin of a table, for its file."""
    return {
        "score": cell.description["score"],
        "model": cell.description["model"],
        "tasks": [{**group.cells[0].description["task"], "samples": group.task.samples} for group in plan.groups],
        "schedule": asdict(cell.schedule),
        "contexts": contexts,
        "reduced": "max over contexts, tokens and the query heads of a KV head",
    }
