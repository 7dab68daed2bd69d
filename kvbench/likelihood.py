"""A text and all cells: read together, token by token, every cache cut as it grows; what a token cost is recorded."""

import math
from collections.abc import Sequence

import torch

from kvbench.cutting import clock, eviction_of, measured
from kvbench.models.growing import Growing
from kvbench.models.load import LoadedModel
from kvbench.models.prompt import Prompt, begin
from kvbench.plan import Cell, Unit
from kvbench.records import Curve, KeptDetail
from kvbench.rows import Made, Scored, failed, scored
from kvbench.stepping import Stepping, kept_of
from kvbench.tasks.likelihood import Likelihood
from kvbench.tasks.sample import Sample

BROKEN = "the logits are no numbers (NaN or infinite) at token {}"


def run_texts(
    model: LoadedModel, unit: Unit, samples: Sequence[Sample], environment: str, detail: KeptDetail = "none"
) -> Made:
    """Rows of a unit, by sample and cell in the order of the unit, and the curve of each. `samples` are its texts.

    Every text begins with empty caches. What a text or a cell cannot do (no token to score, a budget below the
    protected tokens, NaN in the cache) becomes a row with its `error`; the others go on.
    """
    made = Made([], [], [])
    by_id = {sample.id: sample for sample in samples}
    for number, cells in unit.missing.items():
        sample = by_id[number]
        for start in range(0, len(cells), model.engine.tile):
            _score(model, cells[start : start + model.engine.tile], sample, environment, detail, made)
    return made


def _score(
    model: LoadedModel, cells: Sequence[Cell], sample: Sample, environment: str, detail: KeptDetail, made: Made
) -> None:
    """Read one text with at most a tile of cells. Where one of them cannot go on, each is read by itself."""
    try:
        task = _task(cells[0])
        prompt = begin(model.tokenizer, sample.context, task.context_length + 1)
    except ValueError as error:
        made.rows.extend(failed(cell, sample, str(error), environment) for cell in cells)
        return
    start, seen = clock(model), prompt.tokens - 1
    try:
        growing = [_growing(model, cell, prompt) for cell in cells]
        found = model.engine.nll(torch.tensor(prompt.context), growing).double().cpu().tolist()
    except ValueError as error:
        if len(cells) == 1:
            made.rows.append(failed(cells[0], sample, str(error), environment, prompt))
        else:
            for cell in cells:
                _score(model, [cell], sample, environment, detail, made)
        return
    seconds = (clock(model) - start) / len(cells)
    for cell, one, values in zip(cells, growing, found, strict=True):
        broken = next((place for place, value in enumerate(values) if not math.isfinite(value)), None)
        if broken is not None:
            made.rows.append(failed(cell, sample, BROKEN.format(broken), environment, prompt))
            continue
        cache = one.freeze()
        did = measured(cell, cache, kept_of(cache), None)
        text = Scored(values, seen, cache.local_layers, one.read_bytes, one.peak_bytes, seconds)
        made.rows.append(scored(sample, prompt, did, text, environment))
        made.curves.append(Curve.over(cell.id, sample.id, task.metric, values, task.context_length))
        if detail != "none":
            made.kept.append(did.kept_by(sample, seen, detail))


def _growing(model: LoadedModel, cell: Cell, prompt: Prompt) -> Growing:
    """An empty cache. Its budget is a share of the tokens that are read, or a number of pairs."""
    every, budget = cell.schedule.decode_every, cell.budget.of(prompt.tokens - 1)
    if every is not None and _task(cell).evict == "before":
        budget -= 1
    return model.engine.growing(Stepping(eviction_of(cell, prompt), budget, decoding=True), every)


def _task(cell: Cell) -> Likelihood:
    assert isinstance(cell.task, Likelihood)
    return cell.task
