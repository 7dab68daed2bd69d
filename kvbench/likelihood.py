"""A text and all cells: read together, every cache cut as it grows; what a token cost is recorded."""

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from kvbench.cutting import clock, eviction_of, measured
from kvbench.models.growing import Growing
from kvbench.models.load import LoadedModel
from kvbench.models.prompt import Prompt, TokensOf, begin, begin_given
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

    What a text or a cell cannot do (no token to score, a budget below the protected tokens, NaN in the cache) becomes a
    row with its `error`; the others go on. Where texts do not start from empty caches, those before the ones that are
    missing are read again.
    """
    made, by_id = Made([], [], []), {sample.id: sample for sample in samples}
    if not _task(unit.cells[0]).reset:
        before = set(range(max(unit.missing))) - set(by_id)
        again = unit.cells[0].task.generate(TokensOf(model.tokenizer), before)
        by_id |= {sample.id: sample for sample in again if isinstance(sample, Sample)}
        texts = [by_id[number] for number in sorted(by_id)]
        for start in range(0, len(unit.cells), model.engine.tile):
            cells = unit.cells[start : start + model.engine.tile]
            missing = {(number, cell.id) for number, some in unit.missing.items() for cell in some}
            _read(model, cells, texts, missing, environment, detail, made)
        order = {(number, cell.id): len(unit.cells) * number + unit.cells.index(cell)
                 for number, some in unit.missing.items() for cell in some}  # fmt: skip
        made.rows.sort(key=lambda row: order[row.sample, row.cell])
        return made
    for number, cells in unit.missing.items():
        for start in range(0, len(cells), model.engine.tile):
            some = cells[start : start + model.engine.tile]
            _read(model, some, [by_id[number]], {(number, cell.id) for cell in some}, environment, detail, made)
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
    growing: list[Growing] = []
    for place, sample in enumerate(readable):
        prompt, start = prompts[sample.id], clock(model)
        try:
            _check_length(model, cells, prompt, growing)
            growing = growing or [_growing(model, cell, list(prompts.values())) for cell in cells]
            growing, found = _nll(model, cells, prompt, growing)
        except ValueError as error:
            if len(cells) > 1:
                for cell in cells:
                    _read(model, [cell], texts, missing, environment, detail, made)
                return
            for later in readable[place:]:
                fail(cells, later, str(error), prompts[later.id])
            break
        seconds = (clock(model) - start) / len(cells)
        for cell, one, values in zip(cells, growing, found.double().cpu().tolist(), strict=True):
            if (sample.id, cell.id) not in missing:
                continue
            broken = next((place for place, value in enumerate(values) if not math.isfinite(value)), None)
            if broken is not None:
                fail([cell], sample, BROKEN.format(broken), prompt)
                continue
            cache = one.freeze()
            did = measured(cell, cache, kept_of(cache), None)
            text = Scored(values, one.seen, cache.local_layers, one.read_bytes, one.peak_bytes, seconds)
            own.rows.append(scored(sample, prompt, did, text, environment))
            own.curves.append(Curve.over(cell.id, sample.id, cell.task.metric, values, _task(cell).context_length))
            if detail != "none":
                own.kept.append(did.kept_by(sample, one.seen, detail))
    for whole, part in ((made.rows, own.rows), (made.curves, own.curves), (made.kept, own.kept)):
        whole.extend(part)  # type: ignore[arg-type]


def _prompt(tokenizer: Any, task: Likelihood, sample: Sample) -> Prompt:
    if sample.question:
        return begin_given(tokenizer, sample, task.given_tokens, task.context_length)
    return begin(tokenizer, sample.context, task.context_length + 1)


def _nll(
    model: LoadedModel, cells: Sequence[Cell], prompt: Prompt, growing: Sequence[Growing]
) -> tuple[list[Growing], Float[Tensor, "cells targets"]]:
    """What each token cost, and the caches as they are then.

    What is given is read first, in blocks that are cut like a prompt's; its last token is fed as those that are scored.
    """
    ids, block = torch.tensor(prompt.context + prompt.question), cells[0].schedule.prefill_block or 1
    if not prompt.question:
        return list(growing), model.engine.nll(ids, growing, block)
    given = len(prompt.context) - 1
    model.engine.give(ids[:given], growing, block)
    later = []
    for cell, one in zip(cells, growing, strict=True):
        stepping = replace(one.stepping, decoding=True)
        on = model.engine.growing(stepping, cell.schedule.decode_every, one.freeze())
        on.read_bytes, on.peak_bytes = one.read_bytes, max(one.peak_bytes, on.peak_bytes)
        later.append(on)
    return later, model.engine.nll(ids[given:], later)


def _growing(model: LoadedModel, cell: Cell, prompts: Sequence[Prompt]) -> Growing:
    """An empty cache. Its budget is a share of the tokens that are read, or a number of pairs."""
    in_blocks = cell.schedule.prefill_block is not None
    every, budget = 1 if in_blocks else cell.schedule.decode_every, cell.budget.of(_tokens(prompts))
    if every is not None and _task(cell).evict == "before":
        budget -= 1
    return model.engine.growing(Stepping(eviction_of(cell, prompts[0]), budget, decoding=not in_blocks), every)


def _tokens(prompts: Sequence[Prompt]) -> int:
    """Tokens that are read: all but the last of each text."""
    return sum(prompt.tokens - 1 for prompt in prompts)


def _check_length(model: LoadedModel, cells: Sequence[Cell], prompt: Prompt, growing: Sequence[Growing]) -> None:
    """Raise ValueError where positions would go beyond what the model reads, unless they are those of the cache."""
    last = prompt.tokens - 1 + max((one.seen for one in growing), default=0)
    for cell in cells:
        if last > model.max_length and cell.policy.positions == "original":
            raise ValueError(
                f"the token at position {last} is beyond the {model.max_length} that the model reads; use "
                "policy.positions=cache, or fewer tokens (task.context_length, task.samples)"
            )


def _task(cell: Cell) -> Likelihood:
    assert isinstance(cell.task, Likelihood)
    return cell.task
