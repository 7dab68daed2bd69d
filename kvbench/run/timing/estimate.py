"""Seconds that what is left of a group will take, from measured rates: how much of each part there is, times its rate.

Answers count as long as they may become; a prompt is read once for all cells, raw scores are computed once for all
policies that take the same, budgets share rankings, and cells answer a tile at a time, as they do in a run.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from kvbench.eviction.evict import ranks_alike
from kvbench.records.rates import Rates
from kvbench.run.plan import Cell, PrefillGroup
from kvbench.run.timing.rates import TILE, kind, laid, tile_name, tiles
from kvbench.tasks.efficiency import Efficiency
from kvbench.tasks.likelihood import Likelihood


@dataclass
class Estimate:
    """Seconds, and the parts that nobody measured and that are not in them."""

    seconds: float = 0.0
    unknown: dict[str, None] = field(default_factory=dict)

    def add(self, rates: Rates, name: str, tokens: float, times: float = 1.0) -> float:
        """Count a part; returns what it takes once."""
        found = rates.seconds(name, tokens)
        if found is None:
            self.unknown[name] = None
            return 0.0
        self.seconds += times * found
        return found


def estimate(group: PrefillGroup, rates: Rates, tokens: float, asked: float = 0.0) -> Estimate:
    """Of the units that are left, for prompts of so many tokens before the cut and `asked` after it."""
    found, task, size = Estimate(), group.task, int(rates.seconds(TILE, 1) or 1)
    for unit in group.units:
        cells = unit.cells
        if isinstance(task, Efficiency):
            found.add(rates, "ceiling", 1)
            for cell in cells:
                times, name = len(unit.missing) + task.warmup, f"{task.batch} {kind(cell)}"
                found.add(rates, f"first {name}", task.context_length, times)
                found.add(rates, f"later {name}", task.context_length, times * (task.new_tokens - 1))
        elif isinstance(task, Likelihood):
            wanted = [{cell.id for cell in missing} for missing in unit.missing.values()]
            for tile in tiles(group.cells, size):
                texts = sum(not ids.isdisjoint(cell.id for cell in tile) for ids in wanted)
                found.add(rates, f"text {tile_name(tile)}", tokens, texts)
        else:
            _read(found, cells, rates, tokens)
            for missing in unit.missing.values():
                _answer(found, missing, rates, tokens, asked, task.max_new_tokens, size)
    return found


def _read(found: Estimate, cells: Sequence[Cell], rates: Rates, tokens: float) -> None:
    """Read once with the evidence of whoever wants most; rank once what ranks alike; cut each."""
    named = {kind(cell): cell for cell in cells}
    costs = {name: rates.seconds(f"read {name}", tokens) for name in named}
    found.unknown |= {f"read {name}": None for name, cost in costs.items() if cost is None}
    found.seconds += max((cost for cost in costs.values() if cost is not None), default=0.0)
    ranked, repeated = set[object](), set[object]()
    for cell in cells:
        name, cuts = kind(cell), cell.budget.of(round(tokens)) < tokens
        if cuts and cell.schedule.prefill_block is None:
            key = ranks_alike(cell.policy, cell.score), cell.score
            if key not in ranked:
                ranked.add(key)
                found.add(rates, f"rank {name}", tokens)
            again = cell.score.inputs.repeat
            if again is not None and again not in repeated:
                repeated.add(again)
                found.add(rates, f"repeat {name}", tokens)
        found.add(rates, f"cut {name}", tokens)


def _answer(
    found: Estimate, cells: Iterable[Cell], rates: Rates, tokens: float, asked: float, new_tokens: int, size: int
) -> None:
    """Tiles of at most `size` cells that store alike; what is asked is read like a prompt by each of them."""
    alike: dict[tuple[str, bool], list[Cell]] = {}
    for cell in cells:
        alike.setdefault((laid(cell), cell.schedule.decode_every is not None), []).append(cell)
    for (layout, grows), members in alike.items():
        for tile in tiles(members, size):
            pairs = sum(min(tokens, cell.budget.of(round(tokens))) for cell in tile) / len(tile)
            steps = max(0, new_tokens - 1)
            if asked:
                found.add(rates, f"read {kind(tile[0])}", len(tile) * asked)
            if grows:
                for cell in tile:
                    found.add(rates, f"grow {kind(cell)}", pairs, steps)
                continue
            one = rates.seconds(f"step {layout} 1", pairs)
            most = rates.seconds(f"step {layout} {TILE}", pairs)
            if one is None or most is None:
                found.unknown[f"step {layout} {TILE}"] = None
                continue
            found.seconds += steps * (one + (most - one) * (len(tile) - 1) / max(1, size - 1))
