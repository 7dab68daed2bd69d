"""What whole heads are worth, found once on samples of a task and kept in a file: KVzip's context-independent mode.

KVzip (Kim et al. 2025, https://arxiv.org/abs/2505.23416), `head` of attention/kvcache.py in its code: a head is worth
the largest score of any pair of any calibration context.
"""

from collections.abc import Callable
from dataclasses import asdict

import torch
from jaxtyping import Float
from torch import Tensor

from kvbench.eviction.pooling import reduce_group
from kvbench.eviction.scores.head_file import HeadFile
from kvbench.eviction.scores.score import Score
from kvbench.models.loading.load import LoadedModel, ModelInfo, load, model_info
from kvbench.models.prompts.prompt import Prompt
from kvbench.models.repeat import passes
from kvbench.run.plan import Cell, Plan
from kvbench.run.prefill_job import prompt_of
from kvbench.run.runner import dry_run, samples_of
from kvbench.support.errors import UserError
from kvbench.tasks.sample import InvalidSample

HeadScores = Float[Tensor, "layers kv_heads"]


def calibrate(plan: Plan, done: Callable[[int], None] = lambda prompts: None) -> HeadFile:
    """The table of the one model of a plan, whose cells have one score that repeats; each context is read once.

    `done` is told how many prompts were read. Layers whose own sliding window keeps them out of eviction are worth 0.
    Raises ValueError or FileNotFoundError for a model or a sample that cannot be run.
    """
    cell = plan.cells[0]
    info = model_info(cell.model)
    for group in plan.groups:
        dry_run(info, group)
    model = load(info)
    table, read = torch.zeros(info.heads), 0
    for group in plan.groups:
        first = {min(unit.missing) for unit in group.units}
        for sample in samples_of(info.tokenizer, group):
            if isinstance(sample, InvalidSample):
                raise UserError(f"{group.task.name}: sample {sample.id} cannot be read: {sample.error}")
            if sample.id in first:
                prompt = prompt_of(model, sample, group.cells[0])
                table = table.maximum(head_scores(model, info, prompt, cell.score))
                read += 1
                done(read)
    rows = tuple(tuple(row) for row in table.double().tolist())
    return HeadFile(rows, cell.model.label, cell.weights, _source(plan, cell, read))


def head_scores(model: LoadedModel, info: ModelInfo, prompt: Prompt, score: Score) -> HeadScores:
    """The best score that any pair behind the prompt's head has, by layer and KV head, when the context is repeated."""
    repeat = score.inputs.repeat
    assert repeat is not None
    read = model.engine.prefill(torch.tensor(prompt.context)).cache
    cache = model.engine.repeat(read, passes(model.tokenizer, prompt, repeat), repeat)
    table = torch.zeros(info.heads)
    for layer in cache.evictable:
        best = score(layer, None, "max")[:, prompt.head :].amax(dim=1, keepdim=True)
        table[layer.index] = reduce_group(best, score.group, layer.cache_heads)[:, 0].cpu()
    return table


def _source(plan: Plan, cell: Cell, read: int) -> dict[str, object]:
    """How a table came about, as its file says it."""
    return {
        "score": cell.description["score"],
        "model": cell.description["model"],
        "tasks": [{**group.cells[0].description["task"], "samples": group.task.samples} for group in plan.groups],
        "schedule": asdict(cell.schedule),
        "contexts": read,
        "reduced": "max over contexts, tokens and the query heads of a KV head",
    }
