"""The cells of an item's plan, in words."""

from collections.abc import Iterator, Sequence

from kvbench.run.plan import Cell
from kvbench.support.grouped import grouped
from kvbench.support.quantity import count_noun


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
    score = "" if cell.score_label is None else f" score {cell.score_label}"
    return f"{cell.model.label}, policy {cell.policy_label}{score} budget {cell.budget}, {cell.schedule}"
