"""Which of the committed rows the gate makes again: a few cells of every prompt, in turn.

Cells of one prompt fail together, so many prompts with few cells each tell more than few prompts with all cells
(benchmarks/results/statistics.md). Every cell is made again, on a prompt that no other cell of its policy has; of a
policy with few cells some are on several prompts, until the policy has ``LEAST``. Policies of one family share prompts,
and with them most of the work: KVzip reads each of its prompts twice.
"""

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

import pyarrow as pa

from kvbench.records.labels import policy_of

if TYPE_CHECKING:
    from kvbench.run.cell import Cell

PROMPTS = 50
"""Of each task."""
LEAST = 7
"""Prompts of each task for a policy: with four tasks 28, which show a loss of 40 points."""
_STEP = 7
"""From prompt to prompt of a policy; no divisor of ``PROMPTS``."""

Key = tuple[str, str, str | None, str]
"""Task, policy, score and budget of a cell."""


def rotation(cells: Iterable[Key]) -> dict[Key, list[int]]:
    """The samples of each cell that are made again."""
    policies: dict[tuple[str, str], list[Key]] = {}
    for key in sorted(cells, key=str):
        policies.setdefault(key[:2], []).append(key)
    families = sorted({_family(policy) for _, policy in policies})
    chosen: dict[Key, list[int]] = {key: [] for keys in policies.values() for key in keys}
    for (_, policy), keys in policies.items():
        first = families.index(_family(policy)) * PROMPTS // len(families)
        for i in range(max(LEAST, len(keys))):
            chosen[keys[i % len(keys)]].append((first + i * _STEP) % PROMPTS)
    return chosen


def key_of(columns: dict[str, list]) -> list[Key]:
    """The cells of rows."""
    return list(zip(*(columns[name] for name in ("task", "policy", "score", "budget")), strict=True))


def samples_of(rows: pa.Table) -> "Callable[[Cell], Iterable[int]]":
    """The samples that these rows have of a cell; all of them, where the rows are not of its task."""
    columns = rows.select(["task", "policy", "score", "budget", "sample"]).to_pydict()
    tasks, samples = set(columns["task"]), {}
    for key, sample in zip(key_of(columns), columns["sample"], strict=True):
        samples.setdefault(key, []).append(sample)

    def of_cell(cell: "Cell") -> Iterable[int]:
        key = cell.task.name, cell.eviction.policy_label, cell.eviction.score_label, str(cell.budget)
        return samples.get(key, ()) if cell.task.name in tasks else range(cell.task.num_answers)

    return of_cell


def _family(policy: str) -> str:
    return policy_of(policy).removeprefix("ada_").partition("_")[0]
