"""Measurements made once per model, on the prompts of tasks, and kept in a file: head scores, query statistics."""

from collections.abc import Callable, Iterator
from dataclasses import asdict

import torch
from jaxtyping import Float
from torch import Tensor

from kvbench.eviction.pooling import reduce_group
from kvbench.eviction.scores.head_table import HeadFile
from kvbench.eviction.scores.score import Score
from kvbench.extras.heads.triattention import QueryStatistics, complex_pairs
from kvbench.models.key_rotation import KeyRotation, key_rotations
from kvbench.models.loading.load import LoadedModel, ModelInfo, load, model_info
from kvbench.models.prompts.prompt import Prompt
from kvbench.models.repeat import passes
from kvbench.run.cell import Cell
from kvbench.run.local import check_group
from kvbench.run.plan import Plan
from kvbench.run.prefill_job import prompt_of
from kvbench.support.errors import UserError
from kvbench.tasks.task import InvalidSample

HeadScores = Float[Tensor, "layers kv_heads"]


def calibrate(plan: Plan, on_read: Callable[[int], None] = lambda prompts: None) -> HeadFile:
    """KVzip's context-independent scores of the heads of the one model of a plan, whose cells have one repeating score.

    KVzip (Kim et al. 2025, https://arxiv.org/abs/2505.23416), `head` of attention/kvcache.py in its code: the score of
    a head is the largest score of any pair of any context. Each context is prefilled once; `on_read` is called with the
    number of prompts read. Layers with a sliding window are never evicted from and score 0. Raises UserError or
    MissingFile for a model or a sample that cannot be run.
    """
    info, model = loaded(plan)
    cell, table, prompts = plan.cells[0], torch.zeros(info.heads), 0
    for prompts, (prompt, _, _) in enumerate(prompts_of(plan, model), 1):
        table = table.maximum(head_scores(model, info, prompt, cell.score))
        on_read(prompts)
    rows = tuple(tuple(row) for row in table.double().tolist())
    reduction = {"contexts": prompts, "reduced": "max over contexts, tokens and the query heads of a KV head"}
    source = {"score": cell.description["score"], **source_of(plan, cell), **reduction}
    return HeadFile(rows, cell.model.label, cell.weights, source)


def loaded(plan: Plan) -> tuple[ModelInfo, LoadedModel]:
    """Return the one model of a plan, once every sample was made. Raises UserError or MissingFile where that fails."""
    info = model_info(plan.cells[0].model)
    for group in plan.groups:
        check_group(info, group)
    return info, load(info)


def prompts_of(plan: Plan, model: LoadedModel) -> Iterator[tuple[Prompt, Cell, int]]:
    """Yield each prompt of a plan once, with a cell that reads it and the tokens of its answer.

    Raises UserError for a sample that cannot be read.
    """
    for group in plan.groups:
        first = {min(job.missing) for job in group.jobs}
        for sample in group.samples(model.tokenizer):
            if isinstance(sample, InvalidSample):
                raise UserError(f"{group.task.name}: sample {sample.id} cannot be read: {sample.error}")
            if sample.id in first:
                yield prompt_of(model, sample, group.cells[0]), group.cells[0], sample.max_new_tokens


def head_scores(model: LoadedModel, info: ModelInfo, prompt: Prompt, score: Score) -> HeadScores:
    """Return the best score of any pair behind the prompt's head, by layer and KV head, when the context is
    repeated.
    """
    repeat = score.inputs.repeat
    assert repeat is not None
    prefilled = model.engine.prefill(torch.tensor(prompt.prefill)).cache
    cache = model.engine.repeat(prefilled, passes(model.tokenizer, prompt, repeat), repeat)
    table = torch.zeros(info.heads)
    for layer in cache.evictable:
        best = score(layer, None, "max")[:, prompt.prefix_tokens :].amax(dim=1, keepdim=True)
        table[layer.index] = reduce_group(best, score.group, layer.cache_heads)[:, 0].cpu()
    return table


def source_of(plan: Plan, cell: Cell) -> dict[str, object]:
    """Describe what was read to measure a model, for the file of the result."""
    return {
        "model": cell.description["model"],
        "tasks": [{**group.cells[0].description["task"], "samples": group.task.samples} for group in plan.groups],
        "schedule": asdict(cell.schedule),
    }


def query_statistics(plan: Plan, on_read: Callable[[int], None] = lambda prompts: None) -> QueryStatistics:
    """Measure the queries of the one model of a plan before their rotation, over all tokens (TriAttention).

    Each prompt is prefilled once; `on_read` is called with the number of prompts read. Raises UserError or MissingFile
    for a model or a sample that cannot be run, and for a model that does not rotate complete queries by frequencies.
    """
    info, model = loaded(plan)
    cell, rotations = plan.cells[0], _rotations(model)
    sums: dict[int, tuple[Tensor, Tensor]] = {}
    tokens = prompts = 0
    for prompts, (prompt, _, _) in enumerate(prompts_of(plan, model), 1):
        ids = torch.tensor(prompt.prefill)
        for layer in model.engine.prefill(ids, {len(ids)}).cache.evictable:
            numbers = before_rotation(layer.observed(len(ids)).queries, rotations[layer.index])
            new = numbers.sum(dim=1).cpu(), numbers.abs().sum(dim=1).cpu()
            mean, size = sums.get(layer.index, (0, 0))
            sums[layer.index] = mean + new[0], size + new[1]
        tokens += len(ids)
        on_read(prompts)
    first = next(iter(sums.values()))
    zeros, layers = tuple(map(torch.zeros_like, first)), range(info.heads[0])
    mean, size = (torch.stack([sums.get(layer, zeros)[part] for layer in layers]) / tokens for part in (0, 1))
    frequencies = torch.zeros(len(layers), size.shape[2])
    for index in sums:
        frequencies[index] = rotations[index].frequencies.cpu()
    interleaved = rotations[min(sums)].interleaved
    source = source_of(plan, cell) | {"prompts": prompts, "tokens": tokens}
    return QueryStatistics(
        mean.to(torch.complex64), size.float(), frequencies, interleaved, cell.model.label, cell.weights, source
    )


def _rotations(model: LoadedModel) -> dict[int, KeyRotation]:
    """Return how the layers rotate. Raises UserError unless each rotates all numbers of a key, always by the same
    angles.
    """
    kind = type(model.engine.model).__name__
    refused = f"kvbench heads --queries: {kind} {{}}, for which TriAttention is not defined: choose another model"
    if model.engine.rope is not None:
        raise UserError(refused.format(f"has frequencies that depend on the length ({model.engine.rope.kind})"))
    return key_rotations(model.engine.model, refused)


def before_rotation(queries: Tensor, rotation: KeyRotation) -> Tensor:
    """Return queries [heads, tokens, head_dim] of positions 0, 1, ... before their rotation, as complex numbers in
    double.
    """
    if 2 * len(rotation.frequencies) != queries.shape[2]:
        raise UserError(
            f"kvbench heads --queries: the model rotates {2 * len(rotation.frequencies)} of the {queries.shape[2]} "
            "numbers of a key; TriAttention is defined for models that rotate all: choose another model"
        )
    positions = torch.arange(queries.shape[1], device=queries.device).float().repeat(len(queries))
    plain = rotation.turn(queries.float().flatten(0, 1), positions, torch.zeros_like(positions)).view_as(queries)
    return complex_pairs(plain.double(), rotation.interleaved)
