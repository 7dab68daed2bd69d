"""How long the rest of a plan takes, estimated from the rows that are there, and what SLURM would be given of it.

`--measure` makes rows to estimate from: it runs the first prompt of each task as `kvbench run` does. The rows stay, and
a later run continues from them.
"""

from collections import Counter, defaultdict
from collections.abc import Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from statistics import fmean

from kvbench.eviction.evict import scores_alike
from kvbench.records import REQUESTED, KeptDetail, ResultsFolder, Row, read_processes
from kvbench.records.rows import recorded, with_values
from kvbench.run.cell import Cell
from kvbench.run.job_queue import JobQueue, RunContext
from kvbench.run.joint_batch import may_decode_jointly
from kvbench.run.launch.launcher import Launcher
from kvbench.run.launch.request import SubmitRequest
from kvbench.run.plan import Plan, PrefillGroup, PrefillJob
from kvbench.run.plan_memory import memory_of
from kvbench.run.runner import run
from kvbench.run.shard import Shard, shards_of
from kvbench.support.errors import UserError

_TIMES = ("prefill_seconds", "evict_seconds", "decode_seconds", "store", "environment")
STEP_CELLS = 4
"""A step of decoding has a fixed part, as long as so many cells take (1 to 6 on CPUs), and a part for each cell."""
ASSUMED_TOKENS = 4096
"""Of a prompt whose length its task does not say."""


@dataclass(frozen=True)
class SimilarRuns:
    """Times in a folder that predict the time of a plan.

    rows: with the models and policies of the plan, with the columns that say how long they took. padded: environments
    in which a step of decoding takes as long for one cell as for a full batch. loading: seconds until a model was
    loaded, by its label, of every process.
    """

    rows: tuple[Row, ...] = ()
    padded: frozenset[str] = frozenset()
    loading: Mapping[str, Sequence[float]] = field(default_factory=dict)


def similar_runs(plan: Plan, results: ResultsFolder) -> SimilarRuns:
    """Read the times in a folder that predict the time of a plan."""
    rows = recorded(results, (*REQUESTED, *_TIMES), lambda text: None)
    rows = with_values(rows, "model", {cell.model.label for cell in plan.cells})
    rows = with_values(rows, "policy", {cell.method.columns["policy"] for cell in plan.cells})
    similar = tuple(Row(**line) for line in rows.drop_columns(["file", "line"]).to_pylist())
    padded = (name for name in {row.environment for row in similar} if name is not None and _is_padded(results, name))
    loading = defaultdict[str, list[float]](list)
    for process in read_processes(results):
        for label, seconds in process.loading.items():
            loading[label].append(seconds)
    return SimilarRuns(similar, frozenset(padded), loading)


def _is_padded(results: ResultsFolder, environment: str) -> bool:
    """Return whether every pass of a decode batch has the rows of a full one. False where the file is damaged."""
    with suppress(UserError):
        device = (results.read_environment(environment) or {}).get("device")
        return isinstance(device, dict) and device.get("narrow") == []
    return False


def estimate(plan: Plan, similar: SimilarRuns) -> dict[str, float | None]:
    """Return seconds left of each group that has work left, by its key; None if a cell of it has no similar row.

    A prompt takes what prompts of the group took on average, a row what rows of its cell did. A cell without rows takes
    what similar cells did: the same model, policy, score, schedule and store, on a task of the same benchmark and
    length. What cells share counts once: the scores of an eviction, the steps of a decode batch. Loading is not
    counted.
    """
    by_kind = _by_kind(similar.rows)
    return {group.key: _seconds_left(group, by_kind, similar) for group in plan.groups if group.jobs}


def starting(plan: Plan, similar: SimilarRuns, planning: float) -> float:
    """Return seconds until all models that have work left are loaded.

    planning: what the plan took, which a run takes too. A model that was not loaded yet takes as long again.
    """
    labels = [model.label for model, groups in plan.by_model().items() if model.runs_here]
    return planning + sum(fmean(similar.loading.get(label) or [planning]) for label in labels)


@dataclass(frozen=True)
class ArrayTask:
    """A task of an array: its part of the plan, and the one model that it loads. seconds: None if not known."""

    part: Shard
    model: str
    prompts: int
    rows: int
    seconds: float | None


@dataclass(frozen=True)
class Submission:
    """Jobs that a launcher would submit. cache_bytes: the most that caches take, None if unknown.

    device_hours: of all tasks, None if the time of one is unknown; most_device_hours: before a task is requeued.
    script: the batch script; "" without tasks.
    """

    request: SubmitRequest
    tasks: tuple[ArrayTask, ...]
    cache_bytes: int | None
    device_hours: float | None
    most_device_hours: float
    script: str


