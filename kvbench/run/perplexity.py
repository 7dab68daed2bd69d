"""A text and all cells: read together, every cache cut as it grows; what a token cost is recorded."""

import math
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from kvbench.cache.kv_cache import KVCache
from kvbench.eviction.incremental import IncrementalEviction, kept_of
from kvbench.models.decode.batched_scores import abreast, apart, kind
from kvbench.models.decode.evicting_cache import EvictingCache
from kvbench.models.loading.load import LoadedModel
from kvbench.models.prompts.prompt import Prompt, TokensOf, begin, begin_given
from kvbench.records import Curve, KeptDetail
from kvbench.run.evict_cell import clock, eviction_of, measured
from kvbench.run.make_rows import Made, Scored, failed, scored
from kvbench.run.memory import halving
from kvbench.run.plan import Cell, PrefillJob
from kvbench.support.errors import UserError
from kvbench.tasks.likelihood import Likelihood
from kvbench.tasks.sample import Sample

BROKEN = "the logits are no numbers (NaN or infinite) at token {}"


@dataclass(frozen=True)
class Lane:
    """Cells that go abreast, or one alone, and their caches."""

    cells: tuple[Cell, ...]
    growing: EvictingCache

    def caches(self) -> Iterator[tuple[Cell, EvictingCache, KVCache]]:
        """Each cell with what is in its cache now."""
        caches = apart(self.growing.freeze(), self.growing.cells)
        return ((cell, self.growing, cache) for cell, cache in zip(self.cells, caches, strict=True))


def run_texts(
    model: LoadedModel, unit: PrefillJob, samples: Sequence[Sample], environment: str, detail: KeptDetail = "none"
) -> Made:
    """Rows of a unit, by sample and cell in the order of the unit, and the curve of each. `samples` are its texts.

    What a text or a cell cannot do (no token to score, a budget below the protected tokens, NaN in the cache) becomes a
    row with its `error`; the others go on. Where texts do not start from empty caches, those before the ones that are
    missing are read again.
    """
    made, by_id = Made([], [], []), {sample.id: sample for sample in samples}
    missing = {(number, cell.id) for number, cells in unit.missing.items() for cell in cells}
    if _task(unit.cells[0]).reset:
        for number, cells in unit.missing.items():
            _read_in_parts(model, cells, [by_id[number]], missing, environment, detail, made)
        return _ordered(made, unit)
    before = set(range(max(unit.missing))) - set(by_id)
    again = unit.cells[0].task.generate(TokensOf(model.tokenizer), before)
    by_id |= {sample.id: sample for sample in again if isinstance(sample, Sample)}
    texts = [by_id[number] for number in sorted(by_id)]
    _read_in_parts(model, unit.cells, texts, missing, environment, detail, made)
    return _ordered(made, unit)


def text_seconds(model: LoadedModel, cells: Sequence[Cell], prompt: Prompt) -> float:
    """What a text takes with a tile of cells, for estimates. Raises ValueError for what one of them cannot do."""
    start = clock(model)
    _nll(model, prompt, _lanes(model, cells, [prompt]))
    return clock(model) - start


def _read_in_parts(
    model: LoadedModel,
    cells: Sequence[Cell],
    texts: Sequence[Sample],
    missing: set[tuple[int, str]],
    environment: str,
    detail: KeptDetail,
    made: Made,
) -> None:
    """Read texts with a tile of cells at a time, or with as many as fitted when memory ran out before.

    Where it runs out each half begins again with the first text; nothing is kept of a part that did not come to its
    end.
    """
    counters = model.engine.counters

    def do(part: list[Cell]) -> None:
        own = Made([], [], [])
        _read(model, part, texts, missing, environment, detail, own)
        _add(made, own)

    def fail(cell: Cell, reason: str) -> None:
        wanted = [sample for sample in texts if (sample.id, cell.id) in missing]
        made.rows.extend(failed(cell, sample, reason, environment) for sample in wanted)

    left = list(cells)
    while left:
        most = min(model.engine.tile, counters.together or model.engine.tile)
        part, left = left[:most], left[most:]
        fitted = halving(part, do, fail)
        if fitted < len(part):
            counters.halved += 1
            counters.together = fitted


def _add(whole: Made, part: Made) -> None:
    for all_of, some in ((whole.rows, part.rows), (whole.curves, part.curves), (whole.kept, part.kept)):
        all_of.extend(some)  # type: ignore[arg-type]


def _ordered(made: Made, unit: PrefillJob) -> Made:
    """Rows by sample and cell in the order of the unit."""
    wanted = [(number, cell.id) for number, cells in unit.missing.items() for cell in cells]
    order = {key: place for place, key in enumerate(wanted)}
    made.rows.sort(key=lambda row: order[row.sample, row.cell])
    return made


