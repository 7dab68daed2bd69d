"""What the queries of a model are like before their rotation, measured once on the prompts of tasks (TriAttention)."""

from collections.abc import Callable

import torch
from torch import Tensor

from kvbench.eviction.scores.triattention import QueryStatistics, complex_pairs
from kvbench.models.loading.load import LoadedModel
from kvbench.models.rope import KeyRotation, key_rotations
from kvbench.probes.calibration import loaded, prompts_of, source_of
from kvbench.run.plan import Plan
from kvbench.support.errors import UserError


def query_statistics(plan: Plan, done: Callable[[int], None] = lambda prompts: None) -> QueryStatistics:
    """The statistics of the one model of a plan, over all tokens of its prompts, each prefilled once.

    `done` is called with the number of prompts read. Raises UserError or MissingFile for a model or a sample that
    cannot be run, and for a model that does not rotate complete queries by frequencies.
    """
    info, model = loaded(plan)
    cell, rotations = plan.cells[0], _rotations(model)
    sums: dict[int, tuple[Tensor, Tensor]] = {}
    tokens = prompts = 0
    for prompts, (prompt, _, _) in enumerate(prompts_of(plan, model), 1):
        ids = torch.tensor(prompt.context)
        for layer in model.engine.prefill(ids, {len(ids)}).cache.evictable:
            numbers = before_rotation(layer.observed(len(ids)).queries, rotations[layer.index])
            new = numbers.sum(dim=1).cpu(), numbers.abs().sum(dim=1).cpu()
            mean, size = sums.get(layer.index, (0, 0))
            sums[layer.index] = mean + new[0], size + new[1]
        tokens += len(ids)
        done(prompts)
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
    """How the layers rotate. Raises UserError unless each rotates all numbers of a key, always by the same angles."""
    kind = type(model.engine.model).__name__
    refused = f"kvbench heads --queries: {kind} {{}}, for which TriAttention is not defined: choose another model"
    if model.engine.rope is not None:
        raise UserError(refused.format(f"has frequencies that depend on the length ({model.engine.rope.kind})"))
    return key_rotations(model.engine.model, refused)


def before_rotation(queries: Tensor, rotation: KeyRotation) -> Tensor:
    """Queries [heads, tokens, head_dim] of positions 0, 1, ... before their rotation, as complex numbers in double."""
    if 2 * len(rotation.frequencies) != queries.shape[2]:
        raise UserError(
            f"kvbench heads --queries: the model rotates {2 * len(rotation.frequencies)} of the {queries.shape[2]} "
            "numbers of a key; TriAttention is defined for models that rotate all: choose another model"
        )
    positions = torch.arange(queries.shape[1], device=queries.device).float().repeat(len(queries))
    plain = rotation.turn(queries.float().flatten(0, 1), positions, torch.zeros_like(positions)).view_as(queries)
    return complex_pairs(plain.double(), rotation.interleaved)
