"""The cells of an efficiency task, timed one after the other on the same prompt, with nothing beside them.

Cells take turns, repetition by repetition, so that a machine that slows down slows all of them. Each reads the prompt
for itself: evidence that its score asks for is recorded then, and the full cache does not pay for it.
"""

import os
from collections.abc import Sequence
from statistics import median

import torch

from kvbench.models.loading.load import LoadedModel
from kvbench.models.prompts.prompt import Prompt, begin
from kvbench.records import KeptDetail, Timing
from kvbench.run.energy import energy_meter
from kvbench.run.make_rows import Made, failed, timed
from kvbench.run.memory import out_of_memory
from kvbench.run.plan import Cell, PrefillJob
from kvbench.run.timing import work
from kvbench.run.timing.ceiling import Ceiling, ceiling
from kvbench.run.timing.measuring import Measured, measure
from kvbench.run.timing.shape import shape_of, weight_bytes
from kvbench.tasks.efficiency import Efficiency
from kvbench.tasks.sample import Sample


def run_timed(
    model: LoadedModel, unit: PrefillJob, samples: Sequence[Sample], environment: str, detail: KeptDetail = "none"
) -> Made:
    """Rows and timings of a unit, by repetition and cell. `samples` are its repetitions.

    What a cell cannot do (a budget below the protected tokens, more memory than there is) becomes rows with the
    `error`; the others go on.
    """
    engine, task = model.engine, _task(unit.cells[0])
    made, failures = Made([], [], []), {}
    prompt = begin(model.tokenizer, samples[0].context, task.context_length)
    if prompt.tokens + task.new_tokens > model.max_length:
        error = f"{prompt.tokens} tokens and {task.new_tokens} new ones: the model reads at most {model.max_length}"
        rows = (failed(cell, one, error, environment, prompt) for one in samples for cell in unit.missing[one.id])
        made.rows.extend(rows)
        return made
    speed = ceiling(engine.device, engine.model.dtype, engine.sync)
    for cell in unit.cells:
        for _ in range(task.warmup):
            _try(model, cell, prompt, failures)
    for sample in samples:
        for cell in unit.missing[sample.id]:
            found = _try(model, cell, prompt, failures)
            if found is None:
                made.rows.append(failed(cell, sample, failures[cell.id], environment, prompt))
                continue
            timing = Timing(
                cell.id, sample.id, found.quantities | _beside(model, cell, found, speed), tuple(found.steps)
            )
            made.rows.append(timed(sample, prompt, found.cut, _per_sequence(cell, found), found.ids, environment))
            made.timings.append(timing)
            if detail != "none":
                made.kept.append(found.cut.kept_by(sample, found.num_tokens, detail))
    return made


def _try(model: LoadedModel, cell: Cell, prompt: Prompt, failures: dict[str, str]) -> Measured | None:
    """One repetition, or None and why; a cell that failed is not tried again."""
    if cell.id in failures:
        return None
    task, meter = _task(cell), energy_meter([model.engine.device])
    try:
        return measure(model, cell, prompt, task.batch, task.new_tokens, meter)
    except ValueError as error:
        failures[cell.id] = str(error)
    except RuntimeError as error:
        if not out_of_memory(error):
            raise
        failures[cell.id] = f"out of memory: {str(error).strip().splitlines()[0]}"
    _give_back(model)
    return None


def _give_back(model: LoadedModel) -> None:
    """What torch kept for later, so that a cell that ran out of memory takes none from the next."""
    if model.engine.device.type == "cuda":
        torch.cuda.empty_cache()


def _beside(model: LoadedModel, cell: Cell, found: Measured, speed: Ceiling) -> dict[str, float]:
    """What the parts take at least, and what the device can do."""
    task, shape = _task(cell), shape_of(model.engine.model)
    passes = -(-task.context_length // (cell.schedule.prefill_block or model.engine.block))
    tails, quantities = task.new_tokens / 2, found.quantities
    pairs = sum(map(sum, found.cut.lengths))
    stored = len(shape.windows) * shape.heads // found.group
    held = quantities["held_bytes"]
    return {
        "weight_bytes": weight_bytes(model.engine.model),
        "prefill_flops": task.batch * work.prefill_flops(shape, task.context_length, passes),
        "prefill_moved_bytes": task.batch * work.prefill_bytes(shape, task.context_length, passes),
        "score_moved_bytes": work.score_bytes(quantities["full_bytes"], held),
        "step_flops": work.step_flops(shape, [(pairs, found.group)] * task.batch, tails),
        "step_moved_bytes": work.step_bytes(shape, held, task.batch * stored * tails * shape.pair_bytes),
        "device_copy_bytes_per_second": speed.bytes_per_second,
        "device_flops_per_second": speed.flops_per_second,
    } | ({"load": os.getloadavg()[0]} if hasattr(os, "getloadavg") else {})


def _per_sequence(cell: Cell, found: Measured) -> dict[str, float | int | None]:
    """The columns of a row: seconds and bytes of one sequence of the batch, as a row is one everywhere."""
    batch, quantities = _task(cell).batch, found.quantities
    evicting = [quantities[name] for name in ("score_seconds", "cut_seconds") if name in quantities]
    return {
        "full_cache_bytes": int(quantities["full_bytes"]) // batch,
        "peak_bytes": int(quantities["decode_bytes"]) // batch,
        "prefill_seconds": quantities["prefill_seconds"] / batch,
        "evict_seconds": sum(evicting) / batch if evicting else None,
        "decode_seconds": quantities["decode_seconds"] / batch,
        "local_layers": found.local_layers,
        "seen": found.num_tokens,
        "value": median(found.steps),
    }


def _task(cell: Cell) -> Efficiency:
    assert isinstance(cell.task, Efficiency)
    return cell.task
