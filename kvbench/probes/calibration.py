"""Scores of whole heads, computed once on samples of a task and kept in a file: KVzip's context-independent mode.

KVzip (Kim et al. 2025, https://arxiv.org/abs/2505.23416), `head` of attention/kvcache.py in its code: the score of a
head is the largest score of any pair of any calibration context.
"""

from collections.abc import Callable, Iterator
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
    info, model = loaded(plan)
    cell, table, prompts = plan.cells[0], torch.zeros(info.heads), 0
    for prompts, (prompt, _, _) in enumerate(prompts_of(plan, model), 1):
        table = table.maximum(head_scores(model, info, prompt, cell.score))
        done(prompts)
    rows = tuple(tuple(row) for row in table.double().tolist())
    reduction = {"contexts": prompts, "reduced": "max over contexts, tokens and the query heads of a KV head"}
    source = {"score": cell.description["score"], **source_of(plan, cell), **reduction}
    return HeadFile(rows, cell.model.label, cell.weights, source)


def loaded(plan: Plan) -> tuple[ModelInfo, LoadedModel]:
    """The one model of a plan, once every sample was made. Raises UserError or MissingFile where that fails."""
    info = model_info(plan.cells[0].model)
    for group in plan.groups:
        dry_run(info, group)
    return info, load(info)


def prompts_of(plan: Plan, model: LoadedModel) -> Iterator[tuple[Prompt, Cell, int]]:
    """Each prompt of a plan once, with a cell that reads it and the tokens of its answer.

    Raises UserError for a sample that cannot be read.
    """
    for group in plan.groups:
        first = {min(job.missing) for job in group.jobs}
        for sample in samples_of(model.tokenizer, group):
            if isinstance(sample, InvalidSample):
                raise UserError(f"{group.task.name}: sample {sample.id} cannot be read: {sample.error}")
            if sample.id in first:
                yield prompt_of(model, sample, group.cells[0]), group.cells[0], sample.max_new_tokens


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


def source_of(plan: Plan, cell: Cell) -> dict[str, object]:
    """What was read to measure a model, for the file of the result."""
    return {
        "model": cell.description["model"],
        "tasks": [{**group.cells[0].description["task"], "samples": group.task.samples} for group in plan.groups],
        "schedule": asdict(cell.schedule),
    }
