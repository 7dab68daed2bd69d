"""Whole prompts as JSON lines, for programs that answer them elsewhere; `kvbench adopt` reads the answers."""

from collections.abc import Iterator
from typing import Any

from kvbench.extras.servers.completions import text_of
from kvbench.extras.servers.run import prompt_for, read_tokenizer
from kvbench.models.prompts.tokens import samples_of
from kvbench.run.cell import Cell
from kvbench.support.errors import UserError
from kvbench.tasks.task import Sample


def prompts_of(cell: Cell) -> Iterator[dict[str, Any]]:
    """Yield every prompt of a cell: its text and token ids, the right answers, and the hash that rows have.

    `text` is what the tokenizer reads as `ids`, without the special tokens that it puts before a text. Raises UserError
    for a prompt that cannot be built.
    """
    tokenizer = read_tokenizer(cell.model)
    for sample in samples_of(tokenizer, cell.model, cell.task, range(cell.task.num_answers)):
        if not isinstance(sample, Sample):
            raise UserError(f"task {sample.task}, sample {sample.id}: {sample.error}")
        prompt = prompt_for(tokenizer, cell, sample)
        ids = [*prompt.prefill, *prompt.question]
        try:
            text = text_of(tokenizer, ids)
        except UserError:
            text = tokenizer.decode(ids)
        yield {
            "task": cell.task.name,
            "task_version": cell.task.version,
            "context_length": cell.task.context_length,
            "seed": cell.task.seed,
            "sample": sample.id,
            "prompt_sha256": prompt.sha256,
            "text": text,
            "ids": ids,
            "answers": list(sample.references),
            "max_new_tokens": sample.max_new_tokens,
            "stop": list(cell.task.stop),
        }
