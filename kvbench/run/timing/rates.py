"""What a plan's estimate is made of, measured: each part of a unit by itself, on a made-up text, by kind of cell.

read KIND          a prompt, with the evidence that a cell of the kind asks for; with all cuts where blocks are cut
                   while they are read
rank KIND          raw scores and their ranking, which budgets share
repeat KIND        the extra passes of a score, which policies share
cut KIND           one cell: allocating, selecting, compacting, saying what was kept, laying out the copy
step LAYOUT 1      one token of a tile of one cell, by the pairs that it holds; step LAYOUT tile: of a full tile
tile               cells of a full tile, a number
grow KIND          one token of one cell that is cut while it answers, by the pairs that it holds
text TILE          a text that is scored while it is cut, by a tile of cells
first BATCH KIND   a repetition of what is timed, up to the first token
later BATCH KIND   each token after it
ceiling            what the device can do, measured beside what is timed
loading            everything before the first prompt
"""

import os
import platform
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

import torch

from kvbench.eviction.budget import Tokens
from kvbench.models.engine import AnyTile
from kvbench.models.loading.load import LoadedModel, ModelInfo
from kvbench.models.prompts.prompt import Prompt, TokensOf, begin
from kvbench.run.evict_cell import Shared, clock, cut, tile_of
from kvbench.run.identity import digest
from kvbench.run.perplexity import text_seconds
from kvbench.run.plan import Cell
from kvbench.run.prefill_job import read
from kvbench.run.timing.ceiling import ceiling
from kvbench.run.timing.measuring import measure
from kvbench.tasks.efficiency import Efficiency
from kvbench.tasks.likelihood import Likelihood

Curves = dict[str, dict[int, float]]
"""Seconds by name and by a number of tokens."""
TILE = "tile"
STEPS = 6
"""New tokens of which the last ones are timed."""
TIMES = 2
"""How often each is measured."""
SHARE = 4
"""Prompts are measured at their full length and at this part of it; texts, token by token, at this part and a half."""
LEAST = 48
"""Tokens of the shortest prompt that is measured, beside the tokens that are protected."""


def kind(cell: Cell) -> str:
    """What tells cells apart by how long they take, whatever their budget."""
    return "/".join(map(str, (cell.policy_label, cell.score_label, laid(cell), cell.schedule)))


def tile_name(cells: Sequence[Cell]) -> str:
    """What tells tiles of texts apart: passes are shared by cells in ways that depend on all of them."""
    return digest("|".join(f"{kind(cell)} {cell.budget}" for cell in cells))


def tiles(cells: Sequence[Cell], size: int) -> list[Sequence[Cell]]:
    """The cells of a group, a tile of `size` at a time."""
    return [cells[start : start + size] for start in range(0, len(cells), size)]


def laid(cell: Cell) -> str:
    """How a tile holds the cell."""
    return cell.policy.layout if cell.store == "flat" else f"{cell.policy.layout} {cell.store}"


