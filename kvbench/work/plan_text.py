"""The words of a plan: its cells, how long the rest of it takes, and what SLURM is given."""

from collections.abc import Iterator, Mapping, Sequence

from kvbench.report.formats.table import Table, TableRow
from kvbench.report.formats.text import plain_lines
from kvbench.run.cell import Cell
from kvbench.run.estimate import Submission
from kvbench.support.grouped import grouped
from kvbench.support.quantity import count_noun, duration, size


def total_text(seconds: Mapping[str, float | None], starting: float) -> str:
    """Return the line of a plan about the time of all groups, and the seconds until the models are loaded."""
    estimated = [value for value in seconds.values() if value is not None]
    if len(estimated) < len(seconds):
        return (
            f"time: unknown, {len(seconds) - len(estimated)} of {len(seconds)} groups have no similar "
            "rows; kvbench plan --measure runs the first prompt of each, keeps the rows and estimates the rest"
        )
    return (
        f"time: about {written(starting + sum(estimated))}: {written(starting)} until models are loaded, the rest from "
        "rows of similar cells"
    )


def written(seconds: float) -> str:
    """Return seconds, minutes or hours."""
    if seconds < 120:
        return duration([seconds])
    return f"{seconds / 60:.3g} min" if seconds < 7200 else f"{seconds / 3600:.3g} h"


def submission_text(submitted: Submission) -> str:
    """Tasks with their shards and times, what they may use, the batch script."""
    tasks, request = submitted.tasks, submitted.request
    if not tasks:
        return "all rows are there: nothing would be submitted"
    lines = []
    for number, task in enumerate(tasks):
        time = "not known" if task.seconds is None else f"about {written(task.seconds)}"
        labels = str(number), f"{task.part.index + 1}/{task.part.of}", task.model
        lines.append(TableRow.of(labels, (str(task.prompts), str(task.rows), time)))
    table = Table.of(("task", "shard", "model"), ("prompts", "rows", "time"), lines, align="rrl")
    caches = "of unknown size" if submitted.cache_bytes is None else f"of at most {size([submitted.cache_bytes])}"
    unit = "GPU hours" if request.gpus else "hours of all tasks"
    hours = "not known" if submitted.device_hours is None else f"about {submitted.device_hours:.3g}"
    node = "null, the default of the cluster" if request.memory_gb is None else request.memory_gb
    return "\n".join(
        (
            f"{count_noun(len(tasks), 'task')}, {request.parallel} at a time, {count_noun(request.gpus, 'GPU')} "
            "each; nothing is submitted",
            *plain_lines(table),
            f"{unit}: {hours}, at most {submitted.most_device_hours:.3g} before a task is requeued",
            f"time of a task: launcher.time={request.time} ({count_noun(request.minutes, 'minute')}), then requeued "
            f"({request.requeues} times at most)",
            f"memory of a task: caches {caches}, weights and activations; of its node: launcher.memory_gb={node}",
            "batch script:",
            submitted.script.rstrip(),
        )
    )


def cells_text(cells: Sequence[Cell]) -> Iterator[str]:
    """Yield one line per group of cells that share what they read or how they read it, then the sums."""
    prompts = rows = 0
    for line, members in grouped(cells, _shared).items():
        texts = {repr((cell.task, cell if cell.schedule.prefill_block else None)): _texts(cell) for cell in members}
        answers = sum(cell.task.num_answers for cell in members)
        prompts, rows = prompts + sum(texts.values()), rows + answers
        yield f"{line}: {_counts(len(members), sum(texts.values()), answers)}"
    yield _counts(len(cells), prompts, rows)


def _texts(cell: Cell) -> int:
    """Return how many prompts a cell has at most; the questions about a context share one."""
    task = cell.task
    return task.samples if task.contexts is None else min(task.samples, task.contexts)


def _counts(cells: int, prompts: int, rows: int) -> str:
    return f"{count_noun(cells, 'cell')}, at most {count_noun(prompts, 'prompt')}, {count_noun(rows, 'row')}"


def _shared(cell: Cell) -> str:
    """Name what the cells of a plan's line share: a prompt, or a method that reads prompts in blocks of its own."""
    if cell.schedule.prefill_block is None:
        length = "" if cell.task.context_length is None else f", {cell.task.context_length} tokens"
        return f"{cell.model.label}, {cell.task.name}{length}, {cell.schedule}"
    method = cell.eviction
    score = "" if method.score_label is None else f" score {method.score_label}"
    return f"{cell.model.label}, policy {method.policy_label}{score} budget {method.budget}, {cell.schedule}"