def submission(
    plan: Plan, similar: SimilarRuns, launcher: Launcher, results: ResultsFolder, planning: float
) -> Submission | None:
    """Return the jobs that `launcher` would submit of a plan, which took `planning` seconds; None for a launcher that
    submits nothing, or does not say what.

    Nothing is written or submitted; for SLURM submitit is needed, SLURM is not. Raises UserError without submitit.
    """
    if (request := launcher.request(results)) is None:
        return None
    shards = shards_of(plan, request.shards)
    models = [model.label for model in dict.fromkeys(group.model for group in plan.groups)]
    tasks = []
    for shard in shards:
        part = shard.part_of(plan)
        seconds = _total([starting(part, similar, planning), *estimate(part, similar).values()])
        tasks.append(ArrayTask(shard, models[shard.model or 0], part.prefills_to_do, part.rows_to_do, seconds))
    local_groups = [group for group in plan.groups if group.jobs and group.model.runs_here]
    caches = [memory.total for group in local_groups if (memory := memory_of(group))]
    seconds, devices = _total(task.seconds for task in tasks), request.gpus or 1
    return Submission(
        request=request,
        tasks=tuple(tasks),
        cache_bytes=max(caches, default=None),
        device_hours=None if seconds is None else seconds / 3600 * devices,
        most_device_hours=request.minutes * len(tasks) * devices / 60,
        script=request.script(len(tasks)) if tasks else "",
    )


def _total(seconds: Iterable[float | None]) -> float | None:
    """Return the sum of times; None if one is unknown."""
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
    return run(first_prompts(plan, rows), results, JobQueue(results, RunContext(lease_seconds)), kept=kept).rows


def first_prompts(plan: Plan, rows: Iterable[Row]) -> Plan:
    """Return the first sample of each group with a kind of cell that neither `rows` nor an earlier group has."""
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
    """Return what similar cells have in common."""
    benchmark, length = cell.task.name.partition("/")[0], cell.task.context_length
    of_method = (cell.method.columns[name] for name in ("policy", "score", "layout"))
    store = cell.held.store if cell.model.runs_here else "unknown"
    return (cell.model.label, benchmark, length, *of_method, str(cell.schedule), store)


def _seconds_left(group: PrefillGroup, by_kind: Mapping[Hashable, Sequence[Row]], similar: SimilarRuns) -> float | None:
    cells = {cell.id: cell for job in group.jobs for cell in job.cells}
    missing = Counter(cell.id for job in group.jobs for cells in job.missing.values() for cell in cells)
    timed = {name: by_kind.get(name) or by_kind.get(_kind_of(cell), ()) for name, cell in cells.items()}
    if not all(timed.values()):
        return None
    prefills = [row.prefill_seconds for rows in timed.values() for row in rows if row.prefill_seconds is not None]
    prefill = fmean(prefills) if prefills else 0.0
    evict = {name: fmean(row.evict_seconds or 0.0 for row in rows) for name, rows in timed.items()}
    if group.task.own_prefills:
        seconds = (prefill + evict[name] + fmean(row.decode_seconds or 0.0 for row in timed[name]) for name in timed)
        return group.task.own_prefills * sum(missing[name] * each for name, each in zip(timed, seconds, strict=True))
    parts = Counter(tuple(cell.id for cell in job.cells) for job in group.jobs)
    evicting = sum(number * _evict_seconds([cells[name] for name in part], evict) for part, number in parts.items())
    decoding = sum(missing[name] * each for name, each in _decode_seconds(group, timed, similar.padded).items())
    return len(group.jobs) * prefill + evicting + decoding


def _evict_seconds(cells: Iterable[Cell], evict: Mapping[str, float]) -> float:
    """Return seconds of one prompt. Those of each cell include the scores that it shares with others; they count
    once.
    """
    sharing = defaultdict[Hashable, list[float]](list)
    for cell in cells:
        if evict[cell.id]:
            sharing[_scoring(cell)].append(evict[cell.id])
    return sum(sum(seconds) - (len(seconds) - 1) * min(seconds) for seconds in sharing.values())


def _scoring(cell: Cell) -> Hashable:
    """Return what cells with the same raw scores have in common."""
    tokens = cell.task.context_length or ASSUMED_TOKENS
    policy = cell.policy.resolve(0, tokens, cell.budget)
    return cell.score, scores_alike(policy, cell.score, tokens)


def _decode_seconds(
    group: PrefillGroup, timed: Mapping[str, Sequence[Row]], padded: Collection[str]
) -> dict[str, float]:
    """Return seconds of an answer of each cell, whose rows are `timed`, among so many cells as decode together now."""
    most, task = group.model.max_batch, group.task
    joint = may_decode_jointly(group.cells[:1], most) and all(len(job.missing) == 1 for job in group.jobs)

    def together(cells: int, prompts: int) -> int:
        """Return cells of a batch, for so many of a prompt."""
        return min(most, cells * (min(prompts, max(1, most // cells)) if joint else 1))

    def share(cells: int, row: Row) -> float:
        """Return the share of a step that a cell of a batch takes, in units that drop out."""
        return 1 / cells if row.environment in padded else 1 + STEP_CELLS / cells

    samples = defaultdict[Hashable, Counter[int]](Counter)
    for row in {id(row): row for rows in timed.values() for row in rows}.values():
        samples[row.task, row.context_length][row.sample] += 1
    now = together(max(len(job.cells) for job in group.jobs), len(group.jobs))
    seconds = {}
    for name, rows in timed.items():
        values = []
        for row in rows:
            of_prompts = samples[row.task, row.context_length]
            then = now if task.scores_text else together(max(of_prompts.values()), len(of_prompts))
            values.append((row.decode_seconds or 0.0) * share(now, row) / share(then, row))
        seconds[name] = fmean(values)
    return seconds