def _read(
    model: LoadedModel,
    cells: Sequence[Cell],
    texts: Sequence[Sample],
    missing: set[tuple[int, str]],
    environment: str,
    detail: KeptDetail,
    made: Made,
) -> None:
    """Read texts, one after the other, with at most a tile of cells, whose caches go on from text to text.

    Where one of the cells cannot go on, each is read by itself.
    """
    own = Made([], [], [])

    def fail(cells: Sequence[Cell], sample: Sample, error: str, prompt: Prompt | None = None) -> None:
        wanted = [cell for cell in cells if (sample.id, cell.id) in missing]
        own.rows.extend(failed(cell, sample, error, environment, prompt) for cell in wanted)

    prompts: dict[int, Prompt] = {}
    for sample in texts:
        try:
            prompts[sample.id] = _prompt(model.tokenizer, _task(cells[0]), sample)
        except ValueError as error:
            fail(cells, sample, str(error))
    readable = [sample for sample in texts if sample.id in prompts]
    lanes: list[Lane] = []
    for place, sample in enumerate(readable):
        prompt, start = prompts[sample.id], clock(model)
        try:
            _check_length(model, cells, prompt, lanes)
            lanes = lanes or _lanes(model, cells, list(prompts.values()))
            lanes, found = _nll(model, prompt, lanes)
        except ValueError as error:
            if len(cells) > 1:
                for cell in cells:
                    _read(model, [cell], texts, missing, environment, detail, made)
                return
            for later in readable[place:]:
                fail(cells, later, str(error), prompts[later.id])
            break
        seconds = (clock(model) - start) / len(cells)
        alone = ((cell, one, cache) for lane in lanes for cell, one, cache in lane.caches())
        for (cell, one, cache), values in zip(alone, found.double().cpu().tolist(), strict=True):
            if (sample.id, cell.id) not in missing:
                continue
            broken = next((place for place, value in enumerate(values) if not math.isfinite(value)), None)
            if broken is not None:
                fail([cell], sample, BROKEN.format(broken), prompt)
                continue
            did = measured(cell, cache, kept_of(cache), None)
            read, peak = one.read_bytes // one.cells, one.peak_bytes // one.cells
            text = Scored(values, one.num_tokens, cache.local_layers, read, peak, seconds)
            own.rows.append(scored(sample, prompt, did, text, environment))
            own.curves.append(Curve.over(cell.id, sample.id, cell.task.metric, values, _task(cell).context_length))
            if detail != "none":
                own.kept.append(did.kept_by(sample, one.num_tokens, detail))
    _add(made, own)


def _prompt(tokenizer: Any, task: Likelihood, sample: Sample) -> Prompt:
    if sample.question:
        return begin_given(tokenizer, sample, task.given_tokens, task.context_length)
    return begin(tokenizer, sample.context, task.context_length + 1)


def _nll(
    model: LoadedModel, prompt: Prompt, lanes: Sequence[Lane]
) -> tuple[list[Lane], Float[Tensor, "cells targets"]]:
    """What each token cost, and the caches as they are then.

    What is given is read first, in blocks that are cut like a prompt's; its last token is fed as those that are scored.
    """
    ids, block = torch.tensor(prompt.context + prompt.question), lanes[0].cells[0].schedule.prefill_block or 1
    if not prompt.question:
        return list(lanes), model.engine.nll(ids, [lane.growing for lane in lanes], block)
    given = len(prompt.context) - 1
    model.engine.give(ids[:given], [lane.growing for lane in lanes], block)
    later = []
    for lane in lanes:
        one, every = lane.growing, lane.cells[0].schedule.decode_every
        on = model.engine.growing(replace(one.stepping, decoding=True), every, one.freeze(), one.cells)
        on.read_bytes, on.peak_bytes = one.read_bytes, max(one.peak_bytes, on.peak_bytes)
        later.append(Lane(lane.cells, on))
    return later, model.engine.nll(ids[given:], [lane.growing for lane in later])


def _lanes(model: LoadedModel, cells: Sequence[Cell], prompts: Sequence[Prompt]) -> list[Lane]:
    """Empty caches, one for all cells that can go abreast. A budget is a share of what is read, or a number."""
    alike: dict[Hashable, list[tuple[Cell, IncrementalEviction]]] = {}
    for cell in cells:
        in_blocks, every = cell.schedule.prefill_block is not None, cell.schedule.decode_every
        budget = cell.budget.of(_tokens(prompts))
        if every is not None and _task(cell).evict == "before":
            budget -= 1
        stepping = IncrementalEviction(eviction_of(cell, prompts[0]), budget, decoding=not in_blocks)
        same = kind(stepping)
        alike.setdefault(cell.id if same is None else (same, cell.schedule), []).append((cell, stepping))
    lanes = []
    for members in alike.values():
        first, steppings = members[0][0], [stepping for _, stepping in members]
        every = 1 if first.schedule.prefill_block is not None else first.schedule.decode_every
        stepping = abreast(steppings) if len(steppings) > 1 else steppings[0]
        growing = model.engine.growing(stepping, every, cells=len(steppings))
        lanes.append(Lane(tuple(cell for cell, _ in members), growing))
    return lanes


def _tokens(prompts: Sequence[Prompt]) -> int:
    """Tokens that are read: all but the last of each text."""
    return sum(prompt.tokens - 1 for prompt in prompts)


def _check_length(model: LoadedModel, cells: Sequence[Cell], prompt: Prompt, lanes: Sequence[Lane]) -> None:
    """Raise ValueError where positions would go beyond what the model reads, unless they are those of the cache."""
    last = prompt.tokens - 1 + max((lane.growing.num_tokens for lane in lanes), default=0)
    for cell in cells:
        if last > model.max_length and cell.policy.positions == "original":
            raise UserError(
                f"the token at position {last} is beyond the {model.max_length} that the model reads; use "
                "policy.positions=cache, or fewer tokens (task.context_length, task.samples)"
            )


def _task(cell: Cell) -> Likelihood:
    assert isinstance(cell.task, Likelihood)
    return cell.task
