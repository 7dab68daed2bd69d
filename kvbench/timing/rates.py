"""What a plan's estimate is made of, measured: each part of a unit by itself, on a made-up text, by kind of cell.

read KIND          a prompt, with the evidence that a cell of the kind asks for; with all cuts where blocks are cut
                   while they are read
rank KIND          raw scores and their ranking, which budgets share
repeat KIND        the extra passes of a score, which policies share
cut KIND           one cell: allocating, selecting, compacting, saying what was kept, laying out the copy
step LAYOUT CELLS  one token of a tile of so many cells, by the pairs that each holds
grow KIND          one token of one cell that is cut while it answers, by the pairs that it holds
text KIND          a text that is scored while it is cut, by one cell
loading            everything before the first prompt
"""

import os
import platform
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch

from kvbench.budget import Tokens
from kvbench.cutting import Shared, clock, cut, tile_of
from kvbench.likelihood import text_seconds
from kvbench.models.engine import AnyTile
from kvbench.models.load import LoadedModel, Outline
from kvbench.models.prompt import Prompt, TokensOf, begin
from kvbench.plan import Cell
from kvbench.tasks.efficiency import Efficiency
from kvbench.tasks.likelihood import Likelihood
from kvbench.unit import read

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


def laid(cell: Cell) -> str:
    """How a tile holds the cell."""
    return cell.policy.layout if cell.store == "flat" else f"{cell.policy.layout} {cell.store}"


def measure_rates(model: LoadedModel, cells: Sequence[Cell], tokens: int) -> dict[str, dict[int, float]]:
    """Curves of all kinds among these cells, for prompts of at most `tokens` tokens. Of a kind the first cell speaks.

    Raises ValueError for a text that is too short and for what a cell cannot do.
    """
    curves: dict[str, dict[int, float]] = {}
    first = {kind(cell): cell for cell in reversed(cells)}
    lengths = sorted({max(LEAST, tokens // SHARE), max(2 * LEAST, tokens)})
    _warm(model)
    for cell in first.values():
        text = isinstance(cell.task, Likelihood)
        for length in sorted({lengths[0], max(2 * LEAST, tokens // 2)}) if text else lengths:
            short, prompt = _at(cell, length, tokens), _text(model, length)
            for _ in range(TIMES):
                if text:
                    _put(curves, f"text {kind(cell)}", length, text_seconds(model, short, prompt))
                else:
                    _measure(model, short, prompt, curves)
    return curves


def machine(outlined: Outline) -> dict[str, Any]:
    """What seconds depend on besides the weights, known without loading them."""
    spec, device = outlined.spec, outlined.device
    told = {"dtype": spec.dtype, "attention": spec.attention, "kernels": spec.kernels}
    if device.type == "cuda":
        return told | {"device": torch.cuda.get_device_name(device), "gpus": torch.cuda.device_count()}
    return told | {"device": platform.machine(), "processors": os.cpu_count(), "threads": spec.threads}


def _measure(model: LoadedModel, cell: Cell, prompt: Prompt, curves: dict[str, dict[int, float]]) -> None:
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
            _put(curves, f"step {laid(cell)} {count}", pairs, step)
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


def _put(curves: dict[str, dict[int, float]], name: str, at: int, seconds: float) -> None:
    """The shortest of several times: what others do on the machine only makes it longer."""
    curve = curves.setdefault(name, {})
    curve[at] = min(seconds, curve.get(at, seconds))
