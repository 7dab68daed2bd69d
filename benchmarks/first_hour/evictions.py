"""Milliseconds of the evictions of a prompt: 24 cells of six methods, from its last token to the batch that decodes.

python -m benchmarks.first_hour.evictions SHAPE TOKENS [--cpu]

The cells and the calls are those of a sweep. The first prompt is left out: it compiles kernels and makes the room.
"""

import json
from dataclasses import replace
from statistics import median

from benchmarks.first_hour.shape import group_of, options_of, place_of
from benchmarks.ratios.kvbench_side import Numbers, cells_of, sample_of  # pyright: ignore
from benchmarks.ratios.setup import Request, grid, ids
from kvbench.models.loading.load import load, model_info
from kvbench.run.decode_batch import batch_of
from kvbench.run.evict_cell import HeldCache, clock, evict_cells
from kvbench.run.plan import PrefillJob
from kvbench.run.prefill_job import begin_job, prompts_of
from kvbench.run.rows import JobResult

PROMPTS = 4


def main() -> None:
    """Measure and print."""
    options = options_of(__doc__, tokens=int)
    device, _ = place_of(options.cpu)
    group = group_of(options.shape, f"model.device={device}")
    model = replace(load(model_info(group.model)), tokenizer=Numbers())
    vocabulary = model.engine.model.config.vocab_size
    context = ids(options.tokens, vocabulary, 1)
    request = Request("", "", device, 1, context, ids(16, vocabulary, 2), 32, grid(options.tokens))
    cells, milliseconds = cells_of(request), list[tuple[float, float]]()
    for number in range(PROMPTS):
        result = JobResult(PrefillJob({number: tuple(cells)}, number), "here")
        job = begin_job(model, *prompts_of(model, [sample_of(request, number)], result), cells, result)
        assert job is not None
        start = clock(model)
        outcomes = evict_cells(model, cells, job.shared, copy=False)
        evicted = clock(model)
        held = [outcome for outcome in outcomes if isinstance(outcome, HeldCache)]
        assert len(held) == len(cells), outcomes
        del outcomes
        batch = batch_of(model.engine, held, request.new + len(request.question), len(request.question))
        milliseconds.append((1000 * (evicted - start), 1000 * (clock(model) - evicted)))
        del batch, job, result
    evict, layout = (median(part) for part in zip(*milliseconds[1:], strict=True))
    figures = {"who": "kvbench", "tokens": options.tokens, "cells": len(cells), "kernels": model.engine.kernels}
    print(json.dumps({**figures, "evict_ms": evict, "batch_ms": layout, "evictions_ms": evict + layout}))


if __name__ == "__main__":
    main()
