"""One repetition of one cell: read, cut, laid out, decoded; what the clock said of each part.

read, cut      once a sequence of the batch, one after the other, as kvbench reads prompts; the whole cache of a
               prompt is gone when the next is read
layout         the cut caches are copied into one batch
steps          every sequence reads one token at a time, the likeliest; no end is looked for
"""

import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace

import torch

from kvbench.models.cpu.batch_invariance import BatchInvariance
from kvbench.models.loading.load import LoadedModel
from kvbench.models.prompts.prompt import Prompt
from kvbench.run.evict_cell import CompressedCache, Shared, clock, cut, tile_of
from kvbench.run.make_rows import Cut
from kvbench.run.plan import Cell
from kvbench.run.prefill_job import BROKEN, read
from kvbench.run.timing.clocks import steps_on
from kvbench.support.errors import UserError


@dataclass
class Measured:
    """What a repetition said. quantities: by the names of `kvbench.records.timing`; steps: seconds of each.

    cut: of one sequence; groups: query heads that read a stored head; ids: its new tokens; local_layers, num_tokens: of
    the cache that was read.
    """

    cut: Cut
    num_tokens: int
    local_layers: int
    group: int
    ids: list[int] = field(default_factory=list)
    quantities: dict[str, float] = field(default_factory=dict)
    steps: list[float] = field(default_factory=list)


@torch.inference_mode()
def measure(
    model: LoadedModel,
    cell: Cell,
    prompt: Prompt,
    batch: int,
    new_tokens: int,
    joules: Callable[[], float] | None = None,
) -> Measured:
    """Time a cell once. Raises ValueError for what it cannot do with this prompt, and what torch raises when memory
    runs out.
    """
    model = replace(model, engine=replace(model.engine, tile=batch, batch_invariance=BatchInvariance()))
    engine, device = model.engine, model.engine.device
    _reset_peak(device)
    engine.sync()
    energy = None if joules is None else joules()
    held, logits, found = [], [], None
    reading = scoring = cutting = full = 0.0
    for _ in range(batch):
        read_one = read(model, {0: prompt}, [cell])
        shared = Shared(read_one.prefilled.cache, prompt, [cell])
        one = cut(model, cell, shared)
        ranked = sum(seconds for _, seconds in (*shared.rankings.values(), *shared.repeated.values()))
        reading, scoring = reading + read_one.seconds, scoring + ranked
        cutting += (one.cut.seconds or 0.0) - ranked
        full += read_one.prefilled.full_bytes
        layers = read_one.prefilled.cache.layers
        found = found or Measured(one.cut, shared.cache.num_tokens, shared.cache.local_layers, 1)
        found.group = layers[0].query_heads // one.cache.layers[0].cache_heads
        logits.append(read_one.prefilled.logits)
        held.append(one)
        del read_one, shared, layers, one
    assert found is not None
    start = clock(model)
    ids = torch.stack(logits).argmax(dim=-1)
    found.ids.append(int(ids[0]))
    del logits
    first = reading + scoring + cutting + clock(model) - start
    quantities = {"prefill_seconds": reading, "first_token_seconds": first, "full_bytes": full}
    if found.cut.seconds is not None:
        quantities |= {"score_seconds": scoring, "cut_seconds": max(0.0, cutting)}
    quantities |= {"held_bytes": batch * found.cut.cache_bytes} | _peak(device, "prefill_peak_bytes")
    _reset_peak(device)
    found.quantities = quantities
    _decode(model, held, ids, new_tokens, found)
    if energy is not None and joules is not None:
        quantities["joules"] = joules() - energy
    return found


def _decode(
    model: LoadedModel, held: list[CompressedCache], ids: torch.Tensor, new_tokens: int, found: Measured
) -> None:
    """Lay out the batch and read all new tokens but the last, which nobody reads."""
    engine, device = model.engine, model.engine.device
    start = clock(model)
    tile = tile_of(engine, held, new_tokens)
    found.quantities["layout_seconds"] = clock(model) - start
    steps, chosen, start = steps_on(device), [ids], time.perf_counter()
    steps.mark()
    finite = torch.ones((), dtype=torch.bool, device=ids.device)
    for _ in range(new_tokens - 1):
        logits = engine.read(tile, chosen[-1][:, None])[: len(ids)]
        chosen.append(logits.argmax(dim=-1))
        finite &= logits.isfinite().all()
        steps.mark()
    found.steps = steps.seconds()
    found.quantities["decode_seconds"] = clock(model) - start
    if tile.failures:
        raise UserError(next(iter(tile.failures.values())))
    if not finite:
        raise UserError(BROKEN.format(new_tokens))
    found.ids += [int(token[0]) for token in chosen[1:]]
    found.quantities["decode_bytes"] = sum(tile.peak_bytes)
    found.quantities |= _peak(device, "decode_peak_bytes")


def _reset_peak(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)


def _peak(device: torch.device, name: str) -> dict[str, float]:
    """Only CUDA tells what torch has allocated."""
    return {name: float(torch.cuda.max_memory_allocated(device))} if device.type == "cuda" else {}
