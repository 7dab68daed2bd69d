"""How long the rest of a plan takes, estimated from the rows that are there, and what SLURM would be given of it.

`--measure` makes rows to estimate from: it runs the first prompt of each task as `kvbench run` does. The rows stay, and
a later run continues from them.
"""

from collections import Counter, defaultdict
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean

from kvbench.records import REQUESTED, KeptDetail, ResultsFolder, Row
from kvbench.report.rows import recorded, with_values
from kvbench.run.claims import Sharing
from kvbench.run.launch import Slurm
from kvbench.run.memory import memory_of
from kvbench.run.plan import Cell, Plan, PrefillGroup, PrefillJob, Shard, shards_of
from kvbench.run.runner import run
from kvbench.tasks.efficiency import Efficiency

_TIMES = ("prefill_seconds", "evict_seconds", "decode_seconds", "store")


def estimate(plan: Plan, rows: Iterable[Row]) -> dict[str, float | None]:
    """Seconds left of each group that has work left, by its key; None if a cell of it has no similar row.

    A prompt takes what prompts of the group took on average, a row what rows of its cell did. A cell without rows takes
    what similar cells did: the same model, policy, score, schedule and store, on a task of the same benchmark and
    length. Loading models is not counted.
    """
    by_kind = _by_kind(rows)
    return {group.key: _seconds_left(group, by_kind) for group in plan.groups if group.jobs}


def similar_rows(plan: Plan, results: ResultsFolder) -> list[Row]:
    """The rows of a folder with the models and policies of a plan, with the columns that say how long they took."""
    rows = recorded(results, (*REQUESTED, *_TIMES), lambda text: None)
    rows = with_values(rows, "model", {cell.model.label for cell in plan.cells})
    rows = with_values(rows, "policy", {cell.policy_label for cell in plan.cells})
    return [Row(**line) for line in rows.drop_columns(["file", "line"]).to_pylist()]


@dataclass(frozen=True)
class ArrayTask:
    """A task of an array: its part of the plan, in which the model of that number is loaded; seconds None: unknown."""

    part: Shard
    model: str
    prompts: int
    rows: int
    seconds: float | None


@dataclass(frozen=True)
class Submission:
    """What a launcher would submit of a plan. cache_bytes: the most that caches take, None if unknown.

    device_hours: of all tasks, None if the time of one is unknown; most_device_hours: before a task is requeued.
    script: the batch script; "" without tasks.
    """

    launcher: Slurm
    tasks: tuple[ArrayTask, ...]
    cache_bytes: int | None
    device_hours: float | None
    most_device_hours: float
    script: str


def submission(plan: Plan, rows: Iterable[Row], launcher: Slurm, results: ResultsFolder) -> Submission:
    """What `launcher` would submit of a plan.

    Nothing is written or submitted; submitit is needed, SLURM is not. Raises UserError without submitit.
    """
    shards, rows = shards_of(plan, launcher.shards), list(rows)
    models = [model.label for model in dict.fromkeys(group.model for group in plan.groups)]
    tasks = []
    for shard in shards:
        part = shard.part_of(plan)
        seconds = _total(estimate(part, rows).values())
        tasks.append(ArrayTask(shard, models[shard.model or 0], part.prefills_to_do, part.rows_to_do, seconds))
    local_groups = [group for group in plan.groups if group.jobs and not group.cells[0].is_served]
    caches = [memory.total for group in local_groups if (memory := memory_of(group))]
    seconds, devices = _total(task.seconds for task in tasks), launcher.gpus or 1
    return Submission(
        launcher=launcher,
        tasks=tuple(tasks),
        cache_bytes=max(caches, default=None),
        device_hours=None if seconds is None else seconds / 3600 * devices,
        most_device_hours=launcher.minutes * len(tasks) * devices / 60,
        script=launcher.script(results, len(tasks)) if tasks else "",
    )


def _total(seconds: Iterable[float | None]) -> float | None:
    """The sum of times; None if one is unknown."""
    total = 0.0
    for value in seconds:
        if value is None:
            return None
        total += value
    return total


def measure(plan: Plan, rows: Iterable[Row], results: ResultsFolder, kept: KeptDetail, lease_seconds: float) -> int:
    """Run the first prompt of each group that cannot be estimated; returns the number of rows recorded.

    Raises as `kvbench.run.runner.run` does.
    """
    return run(first_prompts(plan, rows), results, None, kept, Sharing(lease_seconds)).rows


def first_prompts(plan: Plan, rows: Iterable[Row]) -> Plan:
    """The first sample of each group with a kind of cell that neither `rows` nor an earlier group has."""
    measured = set(_by_kind(rows))

    def first_sample(group: PrefillGroup) -> Iterator[PrefillJob]:
        kinds = {_kind_of(cell) for job in group.jobs for cell in job.cells}
        if not kinds <= measured:
            sample = min(group.jobs[0].missing)
            yield replace(group.jobs[0], missing={sample: group.jobs[0].missing[sample]})
        measured.update(kinds)

    return plan.with_jobs(first_sample)


def _by_kind(rows: Iterable[Row]) -> Mapping[Hashable, list[Row]]:
    """Rows with a time, by their cell and by what similar cells have in common."""
    by_kind = defaultdict[Hashable, list[Row]](list)
    for row in rows:
        if row.error is None and row.decode_seconds is not None:
            benchmark = row.task.partition("/")[0]
            kind = (row.model, benchmark, row.context_length, row.policy, row.score, row.layout, row.schedule)
            by_kind[row.cell].append(row)
            by_kind[*kind, row.store].append(row)
    return by_kind


def _kind_of(cell: Cell) -> Hashable:
    """What similar cells have in common."""
    benchmark, length = cell.task.name.partition("/")[0], cell.task.context_length
    kind = (cell.model.label, benchmark, length, cell.policy_label, cell.score_label, cell.policy.layout)
    return (*kind, str(cell.schedule), cell.store)


def _seconds_left(group: PrefillGroup, by_kind: Mapping[Hashable, Sequence[Row]]) -> float | None:
    cells = {cell.id: cell for job in group.jobs for cell in job.cells}
    missing = Counter(cell.id for job in group.jobs for cells in job.missing.values() for cell in cells)
    timed = {name: by_kind.get(name) or by_kind.get(_kind_of(cell), ()) for name, cell in cells.items()}
    if not all(timed.values()):
        return None
    prefills = [row.prefill_seconds for rows in timed.values() for row in rows if row.prefill_seconds is not None]
    prompts, batch = len(group.jobs), 1
    if isinstance(group.task, Efficiency):  # each row prefills its own prompts
        prompts, batch = sum(missing.values()), group.task.batch
    seconds = prompts * fmean(prefills) if prefills else 0.0
    for name, rows in timed.items():
        row_seconds = ((row.evict_seconds or 0.0) + (row.decode_seconds or 0.0) for row in rows)
        seconds += missing[name] * fmean(row_seconds)
    return batch * seconds