def measure_rates(model: LoadedModel, groups: Iterable[Sequence[Cell]], tokens: int) -> Curves:
    """Curves of all kinds among the cells of these groups, for prompts of at most `tokens` tokens. Of a kind the first
    cell speaks.

    Raises ValueError for a text that is too short and for what a cell cannot do.
    """
    curves: Curves = {TILE: {1: model.engine.tile}}
    long = max(2 * LEAST, tokens)
    lengths, halves = sorted({max(LEAST, tokens // SHARE), long}), sorted({max(LEAST, long // SHARE), long // 2})
    _warm(model)
    seen: set[str] = set()
    for cells in groups:
        if isinstance(cells[0].task, Likelihood):
            for tile in tiles(cells, model.engine.tile):
                for length in halves * TIMES:
                    short = [_at(cell, length, tokens) for cell in tile]
                    _put(curves, f"text {tile_name(tile)}", length, text_seconds(model, short, _text(model, length)))
            continue
        for cell in cells:
            batch = cell.task.batch if isinstance(cell.task, Efficiency) else None
            name = f"{batch} {kind(cell)}"
            if name in seen:
                continue
            seen.add(name)
            for length in lengths * TIMES:
                one, prompt = _at(cell, length, tokens), _text(model, length)
                if batch is None:
                    _measure(model, one, prompt, curves)
                else:
                    _time(model, one, prompt, batch, curves)
    return curves


def _time(model: LoadedModel, cell: Cell, prompt: Prompt, batch: int, curves: Curves) -> None:
    if "ceiling" not in curves:
        start = clock(model)
        ceiling(model.engine.device, model.engine.model.dtype, model.engine.sync)
        _put(curves, "ceiling", 1, clock(model) - start)
    found = measure(model, cell, prompt, batch, STEPS)
    told, seen, name = found.quantities, len(prompt.context), f"{batch} {kind(cell)}"
    _put(curves, f"first {name}", seen, told["first_token_seconds"] + told["layout_seconds"])
    _put(curves, f"later {name}", seen, sum(found.steps) / len(found.steps))


def machine(info: ModelInfo) -> dict[str, Any]:
    """What seconds depend on besides the weights, known without loading them."""
    spec, device = info.spec, info.device
    told = {"dtype": spec.dtype, "attention": spec.attention, "kernels": spec.kernels, TILE: spec.tile}
    if device.type == "cuda":
        return told | {"device": torch.cuda.get_device_name(device), "gpus": torch.cuda.device_count()}
    return told | {"device": platform.machine(), "processors": os.cpu_count(), "threads": spec.threads}


def _measure(model: LoadedModel, cell: Cell, prompt: Prompt, curves: Curves) -> None:
    name, seen = kind(cell), len(prompt.context)
    reading = read(model, {0: prompt}, [cell])
    shared = Shared(reading.prefilled.cache, prompt, [cell])
    _put(curves, f"read {name}", seen, reading.seconds)
    start = clock(model)
    held = cut(model, cell, shared)
    whole = clock(model) - start
    ranking = sum(seconds for _, seconds in shared.rankings.values())
    repeating = sum(seconds for _, seconds in shared.repeated.values())
    pairs = max(1, round(held.cut.kept_tokens or seen))
    counts = [1, model.engine.tile] if held.stepping is None else [1]
    for count in counts:
        start = clock(model)
        tile = tile_of(model.engine, [replace(held)] * count, STEPS)
        laying = (clock(model) - start) / count
        step = _step(model, tile)
        if held.stepping is not None:
            _put(curves, f"grow {name}", pairs, step)
        else:
            _put(curves, f"step {laid(cell)} {1 if count == 1 else TILE}", pairs, step)
    _put(curves, f"rank {name}", seen, ranking)
    _put(curves, f"repeat {name}", seen, repeating)
    _put(curves, f"cut {name}", seen, max(0.0, whole - ranking - repeating) + laying)


@torch.inference_mode()
def _step(model: LoadedModel, tile: AnyTile) -> float:
    """Seconds of one token of all cells: the middle of several."""
    ids = torch.zeros(tile.cells, 1, dtype=torch.long)
    took = []
    for _ in range(STEPS):
        start = clock(model)
        model.engine.read(tile, ids)
        took.append(clock(model) - start)
    return sorted(took)[STEPS // 2]


def _warm(model: LoadedModel) -> None:
    """The first pass of a process is slow."""
    model.engine.prefill(torch.tensor(_text(model, LEAST).context))


def _text(model: LoadedModel, tokens: int) -> Prompt:
    (sample,) = Efficiency(context_length=tokens).generate(TokensOf(model.tokenizer), [0])
    return begin(model.tokenizer, sample.context, tokens)


def _at(cell: Cell, length: int, tokens: int) -> Cell:
    """The cell with as large a part of a shorter prompt as it would keep of the longest."""
    if "budget" not in cell.policy.takes:
        return cell
    kept = round(cell.budget.of(tokens) * length / tokens)
    return replace(cell, budget=Tokens(max(kept, cell.policy.protected + 1)))


def _put(curves: Curves, name: str, at: int, seconds: float) -> None:
    """The shortest of several times: what others do on the machine only makes it longer."""
    curve = curves.setdefault(name, {})
    curve[at] = min(seconds, curve.get(at, seconds))
